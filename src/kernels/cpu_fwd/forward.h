#pragma once
// One launch of cpu_fwd: cuts a problem into tasks and runs them on the thread pool.

#include <functional>
#include <optional>

#include "core/problem.h"
#include "device/cpu/aligned_memory.h"
#include "kernels/cpu_fwd/plan.h"
#include "kernels/family.h"

namespace flashcore::cpu_fwd {

// Floats that the splits leave for the merge; 0 without a split.
std::int64_t partial_floats(const Config& config, const Problem& problem);

// Everything a launch needs is allocated when it is made. Launches of one object must not overlap: they share its
// scratch memory.
class Forward {
 public:
  Forward(const Config& config, const Problem& problem, const AttentionArgs& args,
          AttendFunction attend_function = attend);
  void operator()();

 private:
  std::int64_t row_blocks() const;
  Task make_task(std::int64_t index) const;
  void for_each_task(std::int64_t count, const std::function<void(std::int64_t, float*)>& body);

  Plan plan_;
  std::optional<Functions> functions_;
  AttendFunction attend_;
  int threads_;
  std::size_t scratch_floats_;  // of a thread
  AlignedMemory scratch_;       // threads_ × scratch_floats_
  AlignedMemory partials_;      // kv_split > 1
};

}  // namespace flashcore::cpu_fwd
