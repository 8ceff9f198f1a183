#pragma once
// PTX ISA, "cvt" to 8-bit floats (sm_89): round to nearest even; values beyond the largest become the largest, NaN
// stays NaN.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Four floats, the first in the lowest byte.
FC_DEVICE unsigned cvt_e4m3x4(float a, float b, float c, float d) {
  unsigned packed;
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; "
      "mov.b32 %0, {low, high};}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

}  // namespace flashcore::ptx
