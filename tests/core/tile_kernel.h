#pragma once
// A blocked online-softmax kernel in plain C++, honest or with one planted fault: what the bound must tell apart.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/data.h"
#include "core/problem.h"
#include "core/reference.h"

namespace flashcore::planted {

enum class Fault {
  kNone,
  kTruncatingAdds,    // honest: adds as tensor cores do, cutting off 24 bits (of 8-bit products: 13)
  kStaleLastTile,     // the last tile of keys multiplies the values of the tile before it
  kUnmaskedDiagonal,  // one diagonal tile of one head is not masked
  kMaskOffByOne,      // j < i + offset
  kWindowOffByOne,    // the last tile's rows see one key more on the left
  kMissingRescale,    // acc_o keeps its old scale when the maximum grows
  kOneWrongRow,       // the last row of the last head uses its neighbour's q
  kDroppedKey,        // one key of one head is skipped
  kDoubledKey,        // one key of one head counts twice
  kPaddingCounted,    // the zero padding of the last tile enters the sum
  kInvertedSign,      // o = -o
  kInvertedScore,     // scores have the wrong sign
  kScaleOff,          // softmax scale 2% too large
  kWrongHead,         // grouped heads: h % heads_kv where it is h / group_size
  kLowPrecision,      // probabilities in the next lower precision: fp16 for fp32, 8 bits for fp16, 5 for bf16
  kNanRow,            // one row never written: still poisoned
  kOneNan,            // one value
  kMaskedRowNotZero,  // rows without keys give 1e-6
  kLseInLog2,         // log2 where it should be the natural logarithm
  kLseWithoutMax,     // log of the sum only
  // What a norm averages away:
  kScaledOutput,       // o times 1 - 0.9 of the unit roundoff: 0.35% for bf16, 0.044% for fp16
  kTruncatedOutput,    // o cut off instead of rounded
  kAddsConstant,       // 1e-4 to every value
  kScaleBarelyOff,     // softmax scale 5e-6 too large
  kRoughExp2,          // exp2 off by up to 1e-4, now more and now less
  kRoundsAccumulator,  // acc_o rounded to 16 bits after each block of keys
  kIgnoresSmall,       // weights below 2e-4 count in the sum and not in o
  kDoubledEverywhere,  // one key counts twice, in every head
  // Of 8 bits.
  kDescaleQDropped,  // a factor is taken as 1
  kDescaleKDropped,
  kDescaleVDropped,
  kDescaleOfOtherHead,  // query head h takes the factors of kv head h % heads_kv
  kVNotTransposed,      // 16 keys x 16 columns of v are multiplied as they lie
  kPOverflow,           // P is scaled by 2^9, past the largest e4m3, and saturates
  kNotPromoted,         // honest in all else: sums over all keys stay in the tensor cores' 13 bits
};

inline bool adds_like_tensor_cores(Fault fault) {
  return fault == Fault::kTruncatingAdds || fault == Fault::kNotPromoted;
}

struct KernelOutput {
  std::vector<float> o, lse;
};

class TileKernel {
 public:
  TileKernel(const PlacedProblem& problem, const AttentionInputs& inputs, Fault fault, std::int64_t block_n)
      : p_(problem),
        q_(gather_rows(inputs.q, {})),
        k_(gather_rows(inputs.k, {})),
        v_(gather_rows(inputs.v, {})),
        fault_(fault),
        block_n_(block_n) {
    scale_ = static_cast<float>(p_.softmax_scale() *
                                (fault == Fault::kScaleOff         ? 1.02
                                 : fault == Fault::kScaleBarelyOff ? 1 + 5e-6
                                                                   : 1) *
                                (fault == Fault::kInvertedScore ? -1 : 1));
    descale_q_ = fault == Fault::kDescaleQDropped ? std::vector<float>() : inputs.descale_q;
    descale_k_ = fault == Fault::kDescaleKDropped ? std::vector<float>() : inputs.descale_k;
    descale_v_ = fault == Fault::kDescaleVDropped ? std::vector<float>() : inputs.descale_v;
  }

  KernelOutput run() {
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = 0; h < p_.heads_q; ++h) {
        for (std::int64_t row = 0; row < p_.seqlen_q; ++row) run_row(b, h, row);
      }
    }
    spoil();
    return std::move(out_);
  }

 private:
  bool last_head(std::int64_t b, std::int64_t h) const { return b == p_.batch - 1 && h == p_.heads_q - 1; }

  KeyRange<std::int64_t> visible(std::int64_t b, std::int64_t h, std::int64_t row) const {
    const Band<std::int64_t> band = p_.band();
    KeyRange<std::int64_t> keys = band.keys_of_row(row);
    const bool one_tile = last_head(b, h) && row / block_n_ == (p_.seqlen_q - 1) / block_n_;
    if (fault_ == Fault::kWindowOffByOne && band.bounded_left && one_tile)
      keys.begin = std::max<std::int64_t>(0, keys.begin - 1);
    if (!band.bounded_right) return keys;
    if (fault_ == Fault::kMaskOffByOne) keys.end = std::max(keys.begin, keys.end - 1);
    if (fault_ == Fault::kUnmaskedDiagonal && one_tile)
      keys.end = std::min((keys.end + block_n_ - 1) / block_n_ * block_n_, p_.seqlen_kv);
    return keys;
  }

  // acc + the sum of a[i] * b[i * step] over n.
  float add(float acc, const float* a, const float* b, std::int64_t step, std::int64_t n) const {
    if (!adds_like_tensor_cores(fault_)) {
      for (std::int64_t i = 0; i < n; ++i) acc += a[i] * b[i * step];
      return acc;
    }
    if (p_.is_8bit()) return add_fp8(acc, a, b, step, n);
    for (std::int64_t start = 0; start < n; start += 16) {
      double exact = acc;
      for (std::int64_t i = start; i < std::min(n, start + 16); ++i) exact += static_cast<double>(a[i]) * b[i * step];
      acc = static_cast<float>(exact);
      if (std::abs(static_cast<double>(acc)) > std::abs(exact)) acc = std::nextafter(acc, 0.0f);
    }
    return acc;
  }

  // 32 products at a time; every addend is cut off 13 bits below the largest one's leading bit.
  static float add_fp8(float acc, const float* a, const float* b, std::int64_t step, std::int64_t n) {
    for (std::int64_t start = 0; start < n; start += 32) {
      std::array<double, 33> addends = {acc};
      for (std::int64_t i = start; i < std::min(n, start + 32); ++i)
        addends[static_cast<std::size_t>(i - start + 1)] = static_cast<double>(a[i]) * b[i * step];
      double largest = 0, sum = 0;
      bool finite = true;
      for (const double x : addends) largest = std::max(largest, std::abs(x)), finite = finite && std::isfinite(x);
      const double unit = largest > 0 && finite ? std::ldexp(1.0, std::ilogb(largest) - 13) : 1;
      for (const double x : addends) sum += finite ? std::trunc(x / unit) * unit : x;
      acc = static_cast<float>(sum);
    }
    return acc;
  }

  float score(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t head, std::int64_t key) const {
    const std::int64_t from = fault_ == Fault::kOneWrongRow && last_head(b, h) && row == p_.seqlen_q - 1
                                  ? std::max<std::int64_t>(0, row - 1)
                                  : row;
    const float* q = q_.data() + ((b * p_.heads_q + h) * p_.seqlen_q + from) * p_.head_dim;
    const float* k = k_.data() + ((b * p_.heads_kv + head) * p_.seqlen_kv + key) * p_.head_dim;
    return add(0, q, k, 1, p_.head_dim) * scale_ * descale_q_at(p_, descale_q_, b, head_of_factors(h), row) *
           descale_k_at(p_, descale_k_, b, key_head(h), key);
  }

  // Whose factors query head h has, and of which query head.
  std::int64_t key_head(std::int64_t h) const {
    return fault_ == Fault::kDescaleOfOtherHead ? h % p_.heads_kv : h / p_.group_size();
  }
  std::int64_t head_of_factors(std::int64_t h) const {
    return fault_ == Fault::kDescaleOfOtherHead ? key_head(h) * p_.group_size() : h;
  }

  void run_row(std::int64_t b, std::int64_t h, std::int64_t row) {
    const std::int64_t head = fault_ == Fault::kWrongHead ? h % p_.heads_kv : h / p_.group_size();
    const KeyRange<std::int64_t> keys = visible(b, h, row);
    const float inf = std::numeric_limits<float>::infinity();
    float row_max = -inf, row_sum = 0;
    std::vector<float> acc(static_cast<std::size_t>(p_.head_dim_v), 0.0f);
    for (std::int64_t start = keys.begin; start < keys.end; start += block_n_) {
      std::vector<float> p;
      float new_max = row_max;
      const std::int64_t end = std::min(keys.end, start + block_n_);
      for (std::int64_t key = start; key < end; ++key) {
        p.push_back(score(b, h, row, head, key));
        if (fault_ == Fault::kDroppedKey && last_head(b, h) && key == p_.seqlen_kv / 3) p.back() = -inf;
        new_max = std::max(new_max, p.back());
      }
      if (new_max == -inf) {
        // Nothing to weigh yet, unless a NaN hides among the scores: a maximum does not see it.
        for (const float s : p) row_sum += std::isnan(s) ? s : 0;
        continue;
      }
      const float rescale = row_max == -inf ? 0 : std::exp2((row_max - new_max) * 1.44269504f);
      row_sum *= rescale;
      for (float& a : acc) a *= fault_ == Fault::kMissingRescale ? 1 : rescale;
      for (std::size_t j = 0; j < p.size(); ++j) {
        p[j] = std::exp2((p[j] - new_max) * 1.44269504f);
        const std::int64_t key = start + static_cast<std::int64_t>(j);
        const bool doubled = fault_ == Fault::kDoubledEverywhere || (fault_ == Fault::kDoubledKey && last_head(b, h));
        if (doubled && key == p_.seqlen_kv / 3) p[j] *= 2;
        if (fault_ == Fault::kRoughExp2) p[j] *= 1 + 1e-4f * std::sin(20 * std::log(p[j]));
        row_sum += p[j];
        p[j] = fault_ == Fault::kIgnoresSmall && p[j] < 2e-4f ? 0 : round_p(p[j]);
      }
      if (fault_ == Fault::kPaddingCounted && end == p_.seqlen_kv && end - start < block_n_) {
        row_sum += static_cast<float>(block_n_ - (end - start)) * std::exp2(-new_max * 1.44269504f);
      }
      const bool stale = fault_ == Fault::kStaleLastTile && start > 0 && start + block_n_ >= p_.seqlen_kv;
      const float* v =
          v_.data() + ((b * p_.heads_kv + head) * p_.seqlen_kv + (stale ? start - block_n_ : start)) * p_.head_dim_v;
      std::vector<float> wrong;
      if (fault_ == Fault::kVNotTransposed) wrong = transposed_blocks(v, end - start), v = wrong.data();
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
        float& a = acc[static_cast<std::size_t>(d)];
        // Of 8 bits each block is summed up by itself and promoted: added to acc in fp32.
        if (p_.is_8bit() && fault_ != Fault::kNotPromoted) a += add(0, p.data(), v + d, p_.head_dim_v, end - start);
        else a = add(a, p.data(), v + d, p_.head_dim_v, end - start);
        if (fault_ == Fault::kRoundsAccumulator) a = round_to(p_.dtype == DType::kF32 ? DType::kF16 : p_.dtype, a);
      }
      row_max = new_max;
    }
    const float v_factor = descale_v_at(p_, descale_v_, b, key_head(h), 0);
    for (float& a : acc) a *= v_factor;
    finish(acc, row_max, row_sum);
  }

  // Each whole block of 16 keys and 16 columns, the other way round.
  std::vector<float> transposed_blocks(const float* v, std::int64_t keys) const {
    std::vector<float> all(v, v + keys * p_.head_dim_v);
    for (std::int64_t j = 0; j < keys / 16 * 16; ++j)
      for (std::int64_t d = 0; d < p_.head_dim_v / 16 * 16; ++d)
        all[static_cast<std::size_t>(j * p_.head_dim_v + d)] =
            v[(j / 16 * 16 + d % 16) * p_.head_dim_v + d / 16 * 16 + j % 16];
    return all;
  }

  float round_p(float p) const {
    const float p_scale = fault_ == Fault::kPOverflow ? 512.0f : 256.0f;
    const float rounded = p_.is_8bit() ? round_to(DType::kE4M3, p * p_scale) / p_scale : round_to(p_.dtype, p);
    if (fault_ != Fault::kLowPrecision) return rounded;
    const float steps = p_.dtype == DType::kF32   ? 0x1p11f
                        : p_.dtype == DType::kF16 ? 0x1p8f
                        : p_.is_8bit()            ? 0x1p2f
                                                  : 0x1p5f;
    int exponent = 0;
    const float mantissa = std::frexp(rounded, &exponent);
    return std::ldexp(std::round(mantissa * steps) / steps, exponent);
  }

  // The 16-bit number next to `value`, on the side of zero.
  float cut_off(float value) const {
    const int exponent = std::ilogb(value == 0 ? 1.0f : value);
    const float step = std::ldexp(1.0f, exponent - (p_.dtype == DType::kF16 ? 10 : 7));
    return std::trunc(value / step) * step;
  }

  void finish(const std::vector<float>& acc, float row_max, float row_sum) {
    const bool empty = row_sum == 0;
    for (const float a : acc) {
      float o = empty ? (fault_ == Fault::kMaskedRowNotZero ? 1e-6f : 0.0f) : a / row_sum;
      if (fault_ == Fault::kInvertedSign) o = -o;
      if (fault_ == Fault::kScaledOutput) o *= 1 - 0.9f * (p_.dtype == DType::kF16 ? 0x1p-11f : 0x1p-8f);
      if (fault_ == Fault::kAddsConstant) o += 1e-4f;
      out_.o.push_back(fault_ == Fault::kTruncatedOutput ? cut_off(o) : round_to(p_.output_dtype(), o));
    }
    float lse = empty ? -std::numeric_limits<float>::infinity() : row_max + std::log(row_sum);
    if (fault_ == Fault::kLseInLog2) lse *= 1.44269504f;
    if (fault_ == Fault::kLseWithoutMax && !empty) lse = std::log(row_sum);
    out_.lse.push_back(lse);
  }

  void spoil() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (fault_ == Fault::kOneNan && !out_.o.empty()) out_.o[out_.o.size() / 2] = nan;
    if (fault_ == Fault::kNanRow && !out_.o.empty()) std::fill(out_.o.end() - p_.head_dim_v, out_.o.end(), nan);
  }

  const PlacedProblem& p_;
  std::vector<float> q_, k_, v_;  // (batch, head, row, column)
  std::vector<float> descale_q_, descale_k_, descale_v_;
  Fault fault_;
  std::int64_t block_n_;
  float scale_;
  KernelOutput out_;
};

inline KernelOutput run_tile_kernel(const PlacedProblem& problem, const AttentionInputs& inputs,
                                    Fault fault = Fault::kNone, std::int64_t block_n = 32) {
  return TileKernel(problem, inputs, fault, block_n).run();
}

}  // namespace flashcore::planted
