#include "api/launch_template.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace flashcore::api {
namespace {

// 16-byte aligned, unlike any size or stride, and never followed.
const void* made_up(std::size_t which, std::uintptr_t variant) {
  return reinterpret_cast<const void*>((std::uintptr_t{0x5a5a} << 32) + (variant << 24) + ((which + 1) << 16));
}

Addresses made_up_addresses(std::uintptr_t variant) {
  Addresses addresses;
  for (std::size_t which = 0; which < kAddressCount; ++which) addresses[which] = made_up(which, variant);
  return addresses;
}

LaunchSpec spec_of(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                   const ProblemLayouts& layouts, const Addresses& a) {
  AttentionArgs args;
  args.q = a[0];
  args.k = a[1];
  args.v = a[2];
  args.o = const_cast<void*>(a[3]);
  args.lse = static_cast<float*>(const_cast<void*>(a[4]));
  args.workspace = const_cast<void*>(a[5]);
  args.layouts = layouts;
  return candidate.family->launch_spec(candidate.config, problem, limits, args);
}

std::uintptr_t word_at(const LaunchSpec& spec, std::size_t offset) {
  std::uintptr_t word = 0;
  std::memcpy(&word, spec.params.data() + offset, sizeof(word));
  return word;
}

std::size_t which_of(const void* address, const Addresses& addresses, const Candidate& candidate) {
  const auto found = std::find(addresses.begin(), addresses.end(), address);
  if (found == addresses.end())
    throw_internal("{} derives something other than an address from the addresses it is given", candidate.print());
  return static_cast<std::size_t>(found - addresses.begin());
}

}  // namespace

LaunchTemplate::LaunchTemplate(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits,
                               const ProblemLayouts& layouts) {
  const Addresses first = made_up_addresses(1), second = made_up_addresses(2);
  spec_ = spec_of(candidate, problem, limits, layouts, first);
  const LaunchSpec other = spec_of(candidate, problem, limits, layouts, second);
  if (spec_.params.size() > kMaxParamBytes)
    throw_internal("{} takes {} bytes of parameters, more than {}", candidate.print(), spec_.params.size(),
                   kMaxParamBytes);
  FC_CHECK(spec_.params.size() == other.params.size() && spec_.params.size() % sizeof(void*) == 0);
  for (std::size_t offset = 0; offset < spec_.params.size(); offset += sizeof(void*)) {
    const std::uintptr_t word = word_at(spec_, offset);
    if (word == word_at(other, offset)) continue;
    const std::size_t which = which_of(reinterpret_cast<const void*>(word), first, candidate);
    FC_CHECK(second[which] == reinterpret_cast<const void*>(word_at(other, offset)));
    places_.push_back({offset, which});
  }
  for (const TensorMapSpec& map : spec_.tensor_maps) maps_.push_back({map, which_of(map.address, first, candidate)});
}

void LaunchTemplate::encode(Device& device, const void* somewhere) {
  for (std::size_t i = 0; i < maps_.size(); ++i) spec_.tensor_maps[i].address = somewhere;
  device.encode_tensor_maps(spec_);
}

void LaunchTemplate::write(Device& device, const Addresses& addresses, std::span<std::byte> params) const {
  FC_CHECK(params.size() == spec_.params.size());
  std::memcpy(params.data(), spec_.params.data(), params.size());
  for (const Place& place : places_) std::memcpy(params.data() + place.offset, &addresses[place.which], sizeof(void*));
  for (const Map& map : maps_) device.readdress_tensor_map(map.spec, addresses[map.which], params);
}

}  // namespace flashcore::api
