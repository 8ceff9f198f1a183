#pragma once
// Whether a sequence's results keep their bits among other neighbours: the promise of kernels/batch_invariant.h, tried.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/operands.h"
#include "device/device.h"
#include "kernels/family.h"
#include "lab/process/worker.h"

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

// What the sequence gets: of each head, row by row. NaN of equal bits are equal.
struct NeighbourBits {
  std::vector<float> o, lse;
  bool operator==(const NeighbourBits& other) const;
};

// Of one neighbourhood.
struct NeighbourAnswer {
  // What is wrong: bits that differ, a kernel without outputs; of the sequence alone, outputs that are wrong.
  std::string different;
  std::string lacking;   // what the machine had not: nothing is judged
  bool faulted = false;  // the device launches nothing more
};

// On a device of this process.
class NeighbourJudge {
 public:
  using Stage = std::function<void(Gate)>;  // as evaluate() (lab/gates/evaluate.h)

  NeighbourJudge(Device& device, NeighbourCase given, std::string pinned);
  ~NeighbourJudge();
  NeighbourJudge(const NeighbourJudge&) = delete;
  NeighbourJudge& operator=(const NeighbourJudge&) = delete;

  // Of given.neighbourhoods[which]. Whoever did not ask for the first one before has it run all the same.
  NeighbourAnswer judge(std::size_t which, const Stage& stage = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct NeighbourVerdict {
  int compared = 0;  // neighbourhoods beside the first
  // Of which bits differ: where first, and by how much; all if it is wrong alone. A kernel that does not compile,
  // faults or hangs has no bits.
  std::map<std::size_t, std::string> different;
  std::string lacking;  // what the machine had not: neighbourhoods after that one are not compared
};
using AskNeighbour = std::function<NeighbourAnswer(std::size_t which)>;
NeighbourVerdict judge_neighbours(const NeighbourCase& given, const AskNeighbour& ask);

// Asks a NeighbourJudge in a child process, which ends after `timeout_seconds` of one neighbourhood (0: by what that
// computes): a hang or a crash is an answer as others are. `given` is the case that (seed, index, neighbourhoods,
// pinned) name on the worker's device. Throws as Worker::run_task.
struct NeighbourName {
  std::uint64_t seed = 0, index = 0;
  int neighbourhoods = 0;
  std::string pinned = {};
};
AskNeighbour ask_worker(Worker& worker, const NeighbourName& name, const NeighbourCase& given,
                        double timeout_seconds = 0);
// The child's side.
inline constexpr const char* kNeighbourTask = "neighbour";
WorkerTask neighbour_task();

}  // namespace flashcore
