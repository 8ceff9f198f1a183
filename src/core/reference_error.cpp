#include "core/reference_error.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace flashcore {
namespace {

std::int64_t visible_keys(const ReferenceRow& row) {
  if (row.visible.empty()) return row.keys.size();
  return std::count(row.visible.begin(), row.visible.end(), 1);
}

// By how much a kernel scales P before it rounds it to e4m3, at least: exponentials are relative to a maximum that may
// grow by a factor of 2^2.75 before one exceeds 448 (tile/byte_softmax.cuh). What is below half the gap of e4m3's
// subnormals then, relative to the row's largest, becomes 0, all keys alike.
constexpr double kLeastScaleOfP8 = 0x1p6;
constexpr double kLostP8 = 0x1p-10 / kLeastScaleOfP8;
// Hopper's tensor cores add 32 products of 8-bit floats at a time to a sum, each addend cut off 13 bits below the
// leading bit of the largest (recorded in results/h200/conformance.json, and what the emulator does). Of 33 addends of
// any sign that is 3.3 * 2^-13 of the largest, rms, which is about three times the rms sum: a step costs 2^-9.7 of
// that.
constexpr double kFp8Step = 10 * 0x1p-13;
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
  const double subnormal = e4m3.smallest / (std::sqrt(3.0) * kLeastScaleOfP8);  // uniform within half a gap
  return std::min(relative, std::max(of_unit * e4m3.unit * relative, subnormal));
}

// rms relative error of rounding to nearest in units of the largest one, over log-uniform mantissas:
// sqrt(1/3 * (1 - 1/4) / (2 ln 2)). And of an error that may be anywhere within a unit.
constexpr double kRms = 0.425;
constexpr double kUniform = 0.57735;  // sqrt(1/3)

// The distinct weights of a row's keys, relative to the largest. Where keys share a few, P's roundings are no longer
// independent: keys of one weight round alike, and so do the rows that have the same ones. A weight of 1 is exact,
// unless factors of their values come in; a sink joins the sum after P is rounded.
class DistinctWeights {
 public:
  void add(double relative) {
    const auto weight = static_cast<float>(relative);  // what fp64 rounds makes no difference
    // Of a row with one large logit all other weights are 0 here: they are no weights that keys share.
    if (weight == 0) return;
    ++keys_;
    const auto end = seen_.begin() + std::min(distinct_, kFew);
    if (distinct_ > kFew || std::find(seen_.begin(), end, weight) != end) return;
    if (distinct_ < kFew) seen_[static_cast<std::size_t>(distinct_)] = weight;
    ++distinct_;
  }
  bool round_alike(bool ones_are_exact) const {
    if (distinct_ == 1) return !ones_are_exact;
    return distinct_ <= kFew && keys_ >= 2 * distinct_;
  }

 private:
  static constexpr std::int64_t kFew = 8;
  std::array<float, kFew> seen_{};
  std::int64_t keys_ = 0, distinct_ = 0;
};

// How far the rounding of a row's weights to e4m3 moves their sum, weighted with the lengths of their values. Weights
// that lie close to each other, in pairs left and right of a row's own key (ALiBi) or in few steps, round alike, and
// their errors add up where values have one sign. Which way depends on the number that P is scaled by, and on nothing
// that the reference knows: the worst of some is taken.
class CoherentRounding {
 public:
  void add(double relative, double norm) {
    for (std::size_t i = 0; i < kScales; ++i) {
      const float scale = kLeast * kSteps[i];
      sums_[i] += error_of(static_cast<float>(relative) * scale) / scale * norm;
    }
  }
  double largest() const {
    double largest = 0;
    for (const double sum : sums_) largest = std::max(largest, std::abs(sum));
    return largest;
  }

 private:
  // Of an octave, in equal ratios. Of weights of one value 64 scales find 0.91 of the largest error that any scale
  // gives, 32 find 0.82, eight 0.50.
  static constexpr int kScales = 64;
  static constexpr float kLeast = static_cast<float>(kLeastScaleOfP8);
  static inline const std::array<float, kScales> kSteps = [] {
    std::array<float, kScales> steps{};
    for (int i = 0; i < kScales; ++i) steps[static_cast<std::size_t>(i)] = std::exp2(static_cast<float>(i) / kScales);
    return steps;
  }();
  // Of what is not negative and within e4m3's range.
  static float error_of(float x) {
    constexpr float kLeastNormal = 0x1p-6f, kStep = 0x1p-9f;
    if (x < kLeastNormal) return std::nearbyint(x / kStep) * kStep - x;
    constexpr int kDropped = 23 - 3;  // bits of the mantissa
    auto bits = std::bit_cast<std::uint32_t>(x);
    bits += (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1);
    return std::bit_cast<float>(bits & ~((1u << kDropped) - 1)) - x;
  }
  double sums_[kScales] = {};
};

// Weights relative to the row's largest exponential, a sink's too, are numbers of fp32, and what is below the least
// normal one may become 0: ex2.approx.ftz makes it so. Twice that, because the weight's score may be off; by ln 2 only
// where scores are beyond 10^5. Without a sink the row's largest key hides such weights. Beside a sink that is far
// above all keys they are the whole row, which bf16 and fp32 still have numbers for.
constexpr double kVanishingWeight = 0x1p-125;

// Sums over a row that the errors are made of.
struct RowSums {
  double o2 = 0, q2 = 0, mean_v = 0, mean_v2 = 0;
  double p2 = 0, steepness = 0;              // of p^2, and of p, times the slope of softcap
  double noise2 = 0, spread2 = 0;            // of p |v|, and of how far o moves with each score
  double p_noise2 = 0;                       // of o, by P's rounding: rms
  double p_budget2 = 0, p_sums_budget2 = 0;  // the same by errors anywhere within a unit; and of the sum of o
  double p_most = 0, p_sums_most = 0;        // the same where all of P's errors are as large as they can be
  double p_top = 0, p_sums_top = 0;  // and of the largest weight alone, where a factor makes it a number to round
  bool rounds_alike = false;         // as other rows do
  double coherent = 0;               // of o, by errors of P that add up
  double lost = 0;                   // p |v| that 8-bit P may round to 0
  double vanished = 0;               // p |v| of weights that are too small for fp32
  double v2 = 0;
  double score = 0;    // the rms error of a score
  double tiny_p2 = 0;  // of o, by probabilities below fp16's normal numbers
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

// The key that is alone in its row has P = 1, which every type has, unless a factor of its own value comes in.
bool is_p_exact(const PackedHead& head, const ReferenceHead& what, const ReferenceRow& row) {
  return visible_keys(row) == 1 && head.v_factors.empty() && what.dtype != DType::kF32;
}

RowSums sum_row(const PackedHead& head, std::int64_t first, const ReferenceHead& what, const ScoreStatistics& scores,
                const double* p, const double* slopes, const ReferenceRow& row) {
  const bool fp8 = size_of(what.dtype) == 1;
  const double p_unit = what.dtype == DType::kF32 ? 0 : precision_of(what.dtype).unit;
  const double p_max = std::exp(scores.maximum - scores.lse), dim = static_cast<double>(head.head_dim);
  const double vanishing = kVanishingWeight * std::exp(scores.top - scores.lse);  // of the normalised ones
  RowSums s;
  DistinctWeights weights;
  CoherentRounding rounding;
  const bool is_exact = is_p_exact(head, what, row);
  // What is left of it: two products that are rounded each its own way make its exponent, which the row's sum has and P
  // has not.
  const double alone = kUlpF32 * (1 + std::abs(scores.maximum));
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
    const double rms = is_exact ? alone * p[j] : fp8 ? error_of_p8(relative, kRms) * p_max : kRms * p_unit * p[j];
    const double uniform = is_exact ? kUniform * alone * p[j]
                           : fp8    ? error_of_p8(relative, kUniform) * p_max
                                    : kUniform * p_unit * p[j];
    s.p_noise2 += rms * norm * (rms * norm);
    if (static_cast<float>(relative) == 1 && !head.v_factors.empty()) {
      s.p_top += uniform / kUniform * norm;
      s.p_sums_top += uniform / kUniform * std::abs(sum);
    } else {
      s.p_budget2 += uniform * norm * (uniform * norm);
      s.p_sums_budget2 += uniform * sum * (uniform * sum);
    }
    s.p_most += uniform / kUniform * norm;
    s.p_sums_most += uniform / kUniform * std::abs(sum);
    weights.add(relative);
    if (fp8 && !is_exact) rounding.add(relative, norm * p_max);
    if (fp8 && p[j] < kLostP8 * p_max) s.lost += pv;
    if (p[j] < vanishing) s.vanished += pv;
  }
  // Where values are nearly one vector (positive ones, a constant), o moves by all of it, and rows whose weights are
  // alike (ALiBi, few keys that all see) move together. Else it counts as far as chance does not explain it.
  constexpr double kOfChance = 3;  // standard deviations, of the worst of all scales' sums
  constexpr double kNearlyOne = 0.8;
  const bool values_agree = std::sqrt(s.o2) > kNearlyOne * s.mean_v;
  s.coherent = std::max(0.0, rounding.largest() - (values_agree ? 0 : kOfChance * std::sqrt(s.p_noise2)));
  if (what.dtype == DType::kF16) s.tiny_p2 = 0x1p-50 * p_max * p_max * s.v2 / 3;
  s.rounds_alike = weights.round_alike(head.v_factors.empty());
  const float* k_norm = head.k_norm.data() + first;
  const double longest_k = *std::max_element(k_norm + row.keys.begin, k_norm + row.keys.end);
  // An fp32 dot product of d terms is off by about 2^-24 |q||k|, twice that with the adds inside an instruction.
  const double norms = what.scale * row.q_factor * std::sqrt(s.q2) * longest_k;
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
  budget.worst = s.vanished;
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
  const Fp8Sums sums = fp8 ? errors_of_fp8_sums(std::min(keys, kKeysPerPromotion)) : Fp8Sums{};
  const double other2 = kUlpF32 * kUlpF32 * keys * std::max(s.o2, s.noise2) + s.score * s.score * s.spread2 +
                        s.tiny_p2 + sums.random * sums.random * s.noise2;
  // Of |o|: exp2, the division, what the accumulator cuts off (of 8 bits until the sum is promoted); of o moved by
  // errors of all scores; and small P.
  const double truncated = fp8 ? sums.coherent : truncation_of(what.dtype, keys) * kUlpF32;
  const double systematic = norm * (0x1p-21 + truncated + scores.sink_share) +
                            (shared * scores.deviation + scores.function_rms) * spread_of(s) + s.lost + s.vanished +
                            std::sqrt(saturated2);
  budget.worst = systematic;
  budget.scale_systematic = norm * systematic;
  budget.scale_variance = s.o2 * other2;
  budget.bias_systematic = std::sqrt(dim) * systematic;
  budget.bias_variance = dim * other2;
  if (s.rounds_alike) {
    budget.scale_systematic += norm * s.p_most;
    budget.bias_systematic += s.p_sums_most;
    budget.scale_alike = std::sqrt(scaled_rounding2);
    budget.bias_alike = std::sqrt(rounding2);
  } else {
    budget.scale_variance += scaled_rounding2 + s.o2 * s.p_budget2;
    budget.bias_variance += rounding2 + s.p_sums_budget2;
    // The largest weight is 1 times its key's factor, and rounds alike in all rows that look at this key most.
    budget.scale_systematic += norm * (s.coherent + s.p_top);
    budget.bias_systematic += std::sqrt(dim) * s.coherent + s.p_sums_top;
  }
  return budget;
}

}  // namespace

double slack(double values) { return 1 + 3 / std::sqrt(std::max(1.0, values)); }

double half_gap(const Precision& precision, double value) {
  constexpr int kLeastF32 = -126;
  const int exponent = value == 0 ? kLeastF32 : std::max(kLeastF32, std::ilogb(value));
  return std::max(std::ldexp(precision.unit, exponent), precision.smallest);
}

namespace {

// The error of the worst of many rows, where `other` is the rms of all but P's rounding. P's errors are independent as
// far as weights differ: in the row of one key there is one, which moves all columns and may be as large as it can be.
// What such a row should be is a number of o's type, so that o's rounding follows P's: a little more than half a gap
// becomes a gap. With many keys the two have nothing to do with each other.
double worst_of_rows(const RowSums& s, double other, double columns) {
  const double one_key = s.rounds_alike ? 1 : s.mean_v > 0 ? std::min(1.0, s.noise2 / (s.mean_v * s.mean_v)) : 0;
  const double independent = kBoundFactor * slack(1 / std::max(one_key, 1e-12)) * std::sqrt(s.p_noise2);
  const double of_p = s.rounds_alike ? s.p_most : std::min(s.p_most, independent + s.coherent);
  const double of_others = kBoundFactor * slack(columns) * other;
  return std::sqrt(of_others * of_others + of_p * of_p + 2 * one_key * of_others * of_p);
}

// Of the score of largest magnitude, whichever it is; before functions none is beyond |q||k|. Errors of the multiply
// that are towards zero are at most twice their mean; the others are as an extreme of many.
double error_of_largest(const PackedHead& head, std::int64_t first, const ReferenceHead& what, const double* slopes,
                        const ScoreStatistics& scores, const RowSums& s, const ReferenceRow& row) {
  const float* k_norm = head.k_norm.data() + first;
  const double longest_k = *std::max_element(k_norm + row.keys.begin, k_norm + row.keys.end);
  const double norms = what.scale * row.q_factor * std::sqrt(s.q2) * longest_k,
               dim = static_cast<double>(head.head_dim);
  const bool functions = slopes != nullptr || scores.function_most > 0;
  const double given = functions ? norms : *row.amax;
  const double random = 2 * norms * kUlpF32 + error_of_fp8_score(norms, 0, dim);
  const double towards_zero = truncation_of(what.dtype, dim) * given * kUlpF32 + error_of_fp8_score(0, given, dim);
  double steepest = slopes ? 0 : 1;
  for (std::int64_t j = row.keys.begin; slopes && j < row.keys.end; ++j) steepest = std::max(steepest, slopes[j]);
  return steepest * (kBoundFactor * slack(1) * random + 2 * towards_zero) + kBoundFactor * scores.function_most +
         4 * kUlpF32 * *row.amax;
}

}  // namespace

void predict_errors(const PackedHead& head, std::int64_t first, const ReferenceHead& what, const double* p,
                    const double* slopes, const ScoreStatistics& scores, ReferenceRow& row) {
  const Precision output = precision_of(what.output_dtype);
  const RowSums s = sum_row(head, first, what, scores, p, slopes, row);
  const double keys = static_cast<double>(visible_keys(row));
  const double rounding2 = kRms * kRms * output.unit * output.unit * s.o2;
  double sums2 = kUlpF32 * kUlpF32 * keys * std::max(s.o2, s.noise2);
  if (size_of(what.dtype) == 1) {
    const Fp8Sums errors = errors_of_fp8_sums(std::min(keys, kKeysPerPromotion));
    sums2 += errors.random * errors.random * s.noise2 + errors.coherent * errors.coherent * s.o2;
  }
  const double exp2_approx2 = 0x1p-44 * s.o2;
  const double subnormal2 = output.smallest * output.smallest * static_cast<double>(head.head_dim_v);
  const double functions = scores.function_rms * spread_of(s), sink2 = scores.sink_share * scores.sink_share * s.o2;
  const double other2 =
      rounding2 + sums2 + exp2_approx2 + subnormal2 + s.score * s.score * s.spread2 + functions * functions + sink2;
  *row.predicted_o = static_cast<float>(std::sqrt(other2 + s.p_noise2 + s.vanished * s.vanished));
  *row.predicted_lse = static_cast<float>(4 * kUlpF32 * (1 + std::abs(scores.lse)) + kUlpF32 * std::sqrt(keys) +
                                          s.score * s.steepness + scores.function_mean + scores.sink_share);
  *row.budget = budget_of(head, what, s, scores, row);
  row.budget->worst += worst_of_rows(s, std::sqrt(other2 + s.tiny_p2), static_cast<double>(head.head_dim_v));
  if (row.amax) *row.amax_error = static_cast<float>(error_of_largest(head, first, what, slopes, scores, s, row));
}

void predict_lse_of_sink(ReferenceRow& row) {
  if (!std::isfinite(*row.sink)) return;  // -inf: no sink
  const double size = std::abs(static_cast<double>(*row.sink));
  const double conversions = kUlpF32 * (1 + 2 * size);
  *row.predicted_lse = static_cast<float>(4 * kUlpF32 * (1 + size));
  row.budget->lse_systematic = 0x1p-22 + conversions;  // which all rows of a head have alike
}

}  // namespace flashcore
