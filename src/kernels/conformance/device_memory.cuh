#pragma once
// Micro-tests of vector loads from global memory, and of its order between CTAs.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/math.cuh"

namespace flashcore::conformance {

struct VectorLoad {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const auto* in = static_cast<const unsigned*>(p.in) + kRawWords;
    ptx::st_global_v4(p.out + 4 * t, ptx::ld_global_v4(in + 4 * (t ^ 37)));
  }
};
// The last CTA to arrive has all that the others stored.
struct AtomicOrder {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread(), cta = ptx::ctaid_x();
    const ptx::SharedAddress last = ptx::dynamic_shared();
    unsigned* stored = p.out + 1 + kThreads;
    ptx::st_global_f32(reinterpret_cast<float*>(stored + cta * kThreads + t), number(p, cta * kThreads + t));
    ptx::bar_sync();
    if (t == 0) ptx::st_shared_u32(last, ptx::atomic_add_global_acq_rel(p.out, 1) == ptx::nctaid_x() - 1);
    ptx::bar_sync();
    if (ptx::ld_shared_u32(last) == 0) return;
    float sum = 0.0f;
    for (unsigned i = 0; i < ptx::nctaid_x(); ++i)
      sum += ptx::ld_global_f32(reinterpret_cast<const float*>(stored + i * kThreads + (t ^ 5)));
    give(p, 1 + t, ptx::bits_of_float(sum));
  }
};

}  // namespace flashcore::conformance
