#include "core/reference_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

using Float8 = float __attribute__((vector_size(32)));
using Float16 = float __attribute__((vector_size(64)));
using Double8 = double __attribute__((vector_size(64)));

// out[r][j] = sum over d of q[r][d] * k[j][d], for the first `keys` keys rounded up to whole panels. The lane loops run
// over keys, so each dot product is summed in order of d, in T.
template <class T, class Vector, class Load, int kWidth>
FLASHCORE_INLINE void dot_keys(const float* panels, std::int64_t dim, std::int64_t keys, const T* q, T* out,
                               std::int64_t stride) {
  for (std::int64_t start = 0; start < keys; start += kWidth) {
    const float* panel = panels + start / kLanes * dim * kLanes + start % kLanes;
    Vector acc[kRows] = {};
    for (std::int64_t d = 0; d < dim; ++d) {
      Load raw;
      std::memcpy(&raw, panel + d * kLanes, sizeof raw);
      const Vector value = __builtin_convertvector(raw, Vector);
      for (int r = 0; r < kRows; ++r) acc[r] += q[r * dim + d] * value;
    }
    for (int r = 0; r < kRows; ++r) std::memcpy(out + r * stride + start, &acc[r], sizeof acc[r]);
  }
}

// acc[r][d] += sum over j in [begin, end) of p[r][j] * v[j][d], for `kCount` rows; in order of j, in T.
template <class T, class Vector, class Load, int kWidth, int kCount>
FLASHCORE_INLINE void add_values(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end, const T* p,
                                 std::int64_t stride, T* acc) {
  for (std::int64_t d = 0; d < padded; d += kWidth) {
    Vector sum[kCount];
    for (int r = 0; r < kCount; ++r) std::memcpy(&sum[r], acc + r * padded + d, sizeof sum[r]);
    for (std::int64_t j = begin; j < end; ++j) {
      Load raw;
      std::memcpy(&raw, v + j * padded + d, sizeof raw);
      const Vector value = __builtin_convertvector(raw, Vector);
      for (int r = 0; r < kCount; ++r) sum[r] += p[r * stride + j] * value;
    }
    for (int r = 0; r < kCount; ++r) std::memcpy(acc + r * padded + d, &sum[r], sizeof sum[r]);
  }
}

FLASHCORE_CLONES void dot_keys_f64(const float* k, std::int64_t dim, std::int64_t keys, const double* q, double* out,
                                   std::int64_t stride) {
  dot_keys<double, Double8, Float8, 8>(k, dim, keys, q, out, stride);
}
FLASHCORE_CLONES void dot_keys_f32(const float* k, std::int64_t dim, std::int64_t keys, const float* q, float* out,
                                   std::int64_t stride) {
  dot_keys<float, Float16, Float16, 16>(k, dim, keys, q, out, stride);
}
FLASHCORE_CLONES void add_values_f64(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                     const double* p, std::int64_t stride, double* acc) {
  add_values<double, Double8, Float8, 8, kRows>(v, padded, begin, end, p, stride, acc);
}
FLASHCORE_CLONES void add_values_f32(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                     const float* p, std::int64_t stride, float* acc) {
  add_values<float, Float16, Float16, 16, kRows>(v, padded, begin, end, p, stride, acc);
}
FLASHCORE_CLONES void add_values_one_row_f64(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                             const double* p, double* acc) {
  add_values<double, Double8, Float8, 8, 1>(v, padded, begin, end, p, 0, acc);
}
FLASHCORE_CLONES void add_values_one_row_f32(const float* v, std::int64_t padded, std::int64_t begin, std::int64_t end,
                                             const float* p, float* acc) {
  add_values<float, Float16, Float16, 16, 1>(v, padded, begin, end, p, 0, acc);
}

// What a row's scores say of its result before any exponential.
enum class RowKind { kPlain, kEmpty, kInvalid };

// Keys of one row, counted as its scores are: from the block's first key on.
using Keys = KeyRange<std::int64_t>;

std::int64_t visible_keys(const ReferenceRow& row) {
  if (row.visible.empty()) return row.keys.size();
  return std::count(row.visible.begin(), row.visible.end(), 1);
}

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
RowKind make_scores(ReferenceScratch& scratch, const ReferenceRow& row, std::int64_t first, T* scores, T scale,
                    T* maximum) {
  const Keys& keys = row.keys;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) scores[j] *= scale;
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

// Of one row's scores in fp64: what its probabilities say of errors that all keys share.
struct ScoreStatistics {
  double maximum = 0, lse = 0;  // maximum: of the keys
  double top = 0;               // of the keys and the sink
  double given = 0;             // of the keys, before ALiBi; with a user's function the largest in size
  double mean_abs = 0;          // of |score| before ALiBi, weighted with p
  // Of the same, weighted with p. Where an error of the same relative size moves scores unalike (softcap), or not all
  // of the row (ALiBi, a sink), it is about 0 rather than about the mean.
  double deviation = 0;
  double function_mean = 0, function_rms = 0;  // errors of the problem's functions of scores, weighted with p
  double sink_share = 0;                       // error of the row's sum by the sink, relatively
};

// tile/expression.cuh: tanh is within 2^-21, of an argument that is rounded twice.
constexpr double kTanhError = 0x1p-21 + 0x1p-23;
// A slope is multiplied with a constant, both rounded, and the product with a rounded scale; the difference is rounded.
constexpr double kAlibiError = 3 * 0x1p-24, kAlibiSum = 0x1p-24;

constexpr double kUlpF32 = 0x1p-24;
// A user's function takes scores in natural units and gives them: one rounding before, and two after it.
constexpr double kUnitsBefore = kUlpF32, kUnitsAfter = 2 * kUlpF32;
// P of 8 bits is e4m3, whatever v is, of 2^8 times the probability relative to the row's largest: 256 of the 448 that
// fit. A kernel that rescales lazily may keep it smaller, within the bound's factor.
constexpr double kScaleOfP8 = 0x1p8;
// Below this, relative to the row's largest, a kernel that scales P by 2^6 rounds it to 0, all keys alike.
constexpr double kLostP8 = 0x1p-16;
// Hopper's tensor cores add 32 products of 8-bit floats at a time to a sum, each addend cut off 13 bits below the
// leading bit of the largest (recorded in results/h200/conformance.json, and what the emulator does). Of 33 addends of
// any sign that is 3.3 * 2^-13 of the largest, rms, which is about three times the rms sum: a step costs 2^-9.7 of
// that.
constexpr double kFp8Step = 10 * 0x1p-13;
// Keys that a kernel may sum up so before it adds the sum to one in fp32 (promotes it).
constexpr double kKeysPerPromotion = 256;

// Of a score, over d / 32 steps. Where addends differ in sign the rms sum is |q||k|/sqrt(d), and the errors of the
// steps add up as their squares. Where they do not (q along k), half of the addends of a step lose half of 2^-13 of the
// partial sum, always towards zero.
double error_of_fp8_score(double norms, double score, double dim) {
  const double steps = std::ceil(dim / 32);
  return kFp8Step / std::sqrt(32.0) * norms + 0x1p-10 * (steps + 1) / 2 * std::abs(score);
}

struct Fp8Sums {
  double random = 0;    // of the rms over keys, where the signs of the addends differ
  double coherent = 0;  // of the sum itself, where they do not: all errors are towards zero
};
// Of probabilities and values, `keys` before each promotion.
Fp8Sums errors_of_fp8_sums(double keys) {
  // The partial sum has half of the final one's square on average.
  const double random = kFp8Step * std::sqrt(keys / 32 / 2);
  // Products have 8 bits, so that equal ones lose none while they are fewer than 128; each loses half of 2^-13 of the
  // partial sum after that, which lies half-way between that of 128 keys and the final one.
  const double beyond = std::max(0.0, keys - 128);
  return {random, beyond * 0x1p-14 * (keys + 128) / (2 * keys)};
}

// Error of P rounded to e4m3, for a probability of `relative` to the row's largest; `of_unit` is its rms where the
// largest one is 1.
double error_of_p8(double relative, double of_unit) {
  const Precision e4m3 = precision_of(DType::kE4M3);
  const double subnormal = e4m3.smallest / (std::sqrt(3.0) * kScaleOfP8);  // uniform within half a gap
  return std::min(relative, std::max(of_unit * e4m3.unit * relative, subnormal));
}

// rms relative error of rounding to nearest in units of the largest one, over log-uniform mantissas:
// sqrt(1/3 * (1 - 1/4) / (2 ln 2)). And of an error that may be anywhere within a unit.
constexpr double kRms = 0.425;
constexpr double kUniform = 0.57735;  // sqrt(1/3)

// Sums over a row that the errors are made of.
struct RowSums {
  double o2 = 0, q2 = 0, mean_v = 0, mean_v2 = 0;
  double p2 = 0, steepness = 0;              // of p^2, and of p, times the slope of softcap
  double noise2 = 0, spread2 = 0;            // of p |v|, and of how far o moves with each score
  double p_noise2 = 0;                       // of o, by P's rounding: rms
  double p_budget2 = 0, p_sums_budget2 = 0;  // the same by errors anywhere within a unit; and of the sum of o
  double lost = 0;                           // p |v| that 8-bit P may round to 0
  double v2 = 0;
  double score = 0;  // the rms error of a score
};

// How far o moves at most with errors e of the scores, by their rms weighted with p (Cauchy and Schwarz):
// |sum p e (v - o)| <= sqrt(sum p e^2) sqrt(sum p |v - o|^2).
double spread_of(const RowSums& s) { return std::sqrt(std::max(0.0, s.mean_v2 - s.o2)); }

// What 16-bit tensor cores lose of a sum of `terms` addends of one sign, always towards zero, so that it does not
// average out; in units of 2^-24 of the sum. Hopper's cut each of 16 products a step two bits below the last one of
// fp32 (of the largest addend), and the step's sum to fp32: 16/8 + 3/8 units in the last place. Over a sum that grows
// evenly such a unit is at most 3/4 * 2^-24 of the result. (Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor
// Cores", arXiv 2512.07004; an H200 was off by what a model of it gives: docs/correctness.md, "Sums".)
double truncation_of(DType dtype, double terms) {
  return size_of(dtype) == 2 ? terms / 16 * (16.0 / 8 + 3.0 / 8) * 0.75 : 0;
}

// `slopes`: ReferenceScratch's, of the row; null: 1 for each key.
RowSums sum_row(const PackedHead& head, std::int64_t first, const ReferenceHead& what, const ScoreStatistics& scores,
                const double* p, const double* slopes, const ReferenceRow& row) {
  const bool fp8 = size_of(what.dtype) == 1;
  const double p_unit = what.dtype == DType::kF32 ? 0 : precision_of(what.dtype).unit;
  const double p_max = std::exp(scores.maximum - scores.lse), dim = static_cast<double>(head.head_dim);
  RowSums s;
  for (std::int64_t d = 0; d < head.head_dim_v; ++d) s.o2 += row.o[d] * row.o[d];
  for (const float q : row.q) s.q2 += static_cast<double>(q) * q;
  // Scores of an infinity are infinite, or the softcap exactly.
  if (!std::isfinite(s.q2)) s.q2 = 0;
  const float *v_norm = head.v_norm.data() + first, *v_sum = head.v_sum.data() + first;
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) s.mean_v += p[j] * what.v_scale * v_norm[j];
  for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
    const double norm = what.v_scale * v_norm[j], sum = what.v_scale * v_sum[j], pv = p[j] * norm;
    // An error in one score moves o along v_j - o, which is at most (1 - p_j)|v_j| + sum of the other p|v| long.
    const double slope = slopes ? slopes[j] : 1;
    const double moved = slope * p[j] * ((1 - 2 * p[j]) * norm + s.mean_v);
    s.noise2 += pv * pv;
    s.spread2 += moved * moved;
    s.mean_v2 += pv * norm;
    s.v2 += norm * norm;
    s.p2 += slope * p[j] * (slope * p[j]);
    s.steepness += slope * p[j];
    const double relative = p_max > 0 ? p[j] / p_max : 0;  // beside a sink that takes all of the row
    const double rms = fp8 ? error_of_p8(relative, kRms) * p_max : kRms * p_unit * p[j];
    const double uniform = fp8 ? error_of_p8(relative, kUniform) * p_max : kUniform * p_unit * p[j];
    s.p_noise2 += rms * norm * (rms * norm);
    s.p_budget2 += uniform * norm * (uniform * norm);
    s.p_sums_budget2 += uniform * sum * (uniform * sum);
    if (fp8 && p[j] < kLostP8 * p_max) s.lost += pv;
  }
  const float* k_norm = head.k_norm.data() + first;
  const double longest_k = *std::max_element(k_norm + row.keys.begin, k_norm + row.keys.end);
  // An fp32 dot product of d terms is off by about 2^-24 |q||k|, twice that with the adds inside an instruction.
  const double norms = what.scale * std::sqrt(s.q2) * longest_k;
  s.score = (2 * norms + truncation_of(what.dtype, dim) * std::abs(scores.given)) * kUlpF32;
  if (fp8) s.score += error_of_fp8_score(norms, scores.given, dim);
  return s;
}

// What rounding may make of the row's sums (docs/correctness.md, "Sums").
RowBudget budget_of(const PackedHead& head, const ReferenceHead& what, const RowSums& s, const ScoreStatistics& scores,
                    const ReferenceRow& row) {
  RowBudget budget;
  const double keys = static_cast<double>(visible_keys(row)), dim = static_cast<double>(head.head_dim_v);
  const bool tensor_cores = what.dtype != DType::kF32, fp8 = size_of(what.dtype) == 1;
  // The same relative error of every score: the scale rounded to fp32, and truncations.
  const double score_dim = static_cast<double>(head.head_dim);
  const double shared =
      (2 + truncation_of(what.dtype, score_dim)) * kUlpF32 + (fp8 ? error_of_fp8_score(0, 1, score_dim) : 0);
  // ex2.approx, and lg2.approx: absolute below 2, else relative (PTX ISA).
  const double log2_sum = (scores.lse - scores.top) / std::log(2.0);
  budget.lse_systematic =
      (0x1p-22 + 0x1p-22 * std::log(2.0) * std::max(1.0, std::abs(log2_sum)) + shared * scores.mean_abs) +
      scores.function_mean + scores.sink_share;
  // Three roundings of such numbers, each uniform.
  const double conversions = kUlpF32 * (1 + std::abs(scores.lse) + std::abs(scores.top));
  const double lane_sum = kUlpF32 / 12, chain_sum = kUlpF32 / 3;  // four lanes side by side; one alone
  budget.lse_variance = (conversions * conversions + lane_sum * lane_sum * keys + s.score * s.score * s.p2);
  budget.lse_chain_variance = ((chain_sum * chain_sum - lane_sum * lane_sum) * keys);
  if (!tensor_cores) return budget;
  const Precision output = precision_of(what.output_dtype);
  const double norm = std::sqrt(s.o2);
  double rounding2 = 0, scaled_rounding2 = 0, saturated2 = 0;
  for (std::int64_t d = 0; d < head.head_dim_v; ++d) {
    const double half = half_gap(output, row.o[d]);
    const double beyond = size_of(what.output_dtype) == 1 ? std::abs(row.o[d]) - output.largest : 0;
    if (beyond > 0) saturated2 += beyond * beyond;  // 8-bit o stops there
    rounding2 += half * half / 3;
    scaled_rounding2 += row.o[d] * row.o[d] * half * half / 3;
  }
  const double p_max = std::exp(scores.maximum - scores.lse);
  const double tiny_p2 = what.dtype == DType::kF16 ? 0x1p-50 * p_max * p_max * s.v2 / 3 : 0;
  const Fp8Sums sums = fp8 ? errors_of_fp8_sums(std::min(keys, kKeysPerPromotion)) : Fp8Sums{};
  const double other2 = kUlpF32 * kUlpF32 * keys * std::max(s.o2, s.noise2) + s.score * s.score * s.spread2 + tiny_p2 +
                        sums.random * sums.random * s.noise2;
  // Of |o|: exp2, the division, what the accumulator cuts off (of 8 bits until the sum is promoted); of o moved by
  // errors of all scores; and small P.
  const double truncated = fp8 ? sums.coherent : truncation_of(what.dtype, keys) * kUlpF32;
  const double systematic = norm * (0x1p-21 + truncated + scores.sink_share) +
                            (shared * scores.deviation + scores.function_rms) * spread_of(s) + s.lost +
                            std::sqrt(saturated2);
  budget.scale_systematic = (norm * systematic);
  budget.scale_variance = (scaled_rounding2 + s.o2 * (s.p_budget2 + other2));
  budget.bias_systematic = (std::sqrt(dim) * systematic);
  budget.bias_variance = (rounding2 + s.p_sums_budget2 + dim * other2);
  return budget;
}

// The rms that rounding theory predicts for an idealised kernel's row; p are the normalised probabilities.
void predict_errors(const PackedHead& head, std::int64_t first, const ReferenceHead& what, const double* p,
                    const double* slopes, const ScoreStatistics& scores, ReferenceRow& row) {
  const Precision output = precision_of(what.output_dtype);
  const RowSums s = sum_row(head, first, what, scores, p, slopes, row);
  const double keys = static_cast<double>(visible_keys(row));
  const double rounding2 = kRms * kRms * output.unit * output.unit * s.o2 + s.p_noise2;
  double sums2 = kUlpF32 * kUlpF32 * keys * std::max(s.o2, s.noise2);
  if (size_of(what.dtype) == 1) {
    const Fp8Sums errors = errors_of_fp8_sums(std::min(keys, kKeysPerPromotion));
    sums2 += errors.random * errors.random * s.noise2 + errors.coherent * errors.coherent * s.o2;
  }
  const double exp2_approx2 = 0x1p-44 * s.o2;
  const double subnormal2 = output.smallest * output.smallest * static_cast<double>(head.head_dim_v);
  const double functions = scores.function_rms * spread_of(s), sink2 = scores.sink_share * scores.sink_share * s.o2;
  *row.predicted_o = static_cast<float>(std::sqrt(rounding2 + sums2 + exp2_approx2 + subnormal2 +
                                                  s.score * s.score * s.spread2 + functions * functions + sink2));
  *row.predicted_lse = static_cast<float>(4 * kUlpF32 * (1 + std::abs(scores.lse)) + kUlpF32 * std::sqrt(keys) +
                                          s.score * s.steepness + scores.function_mean + scores.sink_share);
  *row.budget = budget_of(head, what, s, scores, row);
}

// Of a row that sees nothing but its sink: that is scaled to base 2 and back.
void predict_lse_of_sink(ReferenceRow& row) {
  const double size = std::abs(static_cast<double>(*row.sink));
  const double conversions = kUlpF32 * (1 + 2 * size);
  *row.predicted_lse = static_cast<float>(4 * kUlpF32 * (1 + size));
  row.budget->lse_systematic = 0x1p-22;
  row.budget->lse_variance = conversions * conversions;
}

// Scores become normalised probabilities.
ScoreStatistics weigh_scores(const ReferenceScratch& scratch, const ReferenceRow& row, double* scores, double maximum) {
  ScoreStatistics found;
  const double sink = row.sink ? static_cast<double>(*row.sink) : -kInfinity;
  const bool functions = scratch.softcap || scratch.alibi || scratch.score;
  found.maximum = maximum, found.top = std::max(maximum, sink);
  found.given = !functions      ? maximum
                : scratch.score ? 0
                                : *std::max_element(scratch.before.begin(), scratch.before.end());
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
    errors += exponential * error;
    errors2 += exponential * error * error;
  }
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
    scratch.slopes[static_cast<std::size_t>(at + j)] =
        (1 - share * share) * (scratch.score ? std::abs(scratch.gains[key]) : 1);
  }
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
    kinds.push_back(make_scores(scratch, row, first, scores, what.scale, &maximum));
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
  weigh_values(head, first, rows, p, stride, scratch.acc64.data(), add_values_f64, add_values_one_row_f64);
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

void finish_f32(const PackedHead& head, std::int64_t first, std::vector<ReferenceRow>& rows, const ReferenceHead& what,
                ReferenceScratch& scratch, std::int64_t stride) {
  float* p = scratch.p32.data();
  const auto scale = static_cast<float>(what.scale), v_scale = static_cast<float>(what.v_scale);
  std::vector<RowKind> kinds;
  float sums[kRows] = {}, weights[kRows] = {1, 1, 1, 1};  // weights: of o, where a sink is larger than all keys
  static_assert(kRows == 4);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    ReferenceRow& row = rows[r];
    float* scores = p + static_cast<std::int64_t>(r) * stride;
    float maximum = 0;
    kinds.push_back(make_scores(scratch, row, first, scores, scale, &maximum));
    if (kinds[r] != RowKind::kPlain) {
      std::fill(scores + row.keys.begin, scores + row.keys.end, 0.0f);
      *row.ideal_lse = static_cast<float>(kinds[r] == RowKind::kInvalid ? kNan : empty_lse(row));
      continue;
    }
    // A kernel rounds P relative to the largest of the keys, and adds the sink at the end.
    for (std::int64_t j = row.keys.begin; j < row.keys.end; ++j) {
      const float exponential = std::exp(scores[j] - maximum);
      sums[r] += exponential;
      scores[j] = round_p(what.dtype, exponential);
    }
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

double half_gap(const Precision& precision, double value) {
  constexpr int kLeastF32 = -126;
  const int exponent = value == 0 ? kLeastF32 : std::max(kLeastF32, std::ilogb(value));
  return std::max(std::ldexp(precision.unit, exponent), precision.smallest);
}

PackedHead pack_head(const HostTensor& k, const HostTensor& v, std::int64_t batch, std::int64_t head) {
  PackedHead packed;
  packed.keys = k.layout.rows;
  packed.head_dim = k.layout.columns;
  packed.head_dim_v = v.layout.columns;
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
      const float value = v.at(batch, head, j, d);
      packed.v[static_cast<std::size_t>(j * packed.padded_v + d)] = value;
      v2 += static_cast<double>(value) * value;
      v_sum += value;
    }
    packed.k_norm.push_back(std::isfinite(k2) ? static_cast<float>(std::sqrt(k2)) : 0.0f);
    packed.is_v_finite = packed.is_v_finite && std::isfinite(v2);
    packed.v_norm.push_back(static_cast<float>(std::sqrt(v2)));
    packed.v_sum.push_back(static_cast<float>(v_sum));
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
