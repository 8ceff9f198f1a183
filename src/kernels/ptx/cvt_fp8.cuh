#pragma once
// PTX ISA, "cvt" to 8-bit floats and from them (sm_89): round to nearest even; values beyond the largest become the
// largest, NaN stays NaN.

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
// Two e4m3 in the lower half of a word as fp16, the first in the lowest byte. Exact.
FC_DEVICE unsigned cvt_f16x2_e4m3x2(unsigned codes) {
  unsigned packed;
  asm("{.reg .b16 pair; cvt.u16.u32 pair, %1; cvt.rn.f16x2.e4m3x2 %0, pair;}" : "=r"(packed) : "r"(codes));
  return packed;
}

}  // namespace flashcore::ptx
