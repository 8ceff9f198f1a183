#pragma once
// A family as an instrumented build, whose kernels leave time stamps: the marks of kernels/tile/timeline.cuh. The same
// source and the same launches; the compiler is handed another kernels/tile/timeline_build.h.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/derived_family.h"
#include "kernels/tile/activity.h"

namespace flashcore {

// Why its kernel leaves none, in words; none if it does.
std::optional<std::string> why_no_marks(const Family& family);
// The names of the registry's families that have marks.
std::vector<std::string> families_with_marks();

class InstrumentedFamily final : public DerivedFamily {
 public:
  // Tracks of so many bytes, a power of two.
  InstrumentedFamily(const Family& base, int track_bytes) : DerivedFamily(base), track_bytes_(track_bytes) {}

  std::string name() const override { return base().name() + "+timeline"; }
  std::string description() const override { return base().description() + ", instrumented"; }
  KernelSource source(const ConfigValues& config, const Problem& problem, const DeviceLimits& limits) const override;
  const SourceMap* source_overlay() const override { return base().source_overlay(); }
  bool is_foreign() const override { return base().is_foreign(); }

  // The launch that says where the tracks lie, before the first one of the kernel's module.
  LaunchSpec place_tracks(const ConfigValues& config, const Problem& problem, const DeviceLimits& limits,
                          const tile::TrackPlaces& places) const;

 private:
  int track_bytes_;
};

}  // namespace flashcore
