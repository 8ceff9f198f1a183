#pragma once
// Whether a sequence's results keep their bits among other neighbours: the promise of kernels/batch_invariant.h, tried.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/operands.h"
#include "device/device.h"
#include "kernels/family.h"

namespace flashcore {

// One batch that holds the sequence.
struct Neighbourhood {
  PlacedProblem problem;                   // the bounds of its lengths, the layout and the size of pages
  std::vector<SequenceLengths> sequences;  // the lengths, each within the bounds
  std::int64_t place = 0;                  // of the sequence among them
  // Of a ragged batch: the sequences lie as if all were as long as they may be, and seqused_q and seqused_kv say how
  // long they are. Else they are packed.
  bool is_padded = false;

  std::string words() const;  // "2 of 5 in b5_h4_hk2_sq9_sk80_d64_bf16_raggedfull_page16, padded"
};

// A sequence, by itself and in batches that differ in all that another batch may have otherwise.
struct NeighbourCase {
  std::uint64_t seed = 0;  // of the data
  SequenceLengths lengths;
  std::vector<Neighbourhood> neighbourhoods;  // the first is the sequence alone
};

// The case that (seed, index) names. None if no family of the device promises equal bits for anything drawn (200
// tries), or none but `candidate`'s is wanted and it supports nothing.
std::optional<NeighbourCase> random_neighbours(std::uint64_t seed, std::uint64_t index, int neighbourhoods,
                                               const DeviceInfo& device, const std::string& candidate = {});

// What is judged: the candidate of batch_invariant_choice, or the one that `pinned` names ("sm80_decode_fwd:..."), to
// see what others do.
Candidate neighbour_candidate(const Problem& problem, const DeviceInfo& device, const std::string& pinned = {});

struct NeighbourVerdict {
  int compared = 0;  // neighbourhoods beside the first
  // Of which bits differ: which, where first, and by how much; all if it is wrong. A kernel that does not compile, or
  // faults, has no bits.
  std::vector<std::string> different;
  bool faulted = false;  // the device launches nothing more; neighbourhoods after that one are not compared
  std::string lacking;   // what the machine had not: so are they then
};
NeighbourVerdict judge_neighbours(Device& device, const NeighbourCase& given, const std::string& pinned = {});

}  // namespace flashcore
