#pragma once
// Lengths and boundaries of a ragged batch's sequences that a launch reads on the device.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
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

// Launches once with lse and once without, since a kernel may take another path without it. The second one's outputs
// borrow the first one's lse, so that they can be judged.
class LaunchesByLse {
 public:
  LaunchesByLse(const JudgedCall& call, const AttentionArgs& args, bool also_without = true);
  // The first fault that judge(outputs, "" or "without lse ") finds, or an lse that the second one wrote. The second
  // one is of the first time alone: an emulated launch of 260 sequences takes seconds.
  std::optional<CallFault> judge(
      Check check, const std::function<std::optional<CallFault>(AttentionOutputs&, const std::string&)>& judge);

 private:
  const JudgedCall& call_;
  Launch with_, without_;
  bool is_second_left_;
};

// NaN in all rows of those sequences, which lie at `boundaries`.
Reference without_sequences(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                            const Boundaries& boundaries, const std::set<std::size_t>& sequences);

// The rows of all sequences from where they lie to where they are packed. What is left there is another sequence's.
void pack_rows(AttentionOutputs& outputs, const Boundaries& from, const Boundaries& to);

// Part of check_lengths: the set's sequences behind rows and keys that none has. Leaves oracle.inputs in the operands.
std::optional<CallFault> check_moved_sequences(const JudgedCall& call, const ShorterSequences& set);
// Part of check_lengths: boundaries that fall, that are negative or that lie beyond the tensor or the bound give NaN in
// the rows of their sequence that the tensor has, and change no other row. The launch that was bound before serves
// possible ones after them.
std::optional<CallFault> check_impossible_boundaries(const JudgedCall& call, nlohmann::json& evidence);

}  // namespace flashcore
