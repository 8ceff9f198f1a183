#pragma once
// Inputs to try a kernel on: deterministic from a seed, the same on every machine.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/expression_range.h"
#include "core/operands.h"
#include "core/words.h"

namespace flashcore {

enum class Pattern {
  kNormal,       // N(0,1) in q, k, v: what timing uses
  kPeaked,       // q rows aligned with one key each: softmax close to one-hot
  kLargeLogits,  // |q·k|·scale in the hundreds to thousands, finite in the dtype: overflow without max subtraction
  kConstant,     // every row of k and v the same: uniform softmax, o = v; every other row's scores are far below zero
  kOutlier,      // N(0,1) with a few elements of v 1000 times larger: a dropped or doubled key shows
  kLongTail,     // one key holds most of each row's weight, the rest is spread over all others, and v has a mean: what
                 // drops small weights shows
  kExtreme,    // logits in the thousands to tens of thousands, and o far from 1: in the thousands to tens of thousands
               // in fp16, about 2^40 and (every other head) 2^-40 in types with that range; but of 8 bits: what
               // clamps scores or outputs shows
  kNonFinite,  // N(0,1) with NaN, +inf and -inf on purpose: in single rows of q and k, in some values of v that every
               // row sees, and in some sinks
  kUnequal,  // q and k of very different size, their products as of N(0,1): q of fp16's subnormal numbers and v too, in
             // other types q beyond fp16's range. What flushes subnormal numbers or converts to fp16 shows
  kPositive,         // N(0,1) with |v|: sums over keys that only grow, where what is cut off of each addend shows
  kOutlierChannels,  // two channels of K far from zero for all keys of a head, as models have them: the scores of a row
                     // share a part that is far from zero, and what rounds them before it is taken from them shows
  kSinks,  // the first keys take nearly all weight of each row, and have small values, as models have them: o is made
           // of the others, and what drops or rounds small weights shows
};

template <>
struct WordsOf<Pattern> {
  static constexpr std::string_view what = "data pattern";
  // In the order in which they are tried, the simplest first: the fuzzer shrinks a failing case towards the first ones.
  static constexpr std::pair<Pattern, std::string_view> table[] = {
      {Pattern::kNormal, "normal"},
      {Pattern::kPeaked, "peaked"},
      {Pattern::kLargeLogits, "large_logits"},
      {Pattern::kConstant, "constant"},
      {Pattern::kOutlier, "outlier"},
      {Pattern::kLongTail, "long_tail"},
      {Pattern::kExtreme, "extreme"},
      {Pattern::kNonFinite, "non_finite"},
      {Pattern::kUnequal, "unequal"},
      {Pattern::kPositive, "positive"},
      {Pattern::kOutlierChannels, "outlier_channels"},
      {Pattern::kSinks, "sinks"},
  };
};
const std::vector<Pattern>& all_patterns();
// Those that a problem is judged on: all, but kPositive of 8 bits only, whose sums alone are cut off that much,
// kUnequal not of these, whose factors make all sizes alike, and kOutlierChannels and kSinks of 8 bits and of quantised
// caches only, which have few bits for what is small beside something large.
std::vector<Pattern> patterns_of(const Problem& problem);

// What a tensor of a score or mask function holds, row-major: fp32, int32 of either sign, or a byte, of which 0 is
// false and each other one true.
struct ElementTensor {
  ExpressionType element = ExpressionType::kFloat;
  ExpressionShape shape;
  std::vector<std::byte> data;

  std::int64_t count() const;
  double at(std::span<const std::int32_t> indices) const;
};

struct AttentionInputs {
  HostTensor q, k, v;
  // Factors of what 8-bit operands store (descale_counts()), by batch entry, then kv head; with Scaling::kToken by
  // batch entry, head, row. Of keys that no sequence has they are NaN.
  std::vector<float> descale_q = {}, descale_k = {}, descale_v = {};
  std::vector<float> sink = {};   // Problem::sink_count() logits, by query head
  std::vector<float> alibi = {};  // Problem::alibi_count() slopes, by batch entry (if there is one for each), then head
  std::vector<ElementTensor> tensors = {};  // of Problem::tensors
  std::int64_t first_batch = 0;  // what functions are told of batch entry 0: of one sequence of a ragged batch
  // Of a paged problem, whose k and v are pools of pages: rows of ProblemLayouts::table_stride entries, and keys of
  // each sequence.
  std::vector<std::int32_t> block_table = {}, seqused_kv = {};
};
// What all of them hold.
std::size_t bytes_of(const AttentionInputs& inputs);
// The slope of a batch entry and query head; 0 where there are none.
float slope_at(const Problem& problem, const std::vector<float>& alibi, std::int64_t batch, std::int64_t head);
// The factor of a row of q, by its query head, of k or of v; 1 where there are none. With Scaling::kToken `batch` of a
// paged problem's keys is a page, and `key` lies in it.
float descale_q_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_q,
                   std::int64_t row);
float descale_k_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_kv,
                   std::int64_t key);
float descale_v_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_kv,
                   std::int64_t key);

// Quantises what a pattern draws: each group of elements that share a factor (Problem::q_scaling ...) by its largest
// finite magnitude, which becomes the largest number of the type. Infinities stay where the type has them (e5m2), and
// saturate where it has none.
// Layout, dtype and sizes from `problem`; bytes between rows (Layout::kStrided) are filled with NaN so that reading
// them shows; so are pages that no sequence has and rows of a last page that no key has. Multi-threaded: a 16k-token
// canonical problem fills in well under a second on 16 cores.
AttentionInputs make_inputs(const PlacedProblem& problem, Pattern pattern, std::uint64_t seed);
// Part of that: the tensors that a problem's functions name. Floats are N(0, 1). An int is its last index in whole
// steps of 37, so that neighbours are of one document, or of 1000 where there are 4096 or more, by ids of either sign.
// A condition holds in three of four places; of two or more indices with 1024 or more each, where the last is not above
// the one before it (a causal mask): the masks that are timed are of blocks, as those in use.
std::vector<ElementTensor> make_tensors(const Problem& problem, std::uint64_t seed);

}  // namespace flashcore
