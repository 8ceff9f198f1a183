#pragma once
// Micro-tests of conversion to 8-bit floats and back, and of multiplies that begin a sum.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/cvt_fp8.cuh"
#include "kernels/ptx/fresh_accumulator.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_fp8_shapes.cuh"

namespace flashcore::conformance {

// Any bits, and numbers of every magnitude that the type has: halfway cases, subnormals, and beyond the largest.
struct ToE4m3 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) {
      const float tenth = number(p, i), near = static_cast<float>((i * 37) % 1024 - 512) * 0.000244140625f;
      return ptx::cvt_e4m3x4(tenth, near, near * 64.0f, near * 4096.0f);
    });
  }
};

// Every code beside every other.
struct FromE4m3 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::cvt_f16x2_e4m3x2(static_cast<unsigned>(i) * 0x9e37u & 0xffffu); });
  }
};

// d = a·b + a·b from accumulators that hold nothing yet.
struct FreshAccumulator {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress smem = ptx::dynamic_shared();
    const auto ones = [&](int i) { return (word(p, kRawWords + i % kRegionWords) & 0x86868686u) | 0x38383838u; };
    for (int i = t; i < 64 * 32; i += kThreads) ptx::st_shared_u32(smem + 4 * i, ones(i));
    ptx::fence_proxy_async();
    ptx::bar_sync();
    unsigned a[4];
    for (int i = 0; i < 4; ++i) a[i] = ones(4 * t + i);
    float d[32];
    ptx::fresh_accumulator(d);
    ptx::warpgroup_fence_operand(a);
    ptx::wgmma_fence();
    const ptx::WgmmaDescriptor b = ptx::WgmmaDescriptor::of(smem, 16);
    ptx::wgmma_fp8_rs<false>(d, a, b.word(), 0);
    ptx::wgmma_fp8_rs<false>(d, a, b.advanced(32).word(), 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::warpgroup_fence_operand(d);
    for (int i = 0; i < 32; ++i) give(p, t * 32 + i, d[i]);
  }
};

}  // namespace flashcore::conformance
