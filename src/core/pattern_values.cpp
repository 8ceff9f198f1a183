#include "core/pattern_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr std::int64_t kApart = 40;  // powers of two, of factors

constexpr double kPeakLogit = 30;    // e^-30 is below every dtype's resolution
constexpr double kLargeLogit = 500;  // standard deviation of the logits
// The same, and that of V: its numbers stay finite in fp16 when a gate doubles them. What tensor cores cut of sums of
// 8 bits grows with the score, so that such problems keep kLargeLogit.
constexpr double kExtremeLogit = 4000, kExtremeValue = 4000;
// Where V and o have more range than fp16.
constexpr double kWideValue = 0x1p40;
// How much smaller q and V are than N(0,1), and K larger, in fp16, whose normal numbers begin at 2^-14 and end below
// 2^16; and how much larger q is, and K smaller, in types with more range.
constexpr double kTinyQ = 0x1p-15, kLargeK = 0x1p13, kTinyV = 0x1p-15, kLargeQ = 0x1p18;
constexpr double kNegativeLogit = 120;  // e^-120 is no number of fp32
// What tensor cores cut of sums of 8 bits grows with the score, and the bound with it.
constexpr double kNegativeLogitOf8Bits = 40;
constexpr std::int64_t kSinkKeys = 4;

std::int64_t index_of(const Place& at, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
  return ((at.batch * heads + at.head) * rows + at.row) * columns + at.column;
}

}  // namespace

PatternValues::PatternValues(const Problem& problem, Pattern pattern, std::uint64_t seed, bool is_sequence)
    : p_(problem),
      is_sequence_(is_sequence),
      band_(problem.band()),
      pattern_(pattern),
      q_(seed, DataStream::kQ),
      k_(seed, DataStream::kK),
      v_(seed, DataStream::kV),
      choice_(seed, DataStream::kChoice),
      place_(seed, DataStream::kPlace) {
  const double dim = static_cast<double>(p_.head_dim), scale = p_.softmax_scale();
  // Caps keep q and k far inside fp16 (65504) whatever scale the problem asks for.
  peak_ = std::min(kPeakLogit / (scale * dim), 1000.0);
  const bool is_8bit = size_of(p_.dtype) == 1;
  const double logit = pattern == Pattern::kExtreme && !is_8bit ? kExtremeLogit : kLargeLogit;
  large_ = std::min(std::sqrt(logit / (scale * std::sqrt(dim))), 1000.0);
  extreme_v_ = size_of(p_.output_dtype()) == 1 ? 1 : has_wide_o() ? kWideValue : kExtremeValue;
  const double negative = is_8bit ? kNegativeLogitOf8Bits : kNegativeLogit;
  negative_ = negative / scale;
  // What 8 bits store without a factor has no room for it.
  if (pattern == Pattern::kUnequal && (bits_of(p_.cache_dtype()) > 8 || p_.has_descales())) {
    const bool is_fp16 = p_.dtype == DType::kF16;
    by_q_ = is_fp16 ? kTinyQ : kLargeQ;
    by_k_ = is_fp16 ? kLargeK : 1 / kLargeQ;
    by_v_ = is_fp16 ? kTinyV : 1;
  }
  if (!problem.has_descales()) return;
  // Factors of 8-bit types that are far below and far above 1; q makes up for k's.
  if (pattern == Pattern::kPeaked) by_k_ = by_v_ = 0x1p-10, by_q_ = 0x1p10;
  if (pattern == Pattern::kConstant) by_k_ = by_v_ = 0x1p8, by_q_ = 0x1p-8;
}

namespace {

// body(place, its normal number) of `out.size()` columns from `first` on, whose first number has the index `index`.
template <class Body>
void for_each_column(const IndexedRandom& random, std::int64_t index, const Place& first, std::span<float> out,
                     const Body& body) {
  constexpr std::size_t kAtOnce = 256;
  double plain[kAtOnce];
  Place at = first;
  for (std::size_t done = 0; done < out.size(); done += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, out.size() - done);
    random.normals(index + static_cast<std::int64_t>(done), {plain, count});
    for (std::size_t i = 0; i < count; ++i, ++at.column) out[done + i] = body(at, plain[i]);
  }
}

}  // namespace

void PatternValues::q(const Place& first, std::span<float> out) const {
  const double factor = token_factor_of_q(first);
  for_each_column(
      q_, index_of(first, p_.heads_q, p_.seqlen_q, p_.head_dim), first, out,
      [&](const Place& at, double plain) { return static_cast<float>(q_value(at, plain) * by_q_ * factor); });
}

void PatternValues::k(const Place& first, std::span<float> out) const {
  const double factor = token_factor_of_k(first);
  for_each_column(
      k_, index_of(place_of_normal(first), p_.heads_kv, p_.seqlen_kv, p_.head_dim), first, out,
      [&](const Place& at, double plain) { return static_cast<float>(k_scaled(at, plain) * by_k_ * factor); });
}

void PatternValues::v(const Place& first, std::span<float> out) const {
  const double factor = token_factor_of_v(first), of_head = head_factor(first);
  for_each_column(
      v_, index_of(place_of_normal(first), p_.heads_kv, p_.seqlen_kv, p_.head_dim_v), first, out,
      [&](const Place& at, double plain) { return static_cast<float>(v_value(at, plain) * by_v_ * factor * of_head); });
}

// Of k and v: with kConstant all rows have the numbers of the first.
Place PatternValues::place_of_normal(const Place& at) const {
  return pattern_ == Pattern::kConstant ? Place{at.batch, at.head, 0, at.column} : at;
}

// Numbers that fp16 does not have.
bool PatternValues::has_wide_o() const {
  return size_of(p_.output_dtype()) > 1 && p_.output_dtype() != DType::kF16 && p_.dtype != DType::kF16;
}

// Heads whose values are far apart, so that something kept from one head to the next shows, and with them o beyond
// fp16's numbers on either side.
double PatternValues::head_factor(const Place& at) const {
  if (pattern_ != Pattern::kExtreme || !has_wide_o() || p_.input_scaling() == Scaling::kTensor) return 1;
  return (at.batch + at.head) % 2 == 0 ? 1 : 1 / (kWideValue * kWideValue);
}

// Where each row has its own factor, those of neighbours are apart.
double PatternValues::token_factor_of_q(const Place& at) const {
  if (p_.q_scaling() != Scaling::kToken || pattern_ != Pattern::kOutlier) return 1;
  return std::ldexp(1.0, static_cast<int>((3 * at.row + at.head) % 5) - 2);
}

// Where each key has its own factor, K's are far apart too: most scores are about 0.
double PatternValues::token_factor_of_k(const Place& at) const {
  if (p_.k_scaling() != Scaling::kToken || pattern_ != Pattern::kOutlier) return 1;
  return std::ldexp(4.0, -static_cast<int>((5 * at.row + 2 * at.head) % kApart));
}

// Where each key has its own factor, V's are far apart: at random, or the larger the later the key, so that rows of a
// causal mask do not see the largest; or all so small that 16 bits times them would be nothing.
double PatternValues::token_factor_of_v(const Place& at) const {
  if (p_.v_scaling() != Scaling::kToken) return 1;
  switch (pattern_) {
    case Pattern::kPeaked:
      return std::ldexp(1.0, -static_cast<int>((7 * at.row + 3 * at.head + 11 * at.batch) % kApart));
    case Pattern::kLongTail:
      return std::ldexp(1.0, static_cast<int>(kApart * at.row / std::max<std::int64_t>(1, p_.seqlen_kv) - kApart));
    // fp16 has no such o.
    case Pattern::kLargeLogits: return p_.dtype == DType::kF16 ? 1 : 0x1p-112;
    // All keys of a head alike, and heads not.
    case Pattern::kOutlier: return std::ldexp(1.0, -static_cast<int>(kApart / 4 * ((at.batch + at.head) % 4)));
    case Pattern::kNormal:
    case Pattern::kConstant:
    case Pattern::kExtreme:
    case Pattern::kNonFinite:
    case Pattern::kUnequal:
    case Pattern::kPositive:
    case Pattern::kOutlierChannels:
    case Pattern::kSinks: return 1;
  }
  throw_internal("no such data pattern: {}", static_cast<int>(pattern_));
}

namespace {

// Rows of zeros, as padding has them: no largest magnitude to divide by, scores that are all alike.
constexpr std::int64_t kZerosOfQ = 11, kZerosOfK = 13, kZerosOfV = 17;
bool is_zero(Pattern pattern, const Place& at, std::int64_t every) {
  return pattern == Pattern::kOutlier && at.row % every == every / 2;
}

}  // namespace

float PatternValues::q_value(const Place& at, double plain) const {
  if (is_zero(pattern_, at, kZerosOfQ)) return 0;
  switch (pattern_) {
    case Pattern::kPeaked:
    case Pattern::kLongTail: {
      const KeyRange<std::int64_t> keys = band_.keys_of_row(at.row);
      if (keys.empty()) return static_cast<float>(plain);
      const std::int64_t key =
          keys.begin + choice_.below(index_of({at.batch, at.head, at.row, 0}, p_.heads_q, p_.seqlen_q, 1), keys.size());
      const double peak = pattern_ == Pattern::kPeaked ? peak_ : tail_peak(keys.size());
      return static_cast<float>(peak * k_value({at.batch, at.head / p_.group_size(), key, at.column}) + 0.125 * plain);
    }
    case Pattern::kExtreme:
    case Pattern::kLargeLogits: return static_cast<float>(large_ * plain);
    case Pattern::kConstant:
      // Every score of a row is the same, and of every other row far below zero, where a maximum that begins at zero
      // or at a number that looks small leaves nothing of the row.
      if ((at.batch + at.head + at.row) % 2 != 0) return static_cast<float>(plain);
      // No two rows are alike, for errors of equal values do not average out.
      return static_cast<float>(plain - std::min(negative_ / squares_of_k(at), 1000.0) *
                                            k_value({at.batch, at.head / p_.group_size(), 0, at.column}));
    case Pattern::kNonFinite: return poison_q(at, static_cast<float>(plain));
    case Pattern::kSinks: return static_cast<float>(plain + sink_direction(at));
    case Pattern::kNormal:
    case Pattern::kOutlier:
    case Pattern::kUnequal:
    case Pattern::kPositive:
    case Pattern::kOutlierChannels: return static_cast<float>(plain);
  }
  throw_internal("no such data pattern: {}", static_cast<int>(pattern_));
}

float PatternValues::k_scaled(const Place& at, double plain) const {
  if (is_zero(pattern_, at, kZerosOfK)) return 0;
  if (pattern_ == Pattern::kLargeLogits || pattern_ == Pattern::kExtreme) return static_cast<float>(large_ * plain);
  if (pattern_ == Pattern::kNonFinite) return poison_k(at, static_cast<float>(plain));
  if (pattern_ == Pattern::kOutlierChannels) return static_cast<float>(plain + channel_offset(at));
  if (pattern_ == Pattern::kSinks && at.row < kSinkKeys)
    return static_cast<float>(0.125 * plain + sink_size(at.row) * sink_direction(at));
  return static_cast<float>(plain);
}

// Two channels of each key head, on either side of zero: 30 and 20 times what the others vary by.
double PatternValues::channel_offset(const Place& at) const {
  const std::int64_t head = at.batch * p_.heads_kv + at.head, dim = p_.head_dim;
  if (at.column == (5 * head + 1) % dim) return 30;
  return at.column == (5 * head + 1 + dim / 2) % dim ? -20 : 0;
}

// What all rows of q have in common, and what the sinks' keys are along; q's heads of a group alike.
double PatternValues::sink_direction(const Place& at) const { return at.column % 2 == 0 ? 1 : -1; }

// So that the first key has most of a row's weight, and those behind it less each time. The others' scores vary by
// about 1.5 with a usual scale.
double PatternValues::sink_size(std::int64_t key) const {
  const double logit = 3 - portable_log(1 / static_cast<double>(p_.seqlen_kv + 1)) - static_cast<double>(key);
  return std::min(logit / (p_.softmax_scale() * static_cast<double>(p_.head_dim)), 1000.0);
}

float PatternValues::v_value(const Place& at, double plain) const {
  // With a mean, o is no smaller than v, however many keys there are.
  if (pattern_ == Pattern::kLongTail || pattern_ == Pattern::kUnequal)
    return static_cast<float>(plain + (at.column % 2 == 0 ? 1 : -1));
  if (pattern_ == Pattern::kExtreme) return static_cast<float>(extreme_v_ * plain);
  if (pattern_ == Pattern::kPositive) return static_cast<float>(std::abs(plain));
  if (pattern_ == Pattern::kSinks && at.row < kSinkKeys) return static_cast<float>(0.01 * plain);
  if (pattern_ == Pattern::kNonFinite) return poison_v(at, static_cast<float>(plain));
  if (pattern_ == Pattern::kOutlier && is_outlier(at)) return static_cast<float>(1000 * plain);
  return is_zero(pattern_, at, kZerosOfV) ? 0 : static_cast<float>(plain);
}

// All other keys together weigh about a fifth of one row's.
double PatternValues::tail_peak(std::int64_t keys) const {
  const double logit = 2 - portable_log(1 / static_cast<double>(keys));
  return std::min(logit / (p_.softmax_scale() * static_cast<double>(p_.head_dim)), 1000.0);
}

double PatternValues::k_value(const Place& at) const {
  return k_.normal(index_of(place_of_normal(at), p_.heads_kv, p_.seqlen_kv, p_.head_dim));
}

// Of the columns of the query head's first key: of many about as many as there are.
double PatternValues::squares_of_k(const Place& at) const {
  constexpr std::int64_t kMany = 16;
  if (p_.head_dim > kMany) return static_cast<double>(p_.head_dim);
  double sum = 0;
  for (std::int64_t column = 0; column < p_.head_dim; ++column) {
    const double k = k_value({at.batch, at.head / p_.group_size(), 0, column});
    sum += k * k;
  }
  return sum;
}

// One column in each of: the last key (where tails go wrong), one key at random per head, and one key in 64.
bool PatternValues::is_outlier(const Place& at) const {
  const std::int64_t head = at.batch * p_.heads_kv + at.head;
  const std::uint64_t bits = place_.bits(head * p_.seqlen_kv + at.row);
  const bool row = at.row == p_.seqlen_kv - 1 || at.row == choice_.below(head, p_.seqlen_kv) || bits % 64 == 0;
  return row && at.column == static_cast<std::int64_t>((bits >> 8) % static_cast<std::uint64_t>(p_.head_dim_v));
}

// Three rows of each query head: one with NaN, one with +inf, one with -inf in a single column.
float PatternValues::poison_q(const Place& at, float plain) const {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t head = at.batch * p_.heads_q + at.head;
  const std::int64_t first = choice_.below(3 * head, p_.seqlen_q), column = choice_.below(3 * head + 1, p_.head_dim);
  if (at.column != column) return plain;
  if (at.row == first) return nan;
  if (at.row == (first + 7) % p_.seqlen_q) return inf;
  if (at.row == (first + 18) % p_.seqlen_q) return -inf;
  return plain;
}

// In the last quarter, so that under a causal mask most rows do not see it.
std::int64_t PatternValues::first_poisoned_key() const { return p_.seqlen_kv - (p_.seqlen_kv + 3) / 4; }

// At most one key of each head. A NaN key spoils every row that sees it, so only some heads have one, anywhere where
// there is no mask; an infinite one decides by the sign of q.
float PatternValues::poison_k(const Place& at, float plain) const {
  const std::int64_t head = at.batch * p_.heads_kv + at.head;
  const bool is_nan = head % 4 == 1;
  const std::int64_t start = is_nan && !band_.bounded() ? 0 : first_poisoned_key();
  const std::int64_t key = start + place_.below(2 * head, p_.seqlen_kv - start);
  if (at.row != key || at.column != place_.below(2 * head + 1, p_.head_dim)) return plain;
  switch (head % 4) {
    case 0: return std::numeric_limits<float>::infinity();
    case 1: return std::numeric_limits<float>::quiet_NaN();
    case 2: return -std::numeric_limits<float>::infinity();
    default: return plain;
  }
}

// One key of every other head, in one column, where all rows see it: what a masked key's V does is another promise
// (docs/correctness.md, "NaN at masked keys"). No key whose K is infinite: its weight may be 0.
float PatternValues::poison_v(const Place& at, float plain) const {
  const std::int64_t keys = first_poisoned_key(), head = at.batch * p_.heads_kv + at.head;
  // Of an infinite q all scores may be -inf where there are few keys, which then have no part in a row that is finite:
  // a sequence of a ragged batch may be cut to one, and a sink is finite whatever they are.
  constexpr std::int64_t kFew = 16;
  if (band_.bounded() || p_.has_expression() || p_.sink || is_sequence_ || keys < kFew) return plain;
  constexpr std::int64_t kStream = std::int64_t{1} << 40;  // apart from the numbers of K
  if (place_.below(kStream + 4 * head, 2) == 0) return plain;
  if (at.row != place_.below(kStream + 4 * head + 1, keys) ||
      at.column != place_.below(kStream + 4 * head + 2, p_.head_dim_v))
    return plain;
  // An infinity only where no weight of 16 bits is rounded to 0.
  const bool may_be_infinite = size_of(p_.dtype) > 1 && !p_.scale && !p_.transforms_scores();
  return may_be_infinite && place_.below(kStream + 4 * head + 3, 2) == 0 ? std::numeric_limits<float>::infinity()
                                                                         : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace flashcore
