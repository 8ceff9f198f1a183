#pragma once
// Micro-tests of votes, small matrix loads and stores, atomics and the clock.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/atomic_float.cuh"
#include "kernels/ptx/atomic_max.cuh"
#include "kernels/ptx/globaltimer.cuh"
#include "kernels/ptx/matrix_tiles.cuh"
#include "kernels/ptx/vote.cuh"

namespace flashcore::conformance {

struct Votes {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    give(p, t, static_cast<unsigned>(ptx::vote_all(t < 64 || t % 2 == 0)));
    give(p, kThreads + t, ptx::vote_ballot(t % 3 == 0 || t > 100));
    const float value = number(p, 200 + t);
    int at = 2;
    const int deltas[] = {1, 5, 16, 31};
    for (const int delta : deltas) {
      give(p, at++ * kThreads + t, ptx::shfl_up(value, delta));
      give(p, at++ * kThreads + t, ptx::shfl_down(value, delta));
    }
  }
};
// One lane, the same each time.
struct Elect {
  FC_DEVICE static void run(const Arguments& p) {
    const unsigned elected = ptx::vote_ballot(ptx::elect()), again = ptx::vote_ballot(ptx::elect());
    give(p, thread(), static_cast<unsigned>(elected != 0 && (elected & (elected - 1)) == 0 && elected == again));
  }
};
// It moves on, never back; two million readings are at least some milliseconds.
struct Timer {
  FC_DEVICE static void run(const Arguments& p) {
    const unsigned long long begin = ptx::globaltimer();
    unsigned long long now = begin;
    bool forward = true;
    for (int i = 0; i < 2000000 && now == begin; ++i) {
      now = ptx::globaltimer();
      forward = forward && now >= begin;
    }
    give(p, thread(), static_cast<unsigned>(forward && now > begin && begin > 0));
  }
};
struct TileLoads {
  FC_DEVICE static void run(const Arguments& p) {
    fill_shared<false>(p, 1024);
    const int t = thread(), lane = t % 32;
    const ptx::SharedAddress row = ptx::dynamic_shared() + t / 32 * 512 + (lane * 5 % 32) * 16;
    unsigned one[1], two[2];
    ptx::ldmatrix_x1(one, row);
    give(p, t, one[0]);
    ptx::ldmatrix_x1_trans(one, row);
    give(p, kThreads + t, one[0]);
    ptx::ldmatrix_x2(two, row);
    for (int i = 0; i < 2; ++i) give(p, (2 + i) * kThreads + t, two[i]);
    ptx::ldmatrix_x2_trans(two, row);
    for (int i = 0; i < 2; ++i) give(p, (4 + i) * kThreads + t, two[i]);
  }
};
struct TileStores {
  FC_DEVICE static void run(const Arguments& p) {
    constexpr int kArea = 2048;
    fill_shared<false>(p, 5 * kArea / 4);
    const int t = thread(), lane = t % 32;
    const ptx::SharedAddress row = ptx::dynamic_shared() + t / 32 * 512 + (lane * 5 % 32) * 16;
    unsigned tile[4];
    for (int i = 0; i < 4; ++i) tile[i] = word(p, kRawWords + 4 * t + i);
    ptx::stmatrix_x1(row, tile[0]);
    ptx::stmatrix_x1_trans(row + kArea, tile[0]);
    ptx::stmatrix_x2(row + 2 * kArea, tile[0], tile[1]);
    ptx::stmatrix_x2_trans(row + 3 * kArea, tile[0], tile[1]);
    ptx::stmatrix_x4_trans(row + 4 * kArea, tile[0], tile[1], tile[2], tile[3]);
    ptx::bar_sync();
    for (int i = t; i < 5 * kArea / 4; i += kThreads) give(p, i, ptx::ld_shared_u32(ptx::dynamic_shared() + 4 * i));
  }
};
// Every thread adds the same: each finds another number before, whatever the order.
struct AtomicSums {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    const ptx::SharedAddress shared = ptx::dynamic_shared();
    if (t < 2) ptx::st_shared_u32(shared + 4 * t, 0);
    ptx::bar_sync();
    const float global = ptx::atomic_add_global_f32(reinterpret_cast<float*>(p.out), 0.25f);
    const unsigned before = ptx::atomic_add_shared_u32(shared, 3);
    const float before_f32 = ptx::atomic_add_shared_f32(shared + 4, 1.5f);
    give(p, 4 + static_cast<int>(global * 4.0f), 7u);
    give(p, 4 + kThreads + static_cast<int>(before / 3), 8 + before % 3);
    give(p, 4 + 2 * kThreads + static_cast<int>(before_f32 / 1.5f), 9u);
    ptx::bar_sync();
    if (t < 2) give(p, 1 + t, ptx::ld_shared_u32(shared + 4 * t));
  }
};
// A word of each thread's own, raised and then not, what it found the second time, and a word that all raise.
struct AtomicMax {
  FC_DEVICE static void run(const Arguments& p) {
    const int t = thread();
    unsigned* word = p.out + t;
    (void)ptx::atomic_max_global(word, 0x80000000u + t);
    const unsigned before = ptx::atomic_max_global(word, 5u);
    give(p, kThreads + t, before);
    (void)ptx::atomic_max_global(p.out + 2 * kThreads, static_cast<unsigned>(t * 37 % kThreads));
  }
};

}  // namespace flashcore::conformance
