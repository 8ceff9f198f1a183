#pragma once
// Time stamps of a warp, in global memory: the tracks of a timeline (kernels/tile/timeline.cuh). Only instrumented
// builds call this. PTX ISA, "Special Registers: %clock, %clock64, %globaltimer, %smid, %laneid".

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Where the tracks lie: the first one's address, and how many there are with, in the upper half, the distance of the
// CTAs that are recorded.
template <int kBytes>
__device__ unsigned long long track_places[2];

// The track of the calling warp: kBytes of memory, a power of two, at a multiple of that. It begins with a TrackHeader
// (kernels/tile/activity.h), which each launch writes anew. Records of 8 bytes follow: the clock, and a tag. A track
// that is full counts what it drops.
template <int kBytes>
struct Tracks {
  // Where the next record goes. At a multiple of kBytes: the track is full. Zero: this thread writes none. So one
  // comparison decides, and predicates rather than a branch stand between asynchronous multiplies.
  unsigned long long next = 0;

  FC_DEVICE static void place(unsigned long long address, unsigned tracks, unsigned stride) {
    track_places<kBytes>[0] = address;
    track_places<kBytes>[1] = tracks | static_cast<unsigned long long>(stride) << 32;
  }

  // By all lanes of a warp that has a role, or by the only one that has it, which is the first.
  FC_DEVICE void begin(unsigned role) {
    next = 0;
    const unsigned long long counts = track_places<kBytes>[1];
    const unsigned tracks = static_cast<unsigned>(counts), stride = static_cast<unsigned>(counts >> 32);
    const unsigned cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned warp = threadIdx.x / 32, track = stride == 0 ? 0 : cta / stride * (blockDim.x / 32) + warp;
    if (threadIdx.x % 32 != 0 || track >= tracks || cta % stride != 0) return;
    const unsigned long long at = track_places<kBytes>[0] + static_cast<unsigned long long>(track) * kBytes;
    unsigned long long clock, time;
    unsigned sm;
    asm volatile("mov.u64 %0, %%globaltimer;\nmov.u64 %1, %%clock64;\nmov.u32 %2, %%smid;"
                 : "=l"(time), "=l"(clock), "=r"(sm)::"memory");
    asm volatile(
        "st.global.v4.u32 [%0], {%1, %2, %3, %4};\nst.global.v2.u64 [%0+16], {%5, %6};\n"
        "st.global.v2.u64 [%0+32], {%7, %7};\nst.global.v2.u64 [%0+48], {%7, %7};" ::"l"(at),
        "r"(role), "r"(cta), "r"(warp), "r"(sm), "l"(clock), "l"(time), "l"(0ull)
        : "memory");
    next = at + 64;
  }

  FC_DEVICE void mark(unsigned tag) {
    asm volatile(
        "{\n.reg .pred p, q;\n.reg .b32 low, now;\n"
        "cvt.u32.u64 low, %0;\nand.b32 low, low, %2;\n"
        "setp.ne.u32 p, low, 0;\nsetp.eq.u32 q, low, 0;\nsetp.ne.and.u64 q, %0, 0, q;\n"
        "mov.u32 now, %%clock;\n"
        "@p st.global.v2.u32 [%0], {now, %1};\n"
        "@q red.global.add.u32 [%0+%3], 1;\n"
        "@p add.u64 %0, %0, 8;\n}"
        : "+l"(next)
        : "r"(tag), "n"(kBytes - 1), "n"(32 - kBytes)
        : "memory");
  }

  FC_DEVICE void end() {
    if (next == 0) return;
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    const unsigned long long at = (next - 1) & ~static_cast<unsigned long long>(kBytes - 1);
    asm volatile("st.global.u64 [%0+40], %1;" ::"l"(at), "l"(time) : "memory");
    next = 0;
  }
};

}  // namespace flashcore::ptx
