#pragma once
// The clock is the emulator's count of steps. Memory is written past the emulator's eyes: records are no accesses of
// the kernel, and take no step.
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

// Static: an inline variable would be one for all modules of the process.
template <int kBytes>
static unsigned long long track_places[2];

template <int kBytes>
struct Tracks {
  unsigned long long next = 0;

  FC_DEVICE static void place(unsigned long long address, unsigned tracks, unsigned stride) {
    track_places<kBytes>[0] = address;
    track_places<kBytes>[1] = tracks | static_cast<unsigned long long>(stride) << 32;
  }

  FC_DEVICE void begin(unsigned role) {
    next = 0;
    const unsigned long long counts = track_places<kBytes>[1];
    const unsigned tracks = static_cast<unsigned>(counts), stride = static_cast<unsigned>(counts >> 32);
    const auto& services = *flashcore_services;
    const unsigned cta = static_cast<unsigned>(
        services.ctaid(0) + services.nctaid(0) * (services.ctaid(1) + services.nctaid(1) * services.ctaid(2)));
    const unsigned thread = static_cast<unsigned>(services.tid(0)), warp = thread / 32;
    const unsigned track = stride == 0 ? 0 : cta / stride * static_cast<unsigned>(services.warps()) + warp;
    if (thread % 32 != 0 || track >= tracks || cta % stride != 0) return;
    const unsigned long long at = track_places<kBytes>[0] + static_cast<unsigned long long>(track) * kBytes;
    const unsigned words[] = {role, cta, warp, ~0u};
    for (int i = 0; i < 4; ++i) reinterpret_cast<unsigned*>(at)[i] = words[i];
    const unsigned long long times[] = {services.steps(), 0, 0, 0, 0, 0};
    for (int i = 0; i < 6; ++i) reinterpret_cast<unsigned long long*>(at + 16)[i] = times[i];
    next = at + 64;
  }

  FC_DEVICE void mark(unsigned tag) {
    if (next == 0) return;
    if (next % kBytes == 0) {
      ++*reinterpret_cast<unsigned*>(next - kBytes + 32);
      return;
    }
    reinterpret_cast<unsigned*>(next)[0] = static_cast<unsigned>(flashcore_services->steps());
    reinterpret_cast<unsigned*>(next)[1] = tag;
    next += 8;
  }

  FC_DEVICE void end() { next = 0; }
};

}  // namespace flashcore::ptx
