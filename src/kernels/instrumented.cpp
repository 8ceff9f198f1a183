#include "kernels/instrumented.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

constexpr const char* kMarksPath = "tile/timeline.cuh";
constexpr const char* kTimelineBuildPath = "tile/timeline_build.h";

}  // namespace

std::optional<std::string> why_no_marks(const Family& family) {
  if (family.kind() == DeviceKind::kCpu)
    return fmt::format("{} runs on a CPU, and only kernels of GPUs have marks", family.name());
  const std::string file = family.name().substr(0, family.name().find('+')) + "/kernel.cuh";
  const std::vector<std::string> sources = include_closure(file, device_sources());
  if (std::find(sources.begin(), sources.end(), kMarksPath) == sources.end())
    return fmt::format("the kernel of {} has no marks", family.name());
  return std::nullopt;
}

std::vector<std::string> families_with_marks() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) {
    if (!why_no_marks(*family)) names.push_back(family->name());
  }
  return names;
}

KernelSource InstrumentedFamily::source(const ConfigValues& config, const Problem& problem,
                                        const DeviceLimits& limits) const {
  KernelSource source = base().source(config, problem, limits);
  source.headers[kTimelineBuildPath] =
      fmt::format("#pragma once\nnamespace flashcore::tile {{\nenum : int {{ kTrackBytes = {} }};\n}}\n", track_bytes_);
  source.more_kernels.push_back({fmt::format("flashcore::tile::place_tracks<{}>", track_bytes_), 0, 32});
  return source;
}

LaunchSpec InstrumentedFamily::place_tracks(const ConfigValues& config, const Problem& problem,
                                            const DeviceLimits& limits, const tile::TrackPlaces& places) const {
  FC_CHECK(places.address % static_cast<unsigned>(track_bytes_) == 0);
  LaunchSpec launch;
  launch.block.x = 32;
  launch.kernel = static_cast<unsigned>(source(config, problem, limits).more_kernels.size());
  launch.params.resize(sizeof places);
  std::memcpy(launch.params.data(), &places, sizeof places);
  return launch;
}

}  // namespace flashcore
