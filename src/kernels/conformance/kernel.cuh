#pragma once
// One micro-test for each function of ptx/: known bits in, bits out. Run on hardware, its outputs are recorded; run on
// the emulator, they must be the same (lab/conformance.h has the list and the tolerances). One CTA of 128 threads each.

#include "kernels/conformance/params.h"
#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

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

// --- arithmetic -----------------------------------------------------------------------------------------------------
template <class Function>
FC_DEVICE void map_numbers(const Arguments& p, Function function) {
  for (int i = thread(); i < kRegionWords; i += kThreads) give(p, i, function(i));
}
struct Ex2 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::ex2(number(p, i)); });
  }
};
struct Lg2 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::lg2(number(p, i)); });
  }
};
struct Rcp {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::rcp(number(p, i)); });
  }
};
struct Fma {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) {
      return ptx::fma(number(p, i), number(p, (i + 1) % kRegionWords), number(p, (i + 7) % kRegionWords));
    });
  }
};
struct Max {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::max(number(p, i), number(p, (i + 5) % kRegionWords)); });
    if (thread() == 0) give(p, kRegionWords, ptx::max(ptx::negative_infinity(), number(p, 100)));
  }
};
struct ToF16 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::cvt_f16x2(number(p, i), number(p, (i + 1) % kRegionWords)); });
  }
};
struct ToBf16 {
  FC_DEVICE static void run(const Arguments& p) {
    map_numbers(p, [&](int i) { return ptx::cvt_bf16x2(number(p, i), number(p, (i + 1) % kRegionWords)); });
  }
};
// Every bit pattern.
struct FromF16 {
  FC_DEVICE static void run(const Arguments& p) {
    for (int i = thread(); i < 65536; i += kThreads) give(p, i, ptx::cvt_f32_f16(static_cast<unsigned short>(i)));
  }
};
struct FromBf16 {
  FC_DEVICE static void run(const Arguments& p) {
    for (int i = thread(); i < 65536; i += kThreads) give(p, i, ptx::cvt_f32_bf16(static_cast<unsigned short>(i)));
  }
};

// --- memory ---------------------------------------------------------------------------------------------------------
struct Memory {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress shared = ptx::dynamic_shared();
    for (int i = 0; i < 4; ++i) ptx::st_shared_u32(shared + 16 * t + 4 * i, word(p, kRawWords + 4 * t + i));
    ptx::bar_sync();
    const int other = ptx::opaque(t) ^ 37;
    ptx::st_global_v4(p.out + 4 * t, ptx::ld_shared_v4(shared + 16 * other));
    give(p, 4 * kThreads + t, ptx::ld_shared_u32(shared + 4 * other));
    ptx::st_global_u16(reinterpret_cast<unsigned short*>(p.out + 5 * kThreads) + t, half_at(p, 2 * kRawWords + t));
    give(p, 6 * kThreads + t, static_cast<unsigned>(ptx::ctaid_x() + 10 * ptx::nctaid_x()) + shared % 1024);
    ptx::bar_sync();
    ptx::atomic_add_global(p.out + 7 * kThreads, static_cast<unsigned>(t) + 1);
  }
};
struct CpAsync {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress own = ptx::dynamic_shared() + 32 * t;
    const auto* from = static_cast<const unsigned*>(p.in) + kRawWords + 4 * t;
    ptx::cp_async_16(own, from, t % 3 == 0 ? 0 : 16);
    ptx::cp_async_commit();
    ptx::cp_async_16(own + 16, from, 16);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    ptx::st_global_v4(p.out + 8 * t, ptx::ld_shared_v4(own));
    ptx::cp_async_wait<0>();
    ptx::bar_sync();
    ptx::st_global_v4(p.out + 8 * t + 4, ptx::ld_shared_v4(ptx::dynamic_shared() + 32 * (t ^ 64) + 16));
  }
};
template <bool kTransposed>
struct Ldmatrix {
  FC_DEVICE static void run(const Arguments& p) {
    fill_shared<false>(p, 1024);
    const int t = thread(), lane = t % 32;
    unsigned tiles[4];
    const ptx::SharedAddress row = ptx::dynamic_shared() + t / 32 * 512 + (lane * 5 % 32) * 16;
    if constexpr (kTransposed) ptx::ldmatrix_x4_trans(tiles, row);
    else ptx::ldmatrix_x4(tiles, row);
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, tiles[i]);
  }
};
struct Stmatrix {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread(), lane = t % 32;
    ptx::stmatrix_x4(ptx::dynamic_shared() + t / 32 * 512 + (lane * 5 % 32) * 16, pair<false>(p, 4 * t),
                     pair<false>(p, 4 * t + 1), pair<false>(p, 4 * t + 2), pair<false>(p, 4 * t + 3));
    ptx::bar_sync();
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, ptx::ld_shared_u32(ptx::dynamic_shared() + 16 * t + 4 * i));
  }
};

// --- warps and barriers ---------------------------------------------------------------------------------------------
struct Shuffle {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const float value = number(p, 100 + t);
    for (int mask = 1, i = 0; mask < 32; mask *= 2, ++i) give(p, i * kThreads + t, ptx::shfl_bfly(value, mask));
    give(p, 5 * kThreads + t, static_cast<unsigned>(ptx::shfl_idx(t * 3, t / 32 * 7)));
    give(p, 6 * kThreads + t, static_cast<unsigned>(ptx::vote_any(t == 40 || t == 100)));
  }
};
struct Barriers {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress shared = ptx::dynamic_shared();
    // Warp, whole CTA, two warps; then the first two warps tell the last two without waiting themselves.
    ptx::st_shared_u32(shared + 4 * t, static_cast<unsigned>(t * t));
    ptx::bar_warp_sync();
    give(p, t, ptx::ld_shared_u32(shared + 4 * (t ^ 1)));
    ptx::bar_sync();
    give(p, kThreads + t, ptx::ld_shared_u32(shared + 4 * (t ^ 127)));
    ptx::bar_sync();
    ptx::st_shared_u32(shared + 4 * t, static_cast<unsigned>(t + 5));
    ptx::bar_sync(1 + t / 64, 64);
    give(p, 2 * kThreads + t, ptx::ld_shared_u32(shared + 4 * (t ^ 63)));
    if (t < 64) ptx::bar_arrive(3, 128);
    else ptx::bar_sync(3, 128);
    give(p, 3 * kThreads + t, ptx::ld_shared_u32(shared + 4 * (t < 64 ? t : t - 64)));
  }
};
struct MBarrier {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress barrier = ptx::dynamic_shared(), data = barrier + 1024;
    if (t == 0) {
      ptx::mbarrier_init(barrier, 64);
      ptx::mbarrier_init(barrier + 8, 64);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync();
    // Two phases there and back between the halves of the CTA.
    for (int phase = 0; phase < 3; ++phase) {
      if (t < 64) {
        ptx::st_shared_u32(data + 4 * t, static_cast<unsigned>(t * (phase + 2)));
        ptx::mbarrier_arrive(barrier);
        ptx::mbarrier_wait(barrier + 8, phase % 2);
      } else {
        while (!ptx::mbarrier_try_wait(barrier, phase % 2)) {
        }
        give(p, phase * kThreads + t, ptx::ld_shared_u32(data + 4 * (127 - t)));
        ptx::mbarrier_arrive(barrier + 8);
      }
    }
    if (t < 64) give(p, t, static_cast<unsigned>(t));
  }
};
struct Setmaxnreg {
  FC_DEVICE static void run(const Arguments& p) {
    ptx::setmaxnreg_dec<40>();
    ptx::setmaxnreg_inc<64>();
    give(p, thread(), static_cast<unsigned>(thread()));
  }
};

// --- tensor memory accelerator --------------------------------------------------------------------------------------
// A box of 64 columns × 16 rows in, seen as it lies in shared memory; and out again, partly outside the tensor.
struct Tma {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress tile = ptx::dynamic_shared(), barrier = tile + 16384;
    if (t == 0) {
      ptx::prefetch_tensormap(p.map_in);
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, 4096);
      // The tensor has 24 rows: half of the second box lies outside. Its third dimension is entered at 1.
      ptx::tma_load_4d(tile, p.map_in, barrier, 0, 3, 1, 0);
      ptx::tma_load_4d(tile + 2048, p.map_in, barrier, 0, 16, 0, 0);
    }
    ptx::bar_sync();
    ptx::mbarrier_wait(barrier, 0);
    for (int i = t; i < 1024; i += kThreads) give(p, i, ptx::ld_shared_u32(tile + 4 * i));
    for (int i = t; i < 512; i += kThreads) ptx::st_shared_u32(tile + 8192 + 4 * i, pair<false>(p, i + 77));
    ptx::fence_proxy_async();
    ptx::bar_sync();
    if (t == 0) {
      ptx::tma_store_4d(p.map_out, tile + 8192, 0, 16, 1, 0);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
    }
  }
};

// --- matrix multiply ------------------------------------------------------------------------------------------------
template <bool kBf16>
struct Mma {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    unsigned a[4];
    float d[4];
    for (int i = 0; i < 4; ++i) a[i] = pair<kBf16>(p, 8 * t + i), d[i] = number(p, 1024 + 4 * t + i);
    const unsigned b0 = pair<kBf16>(p, 8 * t + 4), b1 = pair<kBf16>(p, 8 * t + 5);
    if constexpr (kBf16) ptx::mma_m16n8k16_bf16(d, a, b0, b1);
    else ptx::mma_m16n8k16_f16(d, a, b0, b1);
    for (int i = 0; i < 4; ++i) give(p, 4 * t + i, d[i]);
  }
};
// Two steps of k: a from shared memory or registers, b K-major or MN-major, added to what d holds.
template <bool kBf16, int kN, bool kFromRegisters, bool kTransposeB>
struct Wgmma {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    fill_shared<kBf16>(p, 6144);
    const ptx::SharedAddress smem_a = ptx::dynamic_shared(), smem_b = smem_a + 8192;
    ptx::fence_proxy_async();
    ptx::bar_sync();
    float d[kN / 2];
    for (int i = 0; i < kN / 2; ++i) d[i] = number(p, 1024 + (t * 7 + i) % 1024);
    unsigned a[2][4];
    for (int k = 0; k < 2; ++k)
      for (int i = 0; i < 4; ++i) a[k][i] = pair<kBf16>(p, 8 * t + 4 * k + i);
    const ptx::WgmmaDescriptor first_a = ptx::WgmmaDescriptor::of(smem_a, 16);
    const ptx::WgmmaDescriptor first_b = ptx::WgmmaDescriptor::of(smem_b, kTransposeB ? 8192 : 16);
    ptx::wgmma_registers(d);
    ptx::wgmma_registers(a[0]);
    ptx::wgmma_registers(a[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const unsigned long long b = first_b.advanced(kTransposeB ? 2048 * k : 32 * k).word();
      if constexpr (kFromRegisters) ptx::wgmma_rs<kBf16, kTransposeB>(d, a[k], b, 1);
      else ptx::wgmma_ss<kBf16>(d, first_a.advanced(32 * k).word(), b, k);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(d);
    for (int i = 0; i < kN / 2; ++i) give(p, t * (kN / 2) + i, d[i]);
  }
};

template <class Test>
FC_KERNEL(kThreads, 1)
conform(const __grid_constant__ Arguments p) {
  Test::run(p);
}

}  // namespace flashcore::conformance
