#pragma once
// Micro-tests of what threads do together: shuffles, votes, barriers, registers.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/ptx/shuffle.cuh"

namespace flashcore::conformance {

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

}  // namespace flashcore::conformance
