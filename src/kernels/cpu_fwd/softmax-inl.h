// The online softmax of one row over one block of scores.
#if defined(FLASHCORE_CPU_FWD_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_SOFTMAX_INL_H_
#undef FLASHCORE_CPU_FWD_SOFTMAX_INL_H_
#else
#define FLASHCORE_CPU_FWD_SOFTMAX_INL_H_
#endif

#include <limits>

#include "kernels/cpu_fwd/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashcore::cpu_fwd {
namespace HWY_NAMESPACE {

inline constexpr int kPaddedTileRows = (kTileRows + kLanes - 1) / kLanes * kLanes;
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// 2^(difference · scale) for a product <= 0; 0 below 2^-126, -inf included; NaN stays NaN. Within 1.4 · 2^-24
// relative, 1.7 · 2^-24 where there is no fused multiply-add. The difference of two scores is taken before it is
// scaled: near the row's maximum it is exact.
HWY_INLINE FloatVec exp2_scaled(FloatVec difference, FloatVec scale) {
  const FloatTag d;
  const hn::Rebind<std::uint32_t, FloatTag> bits;
  // Adding 1.5 · 2^23 rounds to an integer n in the low mantissa bits; 127 more makes them the exponent field of 2^n.
  constexpr float kRound = 12582912.0f + 127.0f;
  const FloatVec shifted = hn::MulAdd(difference, scale, hn::Set(d, kRound));
  const FloatVec f = hn::MulSub(difference, scale, hn::Sub(shifted, hn::Set(d, kRound)));  // in [-0.5, 0.5]
  // Minimax for 2^f - 1 in relative error with the constant term held at 0, so that 2^0 is exactly 1.
  FloatVec p = hn::Set(d, 0.000153533634f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.00133988762f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.00961843692f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555033237f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240226477f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147182f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const FloatVec power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted)));
  return hn::IfThenZeroElse(hn::Lt(shifted, hn::Set(d, kRound - 126.0f)), hn::Mul(p, power));
}

// Within 2^-22 relatively: the quotient of kernels/tile/expression.cuh, divided exactly.
HWY_INLINE FloatVec tanh_of(FloatVec x) {
  const FloatTag d;
  const FloatVec bounded = hn::Min(hn::Max(x, hn::Set(d, -9.0f)), hn::Set(d, 9.0f)), z = hn::Mul(bounded, bounded);
  FloatVec p = hn::MulAdd(hn::Set(d, 1.33542430e-8f), z, hn::Set(d, 2.06087734e-5f));
  FloatVec q = hn::MulAdd(hn::Set(d, 7.77638434e-7f), z, hn::Set(d, 3.28560389e-4f));
  p = hn::MulAdd(p, z, hn::Set(d, 3.49556934e-3f)), q = hn::MulAdd(q, z, hn::Set(d, 2.58769114e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.133810103f)), q = hn::MulAdd(q, z, hn::Set(d, 0.467143267f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.0f)), q = hn::MulAdd(q, z, hn::Set(d, 1.0f));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(hn::Mul(bounded, p), q));
}

// factor[r] = 2^((from[r] - to[r]) · scale) for `rows` rows: what turns a sum against maximum from[r] into one against
// maximum to[r] >= from[r]. A row that has seen nothing but -inf has nothing to rescale. The arrays are padded to whole
// vectors.
inline void rescale_factors(const float* from, const float* to, int rows, float scale, float* factor) {
  const FloatTag d;
  const FloatVec minus_infinity = hn::Set(d, kMinusInfinity);
  for (int r = 0; r < rows; r += kLanes) {
    const FloatVec target = hn::Load(d, to + r);
    const FloatVec base = hn::IfThenZeroElse(hn::Eq(target, minus_infinity), target);
    hn::Store(exp2_scaled(hn::Sub(hn::LoadU(d, from + r), base), hn::Set(d, scale)), d, factor + r);
  }
}

// Largest of scores[0 .. count), -inf if none. A NaN may be lost here: it shows again in the sum.
HWY_INLINE float max_of(const float* scores, int count) {
  const FloatTag d;
  FloatVec even = hn::Set(d, kMinusInfinity), odd = even;
  int i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    even = hn::Max(even, hn::Load(d, scores + i));
    odd = hn::Max(odd, hn::Load(d, scores + i + kLanes));
  }
  for (; i < count; i += kLanes) {
    const auto inside = hn::FirstN(d, static_cast<std::size_t>(count - i));
    even = hn::Max(even, hn::IfThenElse(inside, hn::Load(d, scores + i), hn::Set(d, kMinusInfinity)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
}

// scores[i] = 2^((scores[i] - row_max) · scale) in place; returns their sum.
HWY_INLINE float exponentiate(float* scores, int count, float row_max, float scale) {
  const FloatTag d;
  // All scores -inf: any finite base gives 2^-inf = 0, where -inf - -inf would be NaN.
  const FloatVec base = hn::Set(d, row_max == kMinusInfinity ? 0.0f : row_max);
  const FloatVec factor = hn::Set(d, scale);
  FloatVec sum = hn::Zero(d);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const FloatVec p = exp2_scaled(hn::Sub(hn::Load(d, scores + i), base), factor);
    hn::Store(p, d, scores + i);
    sum = hn::Add(sum, p);
  }
  if (i < count) {
    const FloatVec p = exp2_scaled(hn::Sub(hn::Load(d, scores + i), base), factor);
    const auto inside = hn::FirstN(d, static_cast<std::size_t>(count - i));
    hn::Store(p, d, scores + i);
    sum = hn::Add(sum, hn::IfThenElseZero(inside, p));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
