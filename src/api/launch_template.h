#pragma once
// A launch whose addresses are still open. Families write addresses into the parameter bytes and tensor maps of a
// LaunchSpec; here they are found once, so that a launch copies the bytes, puts the caller's addresses in their places,
// and goes.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/family.h"

namespace flashcore::api {

// In this order: q, k, v, o, lse, workspace.
using Addresses = std::array<const void*, 6>;
inline constexpr std::size_t kAddressCount = std::tuple_size_v<Addresses>;

class LaunchTemplate {
 public:
  // Asks the family twice, for different made-up addresses: what differs is where an address stands. Error kInternal if
  // anything else differs, or if the parameters do not fit kMaxParamBytes.
  LaunchTemplate(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                 const ProblemLayouts& layouts);

  static constexpr std::size_t kMaxParamBytes = 4096;  // what every CUDA version takes

  bool empty() const { return spec_.grid.x == 0 || spec_.grid.y == 0 || spec_.grid.z == 0; }
  bool has_tensor_maps() const { return !maps_.empty(); }
  const LaunchSpec& spec() const { return spec_; }

  // Encodes the tensor maps; `somewhere` is memory of the device that they point at until a launch says where.
  void encode(Device& device, const void* somewhere);
  // Writes the parameters of a launch on these addresses; `params` has spec().params.size() bytes, 64-byte aligned.
  void write(Device& device, const Addresses& addresses, std::span<std::byte> params) const;

 private:
  struct Place {
    std::size_t offset;  // of 8 bytes in the parameters
    std::size_t which;   // of Addresses
  };
  struct Map {
    TensorMapSpec spec;
    std::size_t which;
  };
  LaunchSpec spec_;
  std::vector<Place> places_;
  std::vector<Map> maps_;
};

}  // namespace flashcore::api
