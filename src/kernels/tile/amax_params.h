#pragma once
// What the step that clears largest magnitudes is handed. Read by g++ and by NVRTC.

#include "kernels/tile/traits.h"

namespace flashcore::tile {

constexpr int kClearThreads = 128;

struct ClearAmaxParams {
  float* amax;
  int count;
};

}  // namespace flashcore::tile
