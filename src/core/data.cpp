#include "core/data.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/boundaries.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/operands.h"
#include "core/paged.h"
#include "core/parallel.h"
#include "core/problem_expressions.h"
#include "core/random.h"

namespace flashcore {
namespace {

// Every value is a function of (seed, stream, index) alone, so threads and layouts do not change it. Only IEEE
// operations are used (no libm, whose results differ between machines).
enum Stream : std::uint64_t { kQ = 1, kK, kV, kChoice, kPlace, kTensors };

class Random {
 public:
  Random(std::uint64_t seed, Stream stream) : key_(split_mix_finish(seed + kSplitMixStep * stream)) {}
  std::uint64_t bits(std::int64_t index) const {
    return split_mix_finish(key_ + kSplitMixStep * (static_cast<std::uint64_t>(index) + 1));
  }
  std::int64_t below(std::int64_t index, std::int64_t limit) const {
    return static_cast<std::int64_t>(bits(index) % static_cast<std::uint64_t>(limit));
  }
  double normal(std::int64_t index) const;

 private:
  std::uint64_t key_;
};

// Natural logarithm of 0 < x <= 1 by atanh's series, to about 1e-12.
double portable_log(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  const double mantissa = std::bit_cast<double>((bits & 0xfffffffffffffu) | (std::uint64_t{1023} << 52));
  const double t = (mantissa - 1) / (mantissa + 1), t2 = t * t;  // |t| <= 1/3
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return 2 * t * sum + exponent * 0.6931471805599453;
}

// Acklam's rational approximation of the inverse normal distribution, relative error below 1.2e-9.
double inverse_normal(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                          -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  constexpr double kTail = 0.02425;
  if (p > 1 - kTail) return -inverse_normal(1 - p);
  if (p < kTail) {
    const double q = std::sqrt(-2 * portable_log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  const double q = p - 0.5, r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

double Random::normal(std::int64_t index) const {
  // 53 bits, centred between the steps: never 0 or 1.
  return inverse_normal((static_cast<double>(bits(index) >> 12) + 0.5) * 0x1p-52);
}

// One element of one operand, by where it is.
struct Place {
  std::int64_t batch, head, row, column;
};

class Generator {
 public:
  Generator(const Problem& problem, Pattern pattern, std::uint64_t seed)
      : p_(problem),
        band_(problem.band()),
        pattern_(pattern),
        q_(seed, kQ),
        k_(seed, kK),
        v_(seed, kV),
        choice_(seed, kChoice),
        place_(seed, kPlace) {
    const double dim = static_cast<double>(p_.head_dim), scale = p_.softmax_scale();
    // Caps keep q and k far inside fp16 (65504) whatever scale the problem asks for.
    peak_ = std::min(kPeakLogit / (scale * dim), 1000.0);
    const bool is_8bit = size_of(p_.dtype) == 1;
    const double logit = pattern == Pattern::kExtreme && !is_8bit ? kExtremeLogit : kLargeLogit;
    large_ = std::min(std::sqrt(logit / (scale * std::sqrt(dim))), 1000.0);
    extreme_v_ = size_of(p_.output_dtype()) == 1 ? 1 : has_wide_o() ? kWideValue : kExtremeValue;
    const double negative = is_8bit ? kNegativeLogitOf8Bits : kNegativeLogit;
    negative_ = negative / scale;
    if (!problem.has_descales()) return;
    // Factors of 8-bit types that are far below and far above 1; q makes up for k's.
    if (pattern == Pattern::kPeaked) by_k_ = by_v_ = 0x1p-10;
    if (pattern == Pattern::kConstant) by_k_ = by_v_ = 0x1p8;
  }

  float q(const Place& at) const { return static_cast<float>(q_value(at) / by_k_); }

  float k(const Place& at) const { return static_cast<float>(k_scaled(at) * by_k_ * token_factor_of_k(at)); }

  float v(const Place& at) const {
    return static_cast<float>(v_value(at) * by_v_ * token_factor(at) * head_factor(at));
  }

 private:
  // Numbers that fp16 does not have.
  bool has_wide_o() const {
    return size_of(p_.output_dtype()) > 1 && p_.output_dtype() != DType::kF16 && p_.dtype != DType::kF16;
  }

  // Heads whose values are far apart, so that something kept from one head to the next shows, and with them o beyond
  // fp16's numbers on either side.
  double head_factor(const Place& at) const {
    if (pattern_ != Pattern::kExtreme || !has_wide_o() || p_.input_scaling() == Scaling::kTensor) return 1;
    return (at.batch + at.head) % 2 == 0 ? 1 : 1 / (kWideValue * kWideValue);
  }

  // Where each key has its own factor, K's are far apart too: most scores are about 0.
  double token_factor_of_k(const Place& at) const {
    if (p_.input_scaling() != Scaling::kToken || pattern_ != Pattern::kOutlier) return 1;
    return std::ldexp(4.0, -static_cast<int>((5 * at.row + 2 * at.head) % kApart));
  }

  // Where each key has its own factor, V's are far apart: at random, or the larger the later the key, so that rows of a
  // causal mask do not see the largest; or all so small that 16 bits times them would be nothing.
  double token_factor(const Place& at) const {
    if (p_.input_scaling() != Scaling::kToken) return 1;
    switch (pattern_) {
      case Pattern::kPeaked:
        return std::ldexp(1.0, -static_cast<int>((7 * at.row + 3 * at.head + 11 * at.batch) % kApart));
      case Pattern::kLongTail:
        return std::ldexp(1.0, static_cast<int>(kApart * at.row / std::max<std::int64_t>(1, p_.seqlen_kv) - kApart));
      // fp16 has no such o.
      case Pattern::kLargeLogits: return p_.dtype == DType::kF16 ? 1 : 0x1p-112;
      // All keys of a head alike, and heads not.
      case Pattern::kOutlier: return std::ldexp(1.0, -static_cast<int>(kApart / 4 * ((at.batch + at.head) % 4)));
      default: return 1;
    }
  }

  float q_value(const Place& at) const {
    const double plain = q_.normal(index(at, p_.heads_q, p_.seqlen_q, p_.head_dim));
    switch (pattern_) {
      case Pattern::kPeaked:
      case Pattern::kLongTail: {
        const KeyRange<std::int64_t> keys = band_.keys_of_row(at.row);
        if (keys.empty()) return static_cast<float>(plain);
        const std::int64_t key =
            keys.begin + choice_.below(index({at.batch, at.head, at.row, 0}, p_.heads_q, p_.seqlen_q, 1), keys.size());
        const double peak = pattern_ == Pattern::kPeaked ? peak_ : tail_peak(keys.size());
        return static_cast<float>(peak * k_value({at.batch, at.head / p_.group_size(), key, at.column}) +
                                  0.125 * plain);
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
      default: return static_cast<float>(plain);
    }
  }

  float k_scaled(const Place& at) const {
    const double plain = k_value(at);
    if (pattern_ == Pattern::kLargeLogits || pattern_ == Pattern::kExtreme) return static_cast<float>(large_ * plain);
    if (pattern_ == Pattern::kNonFinite) return poison_k(at, static_cast<float>(plain));
    return static_cast<float>(plain);
  }

  float v_value(const Place& at) const {
    const Place from = pattern_ == Pattern::kConstant ? Place{at.batch, at.head, 0, at.column} : at;
    const double plain = v_.normal(index(from, p_.heads_kv, p_.seqlen_kv, p_.head_dim_v));
    if (pattern_ == Pattern::kLongTail) return static_cast<float>(plain + (at.column % 2 == 0 ? 1 : -1));
    if (pattern_ == Pattern::kExtreme) return static_cast<float>(extreme_v_ * plain);
    if (pattern_ == Pattern::kPositive) return static_cast<float>(std::abs(plain));
    return static_cast<float>(pattern_ == Pattern::kOutlier && is_outlier(at) ? 1000 * plain : plain);
  }

  static constexpr std::int64_t kApart = 40;  // powers of two, of factors

  static constexpr double kPeakLogit = 30;    // e^-30 is below every dtype's resolution
  static constexpr double kLargeLogit = 500;  // standard deviation of the logits
  // The same, and that of V: its numbers stay finite in fp16 when a gate doubles them. What tensor cores cut of sums of
  // 8 bits grows with the score, so that such problems keep kLargeLogit.
  static constexpr double kExtremeLogit = 4000, kExtremeValue = 4000;
  // Where V and o have more range than fp16.
  static constexpr double kWideValue = 0x1p40;
  static constexpr double kNegativeLogit = 120;  // e^-120 is no number of fp32
  // What tensor cores cut of sums of 8 bits grows with the score, and the bound with it.
  static constexpr double kNegativeLogitOf8Bits = 40;

  // All other keys together weigh about a fifth of one row's.
  double tail_peak(std::int64_t keys) const {
    const double logit = 2 - portable_log(1 / static_cast<double>(keys));
    return std::min(logit / (p_.softmax_scale() * static_cast<double>(p_.head_dim)), 1000.0);
  }

  static std::int64_t index(const Place& at, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    return ((at.batch * heads + at.head) * rows + at.row) * columns + at.column;
  }

  double k_value(const Place& at) const {
    const Place from = pattern_ == Pattern::kConstant ? Place{at.batch, at.head, 0, at.column} : at;
    return k_.normal(index(from, p_.heads_kv, p_.seqlen_kv, p_.head_dim));
  }

  // Of the columns of the query head's first key: of many about as many as there are.
  double squares_of_k(const Place& at) const {
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
  bool is_outlier(const Place& at) const {
    const std::int64_t head = at.batch * p_.heads_kv + at.head;
    const std::uint64_t bits = place_.bits(head * p_.seqlen_kv + at.row);
    const bool row = at.row == p_.seqlen_kv - 1 || at.row == choice_.below(head, p_.seqlen_kv) || bits % 64 == 0;
    return row && at.column == static_cast<std::int64_t>((bits >> 8) % static_cast<std::uint64_t>(p_.head_dim_v));
  }

  // Three rows of each query head: one with NaN, one with +inf, one with -inf in a single column.
  float poison_q(const Place& at, float plain) const {
    constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::int64_t head = at.batch * p_.heads_q + at.head;
    const std::int64_t first = choice_.below(3 * head, p_.seqlen_q), column = choice_.below(3 * head + 1, p_.head_dim);
    if (at.column != column) return plain;
    if (at.row == first) return nan;
    if (at.row == (first + 7) % p_.seqlen_q) return inf;
    if (at.row == (first + 18) % p_.seqlen_q) return -inf;
    return plain;
  }

  // At most one key of each head, in the last quarter, so that under a causal mask most rows do not see it. A NaN key
  // spoils every row that sees it, so only some heads have one; an infinite one decides by the sign of q.
  float poison_k(const Place& at, float plain) const {
    const std::int64_t head = at.batch * p_.heads_kv + at.head;
    const std::int64_t start = p_.seqlen_kv - (p_.seqlen_kv + 3) / 4;
    const std::int64_t key = start + place_.below(2 * head, p_.seqlen_kv - start);
    if (at.row != key || at.column != place_.below(2 * head + 1, p_.head_dim)) return plain;
    switch (head % 4) {
      case 0: return std::numeric_limits<float>::infinity();
      case 1: return std::numeric_limits<float>::quiet_NaN();
      case 2: return -std::numeric_limits<float>::infinity();
      default: return plain;
    }
  }

  const Problem& p_;
  const Band<std::int64_t> band_;
  Pattern pattern_;
  Random q_, k_, v_, choice_, place_;
  double peak_ = 0, large_ = 0, negative_ = 0, extreme_v_ = 1;
  double by_k_ = 1, by_v_ = 1;
};

// Below this many elements starting a thread costs more than the work.
constexpr std::int64_t kSmall = 1 << 14;

template <class Value>
HostTensor fill(DType dtype, const TensorLayout& layout, const Value& value) {
  HostTensor tensor(dtype, layout);
  if (layout.elements() == 0) return tensor;
  const std::int64_t span = layout.span();
  const int threads = span < kSmall ? 1 : 0;
  if (span != layout.elements()) {
    constexpr std::int64_t kPiece = 1 << 16;
    parallel_for((span + kPiece - 1) / kPiece, threads, [&](std::int64_t piece) {
      const std::int64_t end = std::min(span, (piece + 1) * kPiece);
      for (std::int64_t i = piece * kPiece; i < end; ++i) {
        store_element(dtype, tensor.data.data(), i, std::numeric_limits<float>::quiet_NaN());
      }
    });
  }
  constexpr std::int64_t kRows = 32;
  const std::int64_t blocks = (layout.rows + kRows - 1) / kRows;
  parallel_for(layout.batch * layout.heads * blocks, threads, [&](std::int64_t job) {
    const std::int64_t head = job / blocks % layout.heads, batch = job / blocks / layout.heads;
    const std::int64_t end = std::min(layout.rows, (job % blocks + 1) * kRows);
    for (std::int64_t row = job % blocks * kRows; row < end; ++row) {
      for (std::int64_t column = 0; column < layout.columns; ++column) {
        tensor.set(batch, head, row, column, value(Place{batch, head, row, column}));
      }
    }
  });
  return tensor;
}

// NaN, in turn of either sign; or of int8 the code of -128, which no number becomes.
std::byte nan_code(DType dtype, std::int64_t index) {
  return std::byte{static_cast<unsigned char>(dtype == DType::kInt8 ? 0x80 : index % 2 == 0 ? 0x7f : 0xff)};
}

// What an 8-bit type stores of `value`: infinities stay where it has them.
void store_quantised(HostTensor& tensor, std::int64_t index, float value) {
  if (std::isnan(value)) tensor.data[static_cast<std::size_t>(index)] = nan_code(tensor.dtype, index);
  else if (tensor.dtype == DType::kE5M2 && std::isinf(value))
    tensor.data[static_cast<std::size_t>(index)] = std::byte{float_to_e5m2(value, Overflow::kNonFinite)};
  else store_element(tensor.dtype, tensor.data.data(), index, value);
}

// Which batch entry a row belongs to. A ragged batch has one tensor of the rows of all, and a paged one the keys of all
// in pages; nobody's pages count as the first one's.
class BatchOf {
 public:
  BatchOf(const Problem& problem, std::vector<std::int64_t> boundaries, const std::vector<PageOwner>& owners = {})
      : ragged_(problem.ragged()), boundaries_(std::move(boundaries)), owners_(owners) {}
  std::int64_t operator()(std::int64_t batch, std::int64_t row) const {
    if (!owners_.empty()) return std::max<std::int64_t>(0, owners_[static_cast<std::size_t>(batch)].sequence);
    return ragged_ ? sequence_of_row(boundaries_, row) : batch;
  }

 private:
  bool ragged_;
  std::vector<std::int64_t> boundaries_;
  std::vector<PageOwner> owners_;
};

// Raises `largest` to `value`: of numbers that are not negative, whose order is that of their bits.
void raise_to(float& largest, float value) {
  std::atomic_ref<float> shared(largest);
  float seen = shared.load(std::memory_order_relaxed);
  while (value > seen && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Calls body(batch, head, row) for each row of a tensor, on all cores where there are many elements.
template <class Body>
void for_each_row(const TensorLayout& layout, const Body& body) {
  parallel_for(layout.batch * layout.heads, layout.elements() < kSmall ? 1 : 0, [&](std::int64_t at) {
    for (std::int64_t row = 0; row < layout.rows; ++row) body(at / layout.heads, at % layout.heads, row);
  });
}

template <class Value>
float largest_of_row(const TensorLayout& layout, std::int64_t batch, std::int64_t head, std::int64_t row,
                     const Value& value) {
  float largest = 0;
  for (std::int64_t column = 0; column < layout.columns; ++column) {
    const float magnitude = std::abs(value(Place{batch, head, row, column}));
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  return largest;
}

// Of each row its own. Rows of nobody's pages have NaN: what the pool of an engine holds there may be anything.
template <class Value>
std::vector<float> factors_of_rows(DType dtype, const TensorLayout& layout, const Value& value) {
  std::vector<float> factors(static_cast<std::size_t>(layout.batch * layout.heads * layout.rows));
  const auto largest = static_cast<float>(precision_of(dtype).largest);
  for_each_row(layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    float& factor = factors[static_cast<std::size_t>((batch * layout.heads + head) * layout.rows + row)];
    const float magnitude = largest_of_row(layout, batch, head, row, value);
    const bool is_nobodys = magnitude == 0 && layout.columns > 0 && std::isnan(value(Place{batch, head, row, 0}));
    factor = is_nobodys ? std::numeric_limits<float>::quiet_NaN() : magnitude > 0 ? magnitude / largest : 1;
  });
  return factors;
}

// The factors that make the largest finite magnitude of each group of heads the largest number of the type. `group`:
// heads that share one with Scaling::kHead.
template <class Value>
std::vector<float> factors_of(const Problem& problem, DType dtype, const TensorLayout& layout, std::int64_t group,
                              const BatchOf& batch_of, const Value& value) {
  if (!problem.has_descales()) return {};
  std::vector<float> factors(static_cast<std::size_t>(problem.descale_count()), 0.0f);
  std::vector<float> heads(static_cast<std::size_t>(problem.batch * layout.heads), 0.0f);
  for_each_row(layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    // Pages of one sequence are rows of several entries.
    raise_to(heads[static_cast<std::size_t>(batch_of(batch, row) * layout.heads + head)],
             largest_of_row(layout, batch, head, row, value));
  });
  for (std::size_t head = 0; head < heads.size(); ++head) {
    float& factor = factors[factors.size() == 1 ? 0 : head / static_cast<std::size_t>(group)];
    factor = std::max(factor, heads[head]);
  }
  const auto largest = static_cast<float>(precision_of(dtype).largest);
  for (float& factor : factors) factor = factor > 0 ? factor / largest : 1;
  return factors;
}

// `value` of every place as `dtype`, and the factors where that has 8 bits. Values are drawn twice then: a cache of a
// gigabyte took longer to keep in fp32 than to draw again.
template <class Value>
HostTensor draw(const Problem& problem, DType dtype, const TensorLayout& layout, std::int64_t group,
                const BatchOf& batch_of, std::vector<float>& factors, const Value& value) {
  if (size_of(dtype) > 1) return fill(dtype, layout, value);
  const bool by_token = problem.input_scaling() == Scaling::kToken;
  factors =
      by_token ? factors_of_rows(dtype, layout, value) : factors_of(problem, dtype, layout, group, batch_of, value);
  HostTensor tensor(dtype, layout);
  for (std::size_t i = 0; i < tensor.data.size(); ++i)  // which stays between the rows
    tensor.data[i] = nan_code(dtype, static_cast<std::int64_t>(i));
  for_each_row(layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    const float factor = descale_at(problem, factors, by_token ? batch : batch_of(batch, row), head / group, row);
    const std::int64_t first = layout.offset(batch, head, row);
    for (std::int64_t column = 0; column < layout.columns; ++column)
      store_quantised(tensor, first + column, value(Place{batch, head, row, column}) / factor);
  });
  return tensor;
}

// No number becomes -128, and a cache of somebody else's making may have it: in one column of every eighth row.
void add_least_int8(HostTensor& keys) {
  constexpr std::int64_t kColumn = 5, kEveryRow = 8;
  if (keys.dtype != DType::kInt8 || keys.layout.columns <= kColumn) return;
  for_each_row(keys.layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    if (row % kEveryRow == 0)
      keys.data[static_cast<std::size_t>(keys.layout.offset(batch, head, row) + kColumn)] = std::byte{0x80};
  });
}

// What q, k or v holds at a place, by `of_batch(generator, place)`: the batch's own generator, or that of the sequence
// that the row is of.
class Generators {
 public:
  // `owners`: of a paged problem's pages, else none.
  Generators(const Problem& problem, Pattern pattern, std::uint64_t seed, const std::vector<PageOwner>& owners)
      : owners_(owners) {
    if (problem.ragged()) {
      boundaries_ = boundaries_of(problem);
      for (const SequenceLengths& each : problem.sequences()) problems_.push_back(problem.of_sequence(each));
    } else {
      problems_.push_back(problem);
    }
    for (std::size_t s = 0; s < problems_.size(); ++s)
      all_.emplace_back(problems_[s], pattern, seed + kSplitMixStep * 0x100 * s);
  }
  float q(const Place& at) const {
    return of(at, boundaries_.q, [](const Generator& of, const Place& place) { return of.q(place); });
  }
  float k(const Place& at) const {
    return of_key(at, [](const Generator& of, const Place& place) { return of.k(place); });
  }
  float v(const Place& at) const {
    return of_key(at, [](const Generator& of, const Place& place) { return of.v(place); });
  }

 private:
  template <class Value>
  float of_key(const Place& at, const Value& value) const {
    if (owners_.empty()) return of(at, boundaries_.kv, value);
    const auto [sequence, first_key] = owners_[static_cast<std::size_t>(at.batch)];
    const auto s = static_cast<std::size_t>(std::max<std::int64_t>(0, sequence));
    const std::int64_t key = first_key + at.row;
    if (sequence < 0 || key >= problems_[s].seqlen_kv) return std::numeric_limits<float>::quiet_NaN();
    return value(all_[s], {sequence, at.head, key, at.column});
  }
  template <class Value>
  float of(const Place& at, const std::vector<std::int64_t>& boundaries, const Value& value) const {
    if (boundaries.empty()) return value(all_[0], at);
    const std::int64_t s = sequence_of_row(boundaries, at.row);
    // As batch entry s, so that heads are poisoned in turn.
    return value(all_[static_cast<std::size_t>(s)],
                 {s, at.head, at.row - boundaries[static_cast<std::size_t>(s)], at.column});
  }

  std::vector<PageOwner> owners_;
  Boundaries boundaries_;
  std::vector<Problem> problems_;  // which the generators refer to
  std::vector<Generator> all_;
};

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

void draw_scores(const Problem& problem, Pattern pattern, std::uint64_t seed, AttentionInputs& in) {
  constexpr std::uint64_t kStream = 0x51;
  SplitMix random(split_mix_finish(seed + kSplitMixStep * kStream));
  for (std::int64_t h = 0; h < problem.sink_count(); ++h)
    in.sink.push_back(static_cast<float>(sink_of(problem, pattern, seed, h, random.normal())));
  for (std::int64_t i = 0; i < problem.alibi_count(); ++i)
    in.alibi.push_back(static_cast<float>(slope_of(pattern, i, problem.heads_q, random.uniform())));
}

constexpr std::int64_t kLongDimension = 4096, kLargeDimension = 1024;
constexpr std::int64_t kDocument = 37, kLongDocument = 1000;

void store_at(ElementTensor& tensor, std::int64_t index, const Random& random) {
  const auto place = static_cast<std::size_t>(index);
  const auto last = static_cast<std::size_t>(tensor.shape.count - 1);
  const std::int64_t columns = tensor.shape.sizes[last];
  switch (tensor.element) {
    case ExpressionType::kFloat: {
      const auto value = static_cast<float>(random.normal(index));
      std::memcpy(tensor.data.data() + place * sizeof value, &value, sizeof value);
      return;
    }
    case ExpressionType::kInt: {
      const auto value =
          static_cast<std::int32_t>(index % columns / (columns >= kLongDimension ? kLongDocument : kDocument));
      std::memcpy(tensor.data.data() + place * sizeof value, &value, sizeof value);
      return;
    }
    case ExpressionType::kBool: {
      const std::int64_t rows = last == 0 ? 0 : tensor.shape.sizes[last - 1];
      const bool holds = rows >= kLargeDimension && columns >= kLargeDimension
                             ? index % columns <= index / columns % rows
                             : random.below(index, 4) != 0;
      tensor.data[place] = std::byte{holds};
      return;
    }
  }
}

}  // namespace

std::int64_t ElementTensor::count() const {
  std::int64_t product = 1;
  for (std::size_t x = 0; x < static_cast<std::size_t>(shape.count); ++x) product *= shape.sizes[x];
  return product;
}

double ElementTensor::at(std::span<const std::int32_t> indices) const {
  std::size_t place = 0;
  for (std::size_t x = 0; x < indices.size(); ++x)
    place = place * static_cast<std::size_t>(shape.sizes[x]) + static_cast<std::size_t>(indices[x]);
  if (element == ExpressionType::kBool) return data[place] != std::byte{0};
  if (element == ExpressionType::kInt) {
    std::int32_t value = 0;
    std::memcpy(&value, data.data() + place * sizeof value, sizeof value);
    return value;
  }
  float value = 0;
  std::memcpy(&value, data.data() + place * sizeof value, sizeof value);
  return static_cast<double>(value);
}

std::vector<ElementTensor> make_tensors(const Problem& problem, std::uint64_t seed) {
  std::vector<ElementTensor> tensors;
  if (problem.tensors.empty()) return tensors;
  const std::vector<ExpressionShape> shapes = tensor_shapes(problem);
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    ElementTensor& tensor = tensors.emplace_back(ElementTensor{problem.tensors[t].element, shapes[t], {}});
    const Random random(seed + kSplitMixStep * 0x1000 * t, kTensors);
    const std::int64_t count = tensor.count();
    tensor.data.resize(static_cast<std::size_t>(count) * bytes_of(tensor.element));
    constexpr std::int64_t kPiece = 1 << 14;
    parallel_for((count + kPiece - 1) / kPiece, count <= kPiece ? 1 : 0, [&](std::int64_t piece) {
      const std::int64_t end = std::min(count, (piece + 1) * kPiece);
      for (std::int64_t i = piece * kPiece; i < end; ++i) store_at(tensor, i, random);
    });
  }
  return tensors;
}

float descale_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_kv,
                 std::int64_t row) {
  if (descales.empty()) return 1;
  std::int64_t at = 0;
  switch (problem.input_scaling()) {
    case Scaling::kNone: return 1;
    case Scaling::kTensor: break;
    case Scaling::kHead: at = batch * problem.heads_kv + head_kv; break;
    case Scaling::kToken:
      at = (batch * problem.heads_kv + head_kv) * (problem.paged() ? problem.page_size : problem.seqlen_kv) + row;
      break;
  }
  return descales[static_cast<std::size_t>(at)];
}

float slope_at(const Problem& problem, const std::vector<float>& alibi, std::int64_t batch, std::int64_t head) {
  if (alibi.empty()) return 0;
  return alibi[static_cast<std::size_t>(problem.alibi == Alibi::kBatch ? batch * problem.heads_q + head : head)];
}

const std::vector<Pattern>& all_patterns() {
  static const std::vector<Pattern> patterns = {Pattern::kNormal,   Pattern::kPeaked,    Pattern::kLargeLogits,
                                                Pattern::kConstant, Pattern::kOutlier,   Pattern::kLongTail,
                                                Pattern::kExtreme,  Pattern::kNonFinite, Pattern::kPositive};
  return patterns;
}

std::vector<Pattern> patterns_of(const Problem& problem) {
  std::vector<Pattern> patterns = all_patterns();
  if (!problem.is_8bit()) std::erase(patterns, Pattern::kPositive);
  return patterns;
}

std::string_view to_string(Pattern pattern) {
  switch (pattern) {
    case Pattern::kNormal: return "normal";
    case Pattern::kPeaked: return "peaked";
    case Pattern::kLargeLogits: return "large_logits";
    case Pattern::kConstant: return "constant";
    case Pattern::kOutlier: return "outlier";
    case Pattern::kLongTail: return "long_tail";
    case Pattern::kNonFinite: return "non_finite";
    case Pattern::kExtreme: return "extreme";
    case Pattern::kPositive: return "positive";
  }
  throw_internal("unknown pattern {}", static_cast<int>(pattern));
}

Pattern parse_pattern(std::string_view name) {
  std::string known;
  for (const Pattern pattern : all_patterns()) {
    if (name == to_string(pattern)) return pattern;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", to_string(pattern));
  }
  throw_bad_input("data pattern '{}' is not known; use one of {}", excerpt(name), known);
}

AttentionInputs make_inputs(const PlacedProblem& problem, Pattern pattern, std::uint64_t seed) {
  problem.validate();
  const ProblemLayouts layouts = make_layouts(problem);
  const DrawnPages pages = problem.paged() ? draw_pages(problem, layouts.table_stride, seed) : DrawnPages();
  const Generators generators(problem, pattern, seed, pages.owners);
  const Boundaries boundaries = boundaries_of(problem);
  const BatchOf rows(problem, boundaries.q), keys(problem, boundaries.kv, pages.owners);
  AttentionInputs in;
  in.block_table = pages.table;
  if (problem.paged())
    for (const SequenceLengths& each : problem.sequences()) in.seqused_kv.push_back(static_cast<std::int32_t>(each.kv));
  in.q = draw(problem, problem.dtype, layouts.q, problem.group_size(), rows, in.descale_q,
              [&](const Place& at) { return generators.q(at); });
  const DType cache = problem.cache_dtype();
  in.k = draw(problem, cache, layouts.k, 1, keys, in.descale_k, [&](const Place& at) { return generators.k(at); });
  in.v = draw(problem, cache, layouts.v, 1, keys, in.descale_v, [&](const Place& at) { return generators.v(at); });
  for (HostTensor* each : {&in.k, &in.v}) add_least_int8(*each);
  draw_scores(problem, pattern, seed, in);
  in.tensors = make_tensors(problem, seed);
  return in;
}

}  // namespace flashcore
