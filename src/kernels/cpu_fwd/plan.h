#pragma once
// What the SIMD code and its driver agree on: one launch (Plan), one thread's piece of it (Task).

#include <algorithm>
#include <cstdint>

#include "core/band.h"
#include "kernels/cpu_fwd/config.h"
#include "kernels/cpu_fwd/functions.h"

namespace flashcore::cpu_fwd {

// Rows of the heads that share a kv head are worked on together, so that its keys are packed once for all of them.
// Row r is query r / group of head r % group: neighbours see nearly the same keys under a causal mask.
struct Plan {
  ForwardParams params{};
  Traits traits{};
  Config config{};
  Band<int> band{};
  float softmax_scale = 1;  // of what the functions of scores make of q · k
  ScoreParams score{};
  // Functions of the user's own; null: none. They take and give natural units, of which `unit` are softmax_scale.
  const Functions* functions = nullptr;
  float unit = 1;
  ScratchLayout scratch{};
  int group = 1;              // query heads per kv head
  std::int64_t rows = 0;      // seqlen_q * group
  float* partials = nullptr;  // kv_split > 1: see PartialRow
  float* amax = nullptr;      // of scores and of o, by query head; null: not asked for

  int query_of(std::int64_t row) const { return static_cast<int>(row / group); }
  int head_of(int head_kv, std::int64_t row) const { return head_kv * group + static_cast<int>(row % group); }
  bool transforms_scores() const { return flashcore::transforms_scores(traits); }
  // ALiBi's, in units of softmax_scale.
  float slope_of(int batch, int head) const {
    if (traits.alibi == 0) return 0;
    return score.alibi[(traits.alibi == 2 ? batch * params.heads_q : 0) + head] * score.slope_scale;
  }
  // What rows first .. last see between them.
  KeyRange<int> visible_keys(std::int64_t first, std::int64_t last) const {
    return band.keys_of_any(query_of(first), query_of(last));
  }

  // With kv_split > 1 every (batch, kv head, split, row) leaves its state here: o_stride floats of o, then row_max
  // and row_sum.
  std::int64_t partial_stride() const { return scratch.o_stride + 2; }
  float* partial(int b, int head_kv, int split, std::int64_t row) const {
    const std::int64_t head = std::int64_t{b} * params.heads_kv + head_kv;
    return partials + ((head * config.kv_split + split) * rows + row) * partial_stride();
  }
};

struct Task {
  int batch = 0, head_kv = 0;
  std::int64_t row_begin = 0;
  int row_count = 0;  // at most block_m
  int split = 0;
  int key_begin = 0, key_end = 0;  // this split's keys, visible or not
};

// Ways to be wrong on purpose: tests compile broken copies of the kernel and show that the correctness bound catches
// them. A compile-time argument, so that the library holds none of them.
enum class Fault { kNone, kWrongTail, kMissingMask, kMissingRescale };

// `scratch`: plan.scratch.floats floats, 64-byte aligned, of the calling thread's own.
using AttendFunction = void (*)(const Plan& plan, const Task& task, float* scratch);

// The best instruction set of this machine (kernel.cpp).
void attend(const Plan& plan, const Task& task, float* scratch);
// Merges the partial rows of all splits into the output; task.split and its keys are not looked at.
void combine(const Plan& plan, const Task& task, float* scratch);

}  // namespace flashcore::cpu_fwd
