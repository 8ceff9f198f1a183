#pragma once
// A slowdown of known size, to see whether the measurement finds it.

#include "lab/measure/prepared_candidate.h"

namespace flashcore {

// So many launches of a thousand are done twice, without being counted. Exact where launches per sample times this is a
// multiple of 1000. 0: nothing is wrapped.
LaunchWrapper repeat_launches(int permille);

}  // namespace flashcore
