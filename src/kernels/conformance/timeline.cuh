#pragma once
// The micro-test of time stamps.

#include "kernels/conformance/common.cuh"
#include "kernels/ptx/timeline.cuh"

namespace flashcore::conformance {

// A track of each warp, with more marks than have room; then whether it says what it should.
struct TimeStamps {
  FC_DEVICE static void run(const Arguments& p) {
    constexpr int kBytes = 256, kFirstWord = 256, kRoom = 24, kMarks = 30;
    const int t = thread(), warp = t / 32;
    if (t == 0) ptx::Tracks<kBytes>::place(reinterpret_cast<unsigned long long>(p.out + kFirstWord), kThreads / 32, 1);
    ptx::bar_sync();
    ptx::Tracks<kBytes> track;
    track.begin(7);
    const bool begun = track.next != 0;
    for (int i = 0; i < kMarks; ++i) track.mark(static_cast<unsigned>(i + 1));
    track.end();
    ptx::bar_sync();
    bool right = begun == (t % 32 == 0);
    if (begun) {
      const unsigned* own = p.out + kFirstWord + warp * kBytes / 4;
      const ptx::Vector4 who = ptx::ld_global_v4(own), room = ptx::ld_global_v4(own + 8);
      right = right && who.x == 7 && who.y == 0 && who.z == static_cast<unsigned>(warp) && room.x == kMarks - kRoom;
      unsigned before = ptx::ld_global_v4(own + 16).x;
      for (int i = 0; i < kRoom; i += 2) {
        const ptx::Vector4 two = ptx::ld_global_v4(own + 16 + 2 * i);
        right = right && two.y == static_cast<unsigned>(i + 1) && two.w == static_cast<unsigned>(i + 2);
        right = right && two.x - before < 1u << 31 && two.z - two.x < 1u << 31;
        before = two.z;
      }
    }
    ptx::bar_sync();
    give(p, t, static_cast<unsigned>(right));
    for (int i = kThreads + t; i < kFirstWord + kThreads * kBytes / 128; i += kThreads) give(p, i, 0u);
  }
};

}  // namespace flashcore::conformance
