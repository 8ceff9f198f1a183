#pragma once
// Where a candidate is timed: its buffers, its launches, its timers.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "device/device.h"
#include "kernels/family.h"
#include "lab/harness/compiled_candidate.h"
#include "lab/harness/operands.h"
#include "lab/harness/oracle.h"

namespace flashcore {

// One place in memory to run at: the tensors of one call, or, for the cold regime, as many copies of them as fill twice
// the last-level cache.
class BufferSet {
 public:
  BufferSet(Device& device, const PlacedProblem& problem, Regime regime, const AttentionInputs& inputs);
  void poison_outputs();
  int copies() const { return static_cast<int>(copies_.size()); }
  Operands& copy(int i) const { return *copies_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<std::unique_ptr<Operands>> copies_;
};

// Wraps the launches that the timer makes: the self-test of the measurement slows one side by a known
// amount with it (slowdown.h). Empty: nothing.
using LaunchWrapper = std::function<Launch(Launch)>;

struct PrepareOptions {
  Regime regime = Regime::kGraph;
  double sample_us = 0;  // at least so long is a sample; 0: the device's default
};

struct JudgedOutputs {
  std::string wrong;  // what is wrong with them; empty: nothing
  OutputError error;  // of the first copy, against the reference
};

// A compiled candidate, loaded and bound to every set, with a timer for each.
class PreparedCandidate {
 public:
  PreparedCandidate(Device& device, const PlacedProblem& problem, const CompiledCandidate& compiled,
                    const PrepareOptions& options, const std::vector<BufferSet*>& sets, LaunchWrapper wrapper = {});
  Sample sample(int set) {
    ++samples_taken_;
    return at(set).timer->sample();
  }
  std::int64_t samples_taken() const { return samples_taken_; }
  void use_launches(int launches);
  // New launches and timers on the same sets, with the same number of launches per sample: what a candidate allocates
  // for itself moves to another place.
  void bind_again();
  int launches_per_sample() const { return places_.front()->timer->launches_per_sample(); }

  int sets() const { return static_cast<int>(places_.size()); }
  BufferSet& buffers(int set) const { return *at(set).buffers; }
  // A launch on one copy of a set, outside of any timer: for audits of what the timed launches do.
  const Launch& launch(int set, int copy) const { return at(set).launches[static_cast<std::size_t>(copy)]; }

  // Poisons a set's outputs and takes one more sample of each copy, so that what is judged then is of those.
  void refresh_outputs(int set);
  // The outputs that lie in a set: those of its last samples, or after refresh_outputs certainly of no launch before.
  JudgedOutputs judge_outputs(int set, const PlacedProblem& problem, const Oracle& oracle) const;

 private:
  struct Place {
    BufferSet* buffers = nullptr;
    std::vector<Launch> launches;
    std::unique_ptr<Timer> timer;
  };
  void bind(Place& place, double sample_us);
  Place& at(int set) const { return *places_[static_cast<std::size_t>(set)]; }

  Device* device_;
  PrepareOptions options_;
  LaunchWrapper wrapper_;
  LoadedCandidate loaded_;
  std::vector<std::unique_ptr<Place>> places_;
  std::int64_t samples_taken_ = 0;
  std::vector<std::vector<std::byte>> padding_;  // what makes the next allocation land elsewhere
  SplitMix random_{0x70616464696e67};
};

}  // namespace flashcore
