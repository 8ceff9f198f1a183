#pragma once
// A micro-test of loads of what nobody writes.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/read_only.cuh"

namespace flashcore::conformance {

struct ReadOnly {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const auto* words = static_cast<const float*>(p.in) + kRawWords;
    ptx::st_global_f32(reinterpret_cast<float*>(p.out) + t, ptx::ld_global_nc_f32(words + (t ^ 37)));
    const auto* bytes = static_cast<const unsigned char*>(p.in) + 4 * kRawWords;
    unsigned both = ptx::ld_global_nc_u8(bytes + 3 * t);
    both |= ptx::ld_global_nc_u8(bytes + 5 * t + 1) << 8;
    give(p, kThreads + t, both);
  }
};

}  // namespace flashcore::conformance
