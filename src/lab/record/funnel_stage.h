#pragma once
// How far a trial of a search came: what tune's table and the report's funnel count.

#include "lab/record/trial.h"

namespace flashcore {

// Each stage implies those before it.
enum class FunnelStage {
  kProposed,
  kValid,     // why_invalid had nothing against it
  kCompiled,  // and it passed the resource gate; a CPU candidate has nothing to compile
  kCorrect,   // the timed outputs included
  kRaced,     // timed against the incumbent
  kLed,       // beat it; who wins is told by held-out trials
};
FunnelStage funnel_stage_of(const Trial& trial);

}  // namespace flashcore
