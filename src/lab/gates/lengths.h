#pragma once
// Lengths and boundaries of a ragged batch's sequences that a launch reads on the device.

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "core/boundaries.h"
#include "lab/gates/calls.h"

namespace flashcore {

class DeviceLengths {
 public:
  DeviceLengths(Device& device, const std::vector<std::int32_t>& lengths);
  void store(const std::vector<std::int32_t>& lengths);  // as many as before
  const std::int32_t* data() const { return static_cast<const std::int32_t*>(buffer_->data()); }

 private:
  Device& device_;
  std::unique_ptr<Buffer> buffer_;
};

// NaN in all rows of those sequences, which lie at `boundaries`.
Reference without_sequences(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                            const Boundaries& boundaries, const std::set<std::size_t>& sequences);

// Part of check_lengths: boundaries that fall, that are negative or that lie beyond the tensor or the bound give NaN in
// the rows of their sequence that the tensor has, and change no other row. The launch that was bound before serves
// possible ones after them.
std::optional<CallFault> check_impossible_boundaries(const JudgedCall& call, nlohmann::json& evidence);

}  // namespace flashcore
