#pragma once
// How far a patch reaches: what it changes outside of its family's folder, and whether the emulator sees all of it.

#include <string>
#include <vector>

#include "lab/harness/patch.h"

namespace flashcore {

struct PatchReach {
  std::vector<std::string> outside;  // sentences for its giver: what was changed, and what holds of the others
  std::string not_emulated;          // why the emulator cannot judge it; empty: it can
};
// Of a patch that make_patched_family() takes.
PatchReach reach_of(const Patch& patch);

}  // namespace flashcore
