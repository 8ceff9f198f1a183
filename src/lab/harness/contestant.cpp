#include "lab/harness/contestant.h"

#include <fmt/format.h>

#include "core/hash.h"

namespace flashcore {

std::string execution_identity(const Contestant& contestant, const PlacedProblem& problem, const DeviceLimits& limits) {
  Hasher hasher;
  hasher.add(contestant.artifact.code_hash);
  if (contestant.candidate.family->kind() == DeviceKind::kCpu) return hasher.hex();
  AttentionArgs nowhere;
  nowhere.layouts = make_layouts(problem);
  const LaunchSpec spec =
      contestant.candidate.family->launch_spec(contestant.candidate.config, problem, limits, nowhere);
  for (const Dim3& d : {spec.grid, spec.block, spec.cluster}) hasher.add(fmt::format("{} {} {}", d.x, d.y, d.z));
  hasher.add(fmt::format("{} {}", spec.shared_bytes, spec.programmatic));
  for (const TensorMapSpec& map : spec.tensor_maps) {
    for (const std::uint32_t extent : map.box) hasher.add(std::to_string(extent) + " ");
    hasher.add(fmt::format("swizzle {}", static_cast<unsigned>(map.swizzle)));
  }
  hasher.add({reinterpret_cast<const char*>(spec.params.data()), spec.params.size()});
  return hasher.hex();
}

}  // namespace flashcore
