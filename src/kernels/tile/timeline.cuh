#pragma once
// Marks of a timeline. A role says when it begins, what it does from here on, and when it ends. In a normal build that
// is nothing; in an instrumented one each mark is a record in the warp's track.

#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/timeline.cuh"
#include "kernels/tile/activity.h"
#include "kernels/tile/timeline_build.h"

namespace flashcore::tile {

template <int kBytes>
struct MarksOf {
  ptx::Tracks<kBytes> track;

  FC_DEVICE void begin_role(Role role) {
    track.begin(kTrackMark + static_cast<unsigned>(role));
    mark(Activity::kSetUp);
  }
  // `item`: the block of keys, or whatever tells one from another.
  FC_DEVICE void mark(Activity activity, int item = 0) {
    track.mark(static_cast<unsigned>(activity) << kItemBits | (static_cast<unsigned>(item) & ((1u << kItemBits) - 1)));
  }
  FC_DEVICE void end_role() {
    mark(Activity::kEnd);
    track.end();
  }
};

template <>
struct MarksOf<0> {
  FC_DEVICE void begin_role(Role) {}
  FC_DEVICE void mark(Activity, int = 0) {}
  FC_DEVICE void end_role() {}
};

// To derive from.
using Marks = MarksOf<kTrackBytes>;

// Of instrumented builds, before the first launch of their kernel.
template <int kBytes>
FC_KERNEL(32, 1)
place_tracks(const __grid_constant__ TrackPlaces places) {
  if (ptx::tid_x() == 0) ptx::Tracks<kBytes>::place(places.address, places.tracks, places.stride);
}

}  // namespace flashcore::tile
