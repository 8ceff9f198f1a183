#pragma once
// What the micro-tests share: known bits in, bits out. Run on hardware, their outputs are recorded; run on the
// emulator, they must be the same (lab/conformance.h has the list and the tolerances). CTAs of 128 threads; one, or a
// cluster. A test's recording lasts as long as its own text and this file stay as they are.

#include "kernels/conformance/params.h"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"

namespace flashcore::conformance {

using Arguments = Params<ptx::TensorMap>;

FC_DEVICE int thread() { return ptx::tid_x(); }
FC_DEVICE float number(const Arguments& p, int i) { return ptx::ld_global_f32(static_cast<const float*>(p.in) + i); }
FC_DEVICE unsigned short half_at(const Arguments& p, int i) {
  return ptx::ld_global_u16(static_cast<const unsigned short*>(p.in) + i);
}
FC_DEVICE unsigned word(const Arguments& p, int i) {
  return half_at(p, 2 * i) | static_cast<unsigned>(half_at(p, 2 * i + 1)) << 16;
}
FC_DEVICE void give(const Arguments& p, int i, unsigned value) { ptx::st_global_u32(p.out + i, value); }
FC_DEVICE void give(const Arguments& p, int i, float value) {
  ptx::st_global_f32(reinterpret_cast<float*>(p.out) + i, value);
}
// The words that matrix instructions take: pairs of fp16, or of bf16.
template <bool kBf16>
FC_DEVICE unsigned pair(const Arguments& p, int i) {
  return word(p, (kBf16 ? kBf16Words : kF16Words) + i % kRegionWords);
}
// Shared memory filled with `count` words of input, everybody past a barrier.
template <bool kBf16>
FC_DEVICE void fill_shared(const Arguments& p, int count) {
  for (int i = thread(); i < count; i += kThreads) ptx::st_shared_u32(ptx::dynamic_shared() + 4 * i, pair<kBf16>(p, i));
  ptx::bar_sync();
}
// One output for each number of the input.
template <class Function>
FC_DEVICE void map_numbers(const Arguments& p, Function function) {
  for (int i = thread(); i < kRegionWords; i += kThreads) give(p, i, function(i));
}

template <class Test>
FC_KERNEL(kThreads, 1)
conform(const __grid_constant__ Arguments p) {
  Test::run(p);
}

}  // namespace flashcore::conformance
