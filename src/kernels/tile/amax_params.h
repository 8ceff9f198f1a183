#pragma once
// What the step that clears largest magnitudes is handed. Read by g++ and by NVRTC.

#include "kernels/tile/traits.h"

namespace flashcore::tile {

// A function: a constant would be one of every kernel, with largest magnitudes or without.
constexpr int clear_threads() { return 128; }

struct ClearAmaxParams {
  float* amax;
  int count;
};

}  // namespace flashcore::tile
