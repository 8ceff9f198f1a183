#include "core/drawn_scores.h"

#include <cmath>
#include <limits>

#include "core/random.h"

namespace flashcore {
namespace {

// A sink far above scores that softcap, slopes or a function keep small leaves an o that fp16 and 8 bits have not.
bool is_o_lost_beside(const Problem& problem) {
  const bool has_range = problem.output_dtype() == DType::kBF16 || problem.output_dtype() == DType::kF32;
  return !has_range && (problem.transforms_scores() || problem.has_score_expression());
}

// What a query head's sink is. Of most patterns it weighs about as much as a row's keys; of others it is larger or
// smaller than a kernel may have thought of. `chance` is N(0, 1).
double sink_of(const Problem& problem, Pattern pattern, std::uint64_t seed, std::int64_t head, double chance) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const double plain = std::log(static_cast<double>(problem.seqlen_kv + 1)) / 2 + 1.5 * chance;
  switch (pattern) {
    case Pattern::kPeaked: return (is_o_lost_beside(problem) ? 6 : 26) + plain;  // the keys' maximum is about 30
    case Pattern::kOutlier: return -20 + plain;
    case Pattern::kLargeLogits: return head % 2 == 0 ? 100 : -100;
    case Pattern::kNonFinite:
      // Of a head whose sink is NaN nothing else shows: most have numbers.
      switch ((static_cast<std::uint64_t>(head) + seed) % 8) {
        case 1: return nan;
        case 3: return -inf;
        case 6: return inf;
        default: return plain;
      }
    default: return plain;
  }
}

// Slopes as models have them (2^-8h/H), each head's its own; of one pattern in turn the other way, none, and such.
double slope_of(Pattern pattern, std::int64_t index, std::int64_t heads, double chance) {
  const double slope =
      std::exp2(-8 * static_cast<double>(index % heads + 1) / static_cast<double>(heads)) * (0.75 + 0.5 * chance);
  if (pattern != Pattern::kOutlier) return slope;
  return index % 3 == 0 ? -slope : index % 3 == 1 ? 0 : slope;
}

}  // namespace

void draw_scores(const Problem& problem, Pattern pattern, std::uint64_t seed, AttentionInputs& in) {
  constexpr std::uint64_t kStream = 0x51;
  SplitMix random(split_mix_finish(seed + kSplitMixStep * kStream));
  for (std::int64_t h = 0; h < problem.sink_count(); ++h)
    in.sink.push_back(static_cast<float>(sink_of(problem, pattern, seed, h, random.normal())));
  for (std::int64_t i = 0; i < problem.alibi_count(); ++i)
    in.alibi.push_back(static_cast<float>(slope_of(pattern, i, problem.heads_q, random.uniform())));
}

}  // namespace flashcore
