#include "core/reference_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/reference_error.h"

// One binary serves every x86-64: the loops exist once per instruction set and the loader picks. Not under the
// sanitizers, whose runtime is not up yet when the loader runs the picking code.
#if defined(__x86_64__) && !defined(FLASHCORE_SANITIZED)
#define FLASHCORE_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FLASHCORE_CLONES
#endif
#define FLASHCORE_INLINE __attribute__((always_inline)) inline

namespace flashcore {
namespace {

constexpr int kRows = kReferenceRows;
constexpr int kLanes = kReferenceLanes;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// As wide as a register of x86-64-v3: wider ones GCC keeps on the stack there, and sums in loops that are not unrolled
// as well.
using Float4 = float __attribute__((vector_size(16)));
using Float8 = float __attribute__((vector_size(32)));
using Double4 = double __attribute__((vector_size(32)));

// Neighbouring numbers of type T, and the floats that they are read from.
template <class T, class Vector, class Load>
struct Lanes {
  using Number = T;
  static constexpr int kParts = 2;  // of a register each
  static constexpr int kEach = sizeof(Vector) / sizeof(T), kWidth = kParts * kEach;
  Vector part[kParts];

  FLASHCORE_INLINE static Lanes widened(const float* from) {
    Lanes lanes;
    for (int i = 0; i < kParts; ++i) {
      Load raw;
      std::memcpy(&raw, from + i * kEach, sizeof raw);
      lanes.part[i] = __builtin_convertvector(raw, Vector);
    }
    return lanes;
  }
  FLASHCORE_INLINE static Lanes load(const T* from) {
    Lanes lanes;
    for (int i = 0; i < kParts; ++i) std::memcpy(&lanes.part[i], from + i * kEach, sizeof(Vector));
    return lanes;
  }
  FLASHCORE_INLINE void store(T* to) const {
    for (int i = 0; i < kParts; ++i) std::memcpy(to + i * kEach, &part[i], sizeof(Vector));
  }
  FLASHCORE_INLINE void add(T factor, const Lanes& values) {
    for (int i = 0; i < kParts; ++i) part[i] += factor * values.part[i];
  }
};
using Lanes64 = Lanes<double, Double4, Float4>;
using Lanes32 = Lanes<float, Float8, Float8>;

// out[r][j] = sum over d of q[r][d] * k[j][d], for the first `keys` keys rounded up to whole panels. The lane loops run
// over keys, so each dot product is summed in order of d, in T.
template <class Lanes, class T = typename Lanes::Number>
FLASHCORE_INLINE void dot_keys(const float* panels, std::int64_t dim, std::int64_t keys, const T* q, T* out,
                               std::int64_t stride) {
  for (std::int64_t start = 0; start < keys; start += Lanes::kWidth) {
    const float* panel = panels + start / kLanes * dim * kLanes + start % kLanes;
    Lanes sums[kRows] = {};
    for (std::int64_t d = 0; d < dim; ++d) {
      const Lanes values = Lanes::widened(panel + d * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r].add(q[r * dim + d], values);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r].store(out + r * stride + start);
  }
}

// acc[r][d] += sum over j in [begin, end) of p[r][j] * v[j][d], for `kCount` rows; in order of j, in T. So many values
// at a time that they stay in the first cache while all their columns are taken.
constexpr std::int64_t kValuesAtOnce = 32;
template <class Lanes, int kCount, class T = typename Lanes::Number>
FLASHCORE_INLINE void add_values(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end, const T* p,
                                 std::int64_t stride, T* acc) {
  for (std::int64_t first = begin; first < end; first += kValuesAtOnce) {
    const std::int64_t last = std::min(end, first + kValuesAtOnce);
    for (std::int64_t d = 0; d < padded; d += Lanes::kWidth) {
      Lanes sums[kCount];
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) sums[r] = Lanes::load(acc + r * padded + d);
      for (std::int64_t j = first; j < last; ++j) {
        const Lanes values = Lanes::widened(v + j * padded + d);
#pragma GCC unroll 4
        for (int r = 0; r < kCount; ++r) sums[r].add(p[r * stride + j], values);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kCount; ++r) sums[r].store(acc + r * padded + d);
    }
  }
}

FLASHCORE_CLONES void dot_keys_f64(const float* k, std::int64_t dim, std::int64_t keys, const double* q, double* out,
                                   std::int64_t stride) {
  dot_keys<Lanes64>(k, dim, keys, q, out, stride);
}
FLASHCORE_CLONES void dot_keys_f32(const float* k, std::int64_t dim, std::int64_t keys, const float* q, float* out,
                                   std::int64_t stride) {
  dot_keys<Lanes32>(k, dim, keys, q, out, stride);
}
FLASHCORE_CLONES void add_values_f64(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                     const double* p, std::int64_t stride, double* acc) {
  add_values<Lanes64, kRows>(v, padded, begin, end, p, stride, acc);
}
FLASHCORE_CLONES void add_values_f32(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                     const float* p, std::int64_t stride, float* acc) {
  add_values<Lanes32, kRows>(v, padded, begin, end, p, stride, acc);
}
FLASHCORE_CLONES void add_values_one_row_f64(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                             const double* p, double* acc) {
  add_values<Lanes64, 1>(v, padded, begin, end, p, 0, acc);
}
FLASHCORE_CLONES void add_values_one_row_f32(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                             const float* p, float* acc) {
  add_values<Lanes32, 1>(v, padded, begin, end, p, 0, acc);
}

// What a row's scores say of its result before any exponential.
enum class RowKind { kPlain, kEmpty, kInvalid };

// Keys of one row, counted as its scores are: from the block's first key on.
using Keys = KeyRange<std::int64_t>;

// Of the fp64 pass: the derivatives and errors of the user's own function.
void transform_by_user(ReferenceScratch& scratch, const ExpressionPoint& from, double) {
  scratch.given = scratch.s64;
  scratch.gains.resize(scratch.s64.size()), scratch.own.resize(scratch.s64.size());
  scratch.score->scores(from, scratch.s64, scratch.gains, scratch.own);
}
void transform_by_user(ReferenceScratch& scratch, const ExpressionPoint& from, float) {
  scratch.score->scores(from, scratch.s64);
}

// Scaled scores of a row become what the problem's functions make of them: scratch.before keeps those that ALiBi was
// given. An idealised kernel rounds the result once.
template <class T>
void transform_scores(ReferenceScratch& scratch, const ReferenceRow& row, std::int64_t first, T* scores) {
  if (!scratch.softcap && !scratch.alibi && !scratch.score) return;
  const auto count = static_cast<std::size_t>(row.keys.size());
  scratch.s64.assign(scores + row.keys.begin, scores + row.keys.end);
  ExpressionPoint from = row.at;
  from.j = static_cast<std::int32_t>(first + row.keys.begin);
  if (scratch.softcap) scratch.softcap->scores(from, scratch.s64);
  scratch.before = scratch.s64;
  if (scratch.alibi) scratch.alibi->scores(from, scratch.s64);
  if (scratch.score) transform_by_user(scratch, from, T());
  for (std::size_t j = 0; j < count; ++j)
    scores[row.keys.begin + static_cast<std::int64_t>(j)] = static_cast<T>(scratch.s64[j]);
}

// Scores of q·k become those that the softmax takes; `maximum` is that of the keys.
template <class T>
RowKind make_scores(const PackedHead& head, ReferenceScratch& scratch, const ReferenceRow& row, std::int64_t first,
                    T* scores, T scale, T* maximum) {
  const Keys& keys = row.keys;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) scores[j] *= scale;
  if (!head.k_factors.empty())
    for (std::int64_t j = keys.begin; j < keys.end; ++j)
      scores[j] *= static_cast<T>(head.k_factors[static_cast<std::size_t>(first + j)]);
  transform_scores(scratch, row, first, scores);
  for (std::size_t n = 0; n < row.visible.size(); ++n)
    if (row.visible[n] == 0) scores[keys.begin + static_cast<std::int64_t>(n)] = -std::numeric_limits<T>::infinity();
  T highest = -std::numeric_limits<T>::infinity();
  bool nan = false;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    nan |= std::isnan(scores[j]);
    highest = std::max(highest, scores[j]);
  }
  *maximum = highest;
  const float sink = row.sink.value_or(0);
  if (nan || highest == std::numeric_limits<T>::infinity() || std::isnan(sink) ||
      sink == std::numeric_limits<float>::infinity())
    return RowKind::kInvalid;
  return highest == -std::numeric_limits<T>::infinity() ? RowKind::kEmpty : RowKind::kPlain;
}

// What each row weighs its values with: `p`, times the factors of those that have their own.
void multiply_by_factors(const PackedHead& head, std::int64_t first, const std::vector<ReferenceRow>& rows, double* p,
                         std::int64_t stride) {
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::int64_t j = rows[r].keys.begin; j < rows[r].keys.end; ++j)
      p[static_cast<std::int64_t>(r) * stride + j] *= head.v_factors[static_cast<std::size_t>(first + j)];
}

// The log-sum-exp of a row without keys.
double empty_lse(const ReferenceRow& row) { return row.sink ? static_cast<double>(*row.sink) : -kInfinity; }

// Keys that not every row sees are added row by row: a hidden key contributes nothing, where 0 * NaN would.
template <class T, class AllRows, class OneRow>
void weigh_values(const PackedHead& head, std::int64_t first, const std::vector<ReferenceRow>& rows, const T* p,
                  std::int64_t stride, T* acc, const AllRows& all_rows, const OneRow& one_row) {
  const float* v = head.v.data() + first * head.padded_v;
  const auto own = [&](std::size_t r, std::int64_t begin, std::int64_t end) {
    const auto at = static_cast<std::int64_t>(r);
    one_row(v, head.padded_v, begin, end, p + at * stride, acc + at * head.padded_v);
  };
  if (!rows.front().visible.empty() && !head.is_v_finite) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const ReferenceRow& row = rows[r];
      for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j)
        if (row.visible[static_cast<std::size_t>(j - row.keys.begin)] != 0) own(r, j, j + 1);
    }
    return;
  }
  Keys common{0, rows.size() == kRows ? head.keys - first : 0};
  for (const ReferenceRow& row : rows) {
    common.begin = std::max(common.begin, row.keys.begin);
    common.end = std::min(common.end, row.keys.end);
  }
  if (common.begin >= common.end) {
    for (std::size_t r = 0; r < rows.size(); ++r) own(r, rows[r].keys.begin, rows[r].keys.end);
    return;
  }
  for (std::size_t r = 0; r < rows.size(); ++r) own(r, rows[r].keys.begin, common.begin);
  all_rows(v, head.padded_v, common.begin, common.end, p, stride, acc);
  for (std::size_t r = 0; r < rows.size(); ++r) own(r, common.end, rows[r].keys.end);
}

// tile/expression.cuh: tanh is within 2^-21, of an argument that is rounded twice.
constexpr double kTanhError = 0x1p-21 + 0x1p-23;
// A slope is multiplied with a constant, both rounded, and the product with a rounded scale; the difference is rounded.
constexpr double kAlibiError = 3 * 0x1p-24, kAlibiSum = 0x1p-24;

// A user's function takes scores in natural units and gives them: one rounding before, and two after it.
constexpr double kUnitsBefore = kUlpF32, kUnitsAfter = 2 * kUlpF32;

// Scores become normalised probabilities.
ScoreStatistics weigh_scores(const ReferenceScratch& scratch, const ReferenceRow& row, double* scores, double maximum) {
  ScoreStatistics found;
  const double sink = row.sink ? static_cast<double>(*row.sink) : -kInfinity;
  const bool functions = scratch.softcap || scratch.alibi || scratch.score;
  found.maximum = maximum, found.top = std::max(maximum, sink);
  found.given = !functions ? maximum : scratch.score ? 0 : -kInfinity;
  double sum = std::exp(sink - found.top), absolute = 0, below = 0, below2 = 0, squares = 0, errors = 0, errors2 = 0;
  const double of_sink = sum;
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
    const double score = scores[j], exponential = std::exp(score - found.top);
    sum += exponential;
    scores[j] = exponential;
    if (exponential == 0) continue;  // -inf
    const auto key = static_cast<std::size_t>(j - row.keys.begin);
    const double before = functions ? scratch.before[key] : score;
    const double gain = scratch.score ? std::abs(scratch.gains[key]) : 1;
    // What a user's function makes of an infinity does not depend on it where it is finite.
    const double sensed = gain == 0 ? 0 : gain * std::abs(before);
    if (scratch.score && gain != 0) found.given = std::max(found.given, std::abs(before));
    else if (functions && !scratch.score) found.given = std::max(found.given, before);
    const double distance = before - maximum;
    absolute += exponential * sensed;
    below += exponential * distance;
    below2 += exponential * distance * distance;
    squares += exponential * sensed * sensed;
    if (!functions) continue;
    const double built_in = scratch.score ? scratch.given[key] : score;  // what softcap and ALiBi make of the score
    double error = (scratch.softcap ? kTanhError * std::abs(before) : 0) +
                   (scratch.alibi ? kAlibiError * std::abs(before - built_in) + kAlibiSum * std::abs(built_in) : 0);
    if (scratch.score)
      error = (gain == 0 ? 0 : gain * (error + kUnitsBefore * std::abs(built_in))) + scratch.own[key] +
              kUnitsAfter * std::abs(score);
    found.function_most = std::max(found.function_most, error);
    errors += exponential * error;
    errors2 += exponential * error * error;
  }
  if (found.given == -kInfinity) found.given = maximum;  // no key has a weight
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) scores[j] /= sum;
  found.lse = found.top + std::log(sum);
  found.mean_abs = absolute / sum;
  const double mean = below / sum;
  found.deviation =
      functions || row.sink ? std::sqrt(squares / sum) : std::sqrt(std::max(0.0, below2 / sum - mean * mean));
  found.function_mean = errors / sum, found.function_rms = std::sqrt(errors2 / sum);
  // Two more exponentials, 2^-22 each, and the sink in base 2, by a constant and a product that are rounded.
  if (row.sink) found.sink_share = 2 * 0x1p-22 + (of_sink > 0 ? of_sink / sum * 0x1p-23 * std::abs(sink) : 0);
  return found;
}

// The derivative of c · tanh(s / c) is 1 - (its value / c)^2; that of the user's function is at hand.
void add_slopes(ReferenceScratch& scratch, const ReferenceRow& row, double softcap, std::int64_t at) {
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
    const auto key = static_cast<std::size_t>(j - row.keys.begin);
    const double share = scratch.softcap ? scratch.before[key] / softcap : 0;
    const double slope = (1 - share * share) * (scratch.score ? std::abs(scratch.gains[key]) : 1);
    // NaN is of a key that a mask function hides: of any other the row is NaN, and has no slopes.
    scratch.slopes[static_cast<std::size_t>(at + j)] = std::isnan(slope) ? 0 : slope;
  }
}

// Of a row's scores as the softmax takes them; hidden ones are -inf.
double largest_magnitude(const ReferenceRow& row, const double* scores) {
  double largest = 0;
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j)
    if (scores[j] != -kInfinity) largest = std::max(largest, std::abs(scores[j]));
  return largest;
}

void finish_f64(const PackedHead& head, std::int64_t first, std::vector<ReferenceRow>& rows, const ReferenceHead& what,
                ReferenceScratch& scratch, std::int64_t stride) {
  double* p = scratch.p64.data();
  std::vector<RowKind> kinds;
  ScoreStatistics statistics[kRows];
  for (std::size_t r = 0; r < rows.size(); ++r) {
    ReferenceRow& row = rows[r];
    double* scores = p + static_cast<std::int64_t>(r) * stride;
    double maximum = 0;
    kinds.push_back(make_scores(head, scratch, row, first, scores, what.scale * row.q_factor, &maximum));
    if (row.amax) *row.amax = kinds[r] == RowKind::kInvalid ? kNan : largest_magnitude(row, scores);
    if (kinds[r] != RowKind::kPlain) {
      std::fill(scores + row.keys.begin, scores + row.keys.end, 0.0);
      *row.lse = kinds[r] == RowKind::kInvalid ? kNan : empty_lse(row);
      if (kinds[r] == RowKind::kEmpty && row.sink) predict_lse_of_sink(row);
      continue;
    }
    statistics[r] = weigh_scores(scratch, row, scores, maximum);
    if (scratch.softcap || scratch.score) add_slopes(scratch, row, what.softcap, static_cast<std::int64_t>(r) * stride);
    *row.lse = statistics[r].lse;
  }
  std::fill(scratch.acc64.begin(), scratch.acc64.end(), 0.0);
  const double* weights = p;
  if (!head.v_factors.empty()) {
    scratch.weights64 = scratch.p64;  // the errors below go by p
    multiply_by_factors(head, first, rows, scratch.weights64.data(), stride);
    weights = scratch.weights64.data();
  }
  weigh_values(head, first, rows, weights, stride, scratch.acc64.data(), add_values_f64, add_values_one_row_f64);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double* acc = scratch.acc64.data() + static_cast<std::int64_t>(r) * head.padded_v;
    for (std::int64_t d = 0; d < head.head_dim_v; ++d) {
      rows[r].o[d] = kinds[r] == RowKind::kPlain ? acc[d] * what.v_scale : kinds[r] == RowKind::kInvalid ? kNan : 0.0;
    }
    if (kinds[r] == RowKind::kPlain) {
      const auto of_row = static_cast<std::int64_t>(r) * stride;
      const bool slopes = scratch.softcap || scratch.score;
      predict_errors(head, first, what, p + of_row, slopes ? scratch.slopes.data() + of_row : nullptr, statistics[r],
                     rows[r]);
    }
  }
}

// P as an idealised kernel has it; `exponential` is at most 1.
float round_p(DType dtype, float exponential) {
  if (size_of(dtype) > 1) return round_to(dtype, exponential);
  constexpr auto kScale = static_cast<float>(kScaleOfP8);
  return round_to(DType::kE4M3, exponential * kScale) / kScale;
}

// A row's exponentials become what is multiplied with V's numbers. Beside a quantised cache weights of 16 bits carry
// the factors of their values where each has its own, and are numbers of fp16, which codes are exact in: in units of a
// power of two, so that the largest lies between 2^14 and 2^15.
void round_weights(const PackedHead& head, std::int64_t first, const ReferenceHead& what, KeyRange<std::int64_t> keys,
                   float* p) {
  const bool has_factors = !head.v_factors.empty();
  const auto factor = [&](std::int64_t j) {
    return has_factors ? static_cast<float>(head.v_factors[static_cast<std::size_t>(first + j)]) : 1.0f;
  };
  const bool are_fp16 = what.quantised_cache && size_of(what.dtype) == 2;
  float largest = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    p[j] = are_fp16 ? p[j] * factor(j) : round_p(what.dtype, p[j]) * factor(j);
    largest = std::max(largest, p[j]);
  }
  if (!are_fp16 || !(largest >= std::numeric_limits<float>::min()) || !std::isfinite(largest)) return;
  const double scale = std::ldexp(1.0, 14 - std::ilogb(largest));
  for (std::int64_t j = keys.begin; j < keys.end; ++j)
    p[j] = static_cast<float>(round_to(DType::kF16, static_cast<float>(p[j] * scale)) / scale);
}

void finish_f32(const PackedHead& head, std::int64_t first, std::vector<ReferenceRow>& rows, const ReferenceHead& what,
                ReferenceScratch& scratch, std::int64_t stride) {
  float* p = scratch.p32.data();
  const auto v_scale = static_cast<float>(what.v_scale);
  std::vector<RowKind> kinds;
  float sums[kRows] = {}, weights[kRows] = {1, 1, 1, 1};  // weights: of o, where a sink is larger than all keys
  static_assert(kRows == 4);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    ReferenceRow& row = rows[r];
    float* scores = p + static_cast<std::int64_t>(r) * stride;
    float maximum = 0;
    const auto scale = static_cast<float>(what.scale * row.q_factor);
    kinds.push_back(make_scores(head, scratch, row, first, scores, scale, &maximum));
    if (kinds[r] != RowKind::kPlain) {
      std::fill(scores + row.keys.begin, scores + row.keys.end, 0.0f);
      *row.ideal_lse = static_cast<float>(kinds[r] == RowKind::kInvalid ? kNan : empty_lse(row));
      continue;
    }
    // A kernel rounds P relative to the largest of the keys, and adds the sink at the end.
    for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
      const float exponential = std::exp(scores[j] - maximum);
      sums[r] += exponential;
      scores[j] = exponential;
    }
    round_weights(head, first, what, row.keys, scores);
    if (row.sink) {
      const float top = std::max(maximum, *row.sink), of_keys = std::exp(maximum - top);
      const float all = of_keys * sums[r] + std::exp(*row.sink - top);
      weights[r] = of_keys, sums[r] = all, maximum = top;
    }
    *row.ideal_lse = maximum + std::log(sums[r]);
  }
  std::fill(scratch.acc32.begin(), scratch.acc32.end(), 0.0f);
  weigh_values(head, first, rows, p, stride, scratch.acc32.data(), add_values_f32, add_values_one_row_f32);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const float* acc = scratch.acc32.data() + static_cast<std::int64_t>(r) * head.padded_v;
    for (std::int64_t d = 0; d < head.head_dim_v; ++d) {
      const float value = kinds[r] == RowKind::kPlain     ? acc[d] * weights[r] / sums[r] * v_scale
                          : kinds[r] == RowKind::kInvalid ? static_cast<float>(kNan)
                                                          : 0.0f;
      rows[r].ideal_o[d] = round_to(what.output_dtype, value);
    }
  }
}

}  // namespace

PackedHead pack_head(const HostTensor& k, const HostTensor& v, VLayout v_layout, std::int64_t batch, std::int64_t head,
                     const KeyFactors& factors) {
  const bool transposed = v_layout == VLayout::kDn;
  PackedHead packed;
  packed.k_factors = factors.k, packed.v_factors = factors.v;
  packed.keys = k.layout.rows;
  packed.head_dim = k.layout.columns;
  packed.head_dim_v = transposed ? v.layout.rows : v.layout.columns;
  packed.padded_v = (packed.head_dim_v + kLanes - 1) / kLanes * kLanes;
  const std::int64_t panels = (packed.keys + kLanes - 1) / kLanes;
  packed.k.assign(static_cast<std::size_t>(panels * packed.head_dim * kLanes), 0.0f);
  packed.v.assign(static_cast<std::size_t>(packed.keys * packed.padded_v), 0.0f);
  for (std::int64_t j = 0; j < packed.keys; ++j) {
    double k2 = 0, v2 = 0, v_sum = 0;
    for (std::int64_t d = 0; d < packed.head_dim; ++d) {
      const float value = k.at(batch, head, j, d);
      packed.k[static_cast<std::size_t>((j / kLanes * packed.head_dim + d) * kLanes + j % kLanes)] = value;
      k2 += static_cast<double>(value) * value;
    }
    for (std::int64_t d = 0; d < packed.head_dim_v; ++d) {
      const float value = transposed ? v.at(batch, head, d, j) : v.at(batch, head, j, d);
      packed.v[static_cast<std::size_t>(j * packed.padded_v + d)] = value;
      v2 += static_cast<double>(value) * value;
      v_sum += value;
    }
    const auto key = static_cast<std::size_t>(j);
    const double by_k = factors.k.empty() ? 1 : factors.k[key], by_v = factors.v.empty() ? 1 : factors.v[key];
    packed.k_norm.push_back(std::isfinite(k2) ? static_cast<float>(by_k * std::sqrt(k2)) : 0.0f);
    packed.is_v_finite = packed.is_v_finite && std::isfinite(v2);
    packed.v_norm.push_back(static_cast<float>(by_v * std::sqrt(v2)));
    packed.v_sum.push_back(static_cast<float>(by_v * v_sum));
  }
  return packed;
}

void reference_block(const PackedHead& head, const ReferenceHead& what, std::vector<ReferenceRow>& rows,
                     ReferenceScratch& scratch) {
  std::int64_t first = head.keys, end = 0;
  for (const ReferenceRow& row : rows) {
    if (row.keys.empty()) continue;
    first = std::min(first, row.keys.begin);
    end = std::max(end, row.keys.end);
  }
  first = std::min(first, end) / kLanes * kLanes;  // the packed keys start anew every kLanes
  const std::int64_t count = end - first, stride = (count + kLanes - 1) / kLanes * kLanes;
  for (ReferenceRow& row : rows)
    row.keys = row.keys.empty() ? Keys{0, 0} : Keys{row.keys.begin - first, row.keys.end - first};
  scratch.p64.resize(static_cast<std::size_t>(kRows * stride));
  scratch.p32.resize(static_cast<std::size_t>(kRows * stride));
  if (scratch.softcap || scratch.score) scratch.slopes.resize(static_cast<std::size_t>(kRows * stride));
  scratch.acc64.resize(static_cast<std::size_t>(kRows * head.padded_v));
  scratch.acc32.resize(static_cast<std::size_t>(kRows * head.padded_v));
  std::vector<float> q32(static_cast<std::size_t>(kRows * head.head_dim), 0.0f);
  for (std::size_t r = 0; r < rows.size(); ++r)
    std::copy(rows[r].q.begin(), rows[r].q.end(), q32.begin() + static_cast<std::int64_t>(r) * head.head_dim);
  const float* k = head.k.data() + first * head.head_dim;
  if (rows.front().o != nullptr) {
    const std::vector<double> q64(q32.begin(), q32.end());
    dot_keys_f64(k, head.head_dim, count, q64.data(), scratch.p64.data(), stride);
    finish_f64(head, first, rows, what, scratch, stride);
  }
  dot_keys_f32(k, head.head_dim, count, q32.data(), scratch.p32.data(), stride);
  finish_f32(head, first, rows, what, scratch, stride);
}

}  // namespace flashcore
