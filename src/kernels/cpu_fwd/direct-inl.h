// Both products for a few query rows (decoding), from K and V as they lie: packing a key would cost more than using it.
#if defined(FLASHCORE_CPU_FWD_DIRECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_DIRECT_INL_H_
#undef FLASHCORE_CPU_FWD_DIRECT_INL_H_
#else
#define FLASHCORE_CPU_FWD_DIRECT_INL_H_
#endif

#include "kernels/cpu_fwd/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashcore::cpu_fwd {
namespace HWY_NAMESPACE {

// Tasks of at most so many rows.
inline constexpr int kMostDirectRows = kTileRows < kMostRowsInPlace ? kTileRows : kMostRowsInPlace;
// Rows at a time: times 4 keys, or times the vectors of columns, they fill half of the registers with sums.
inline constexpr int kDirectRows = k32Registers ? 4 : 2;
inline constexpr int kDirectKeys = 4;

template <Element kElement>
HWY_INLINE FloatVec load_part(const Storage<kElement>* row, int column, int dim) {
  return column + kLanes <= dim ? load_as_float<kElement>(row + column)
                                : load_tail<kElement>(row + column, dim - column);
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sums(FloatVec a, FloatVec b, FloatVec c, FloatVec e, float* out) {
  out[0] = hn::GetLane(a), out[1] = hn::GetLane(b), out[2] = hn::GetLane(c), out[3] = hn::GetLane(e);
}
#else
// The sum of a vector's 128-bit blocks.
template <class D>
HWY_INLINE void store_sum_of_blocks(D d, hn::Vec<D> vector, float* out) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(vector, d, out);
  } else {
    const hn::Half<D> half;
    store_sum_of_blocks(half, hn::Add(hn::LowerHalf(half, vector), hn::UpperHalf(half, vector)), out);
  }
}

// The sums of four vectors' lanes, into out[0 .. 3].
HWY_INLINE void store_sums(FloatVec a, FloatVec b, FloatVec c, FloatVec e, float* out) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  const auto ab = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  store_sum_of_blocks(
      d,
      hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce))),
      out);
}
#endif

// scores[r][0 .. 3] = q[r] · k[0 .. 3].
template <Element kElement, int kRows>
HWY_INLINE void dot_keys(const float* q, std::int64_t q_stride, const Storage<kElement>* const (&k)[kDirectKeys],
                         int dim, float* scores, std::int64_t score_stride) {
  const FloatTag d;
  FloatVec acc[kRows][kDirectKeys];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kDirectKeys; ++i) acc[r][i] = hn::Zero(d);
  }
  for (int column = 0; column < dim; column += kLanes) {
    FloatVec keys[kDirectKeys];
#pragma GCC unroll 4
    for (int i = 0; i < kDirectKeys; ++i) keys[i] = load_part<kElement>(k[i], column, dim);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const FloatVec x = hn::Load(d, q + r * q_stride + column);
#pragma GCC unroll 4
      for (int i = 0; i < kDirectKeys; ++i) acc[r][i] = hn::MulAdd(x, keys[i], acc[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store_sums(acc[r][0], acc[r][1], acc[r][2], acc[r][3], scores + r * score_stride);
}

template <Element kElement, int kRows = kDirectRows>
void dot_rows(int rows, const float* q, std::int64_t q_stride, const Storage<kElement>* const (&k)[kDirectKeys],
              int dim, float* scores, std::int64_t score_stride) {
  for (; rows >= kRows; rows -= kRows, q += kRows * q_stride, scores += kRows * score_stride)
    dot_keys<kElement, kRows>(q, q_stride, k, dim, scores, score_stride);
  if constexpr (kRows > 1) {
    if (rows > 0) dot_rows<kElement, kRows / 2>(rows, q, q_stride, k, dim, scores, score_stride);
  }
}

// o[r] = rescale[r] · o[r] + Σ p[r][key] · v[key] over columns column .. column + kVectors · kLanes.
template <Element kElement, int kRows, int kVectors>
HWY_NOINLINE void weigh_columns(const float* p, std::int64_t p_stride, const Storage<kElement>* v,
                                std::int64_t v_stride, int keys, int column, int dim, const float* rescale, float* o,
                                std::int64_t o_stride) {
  // Of few sums, those of even and of odd keys apart: a multiply-add waits four cycles for the one before it.
  constexpr int kSets = kRows * kVectors <= 4 ? 2 : 1;
  const FloatTag d;
  FloatVec acc[kSets][kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      acc[0][r][j] = hn::Mul(hn::Set(d, rescale[r]), hn::Load(d, o + r * o_stride + column + j * kLanes));
      if constexpr (kSets == 2) acc[1][r][j] = hn::Zero(d);
    }
  }
  const auto add_key = [&](auto& sums, int key) HWY_ATTR {
    FloatVec values[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) values[j] = load_part<kElement>(v + key * v_stride, column + j * kLanes, dim);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const FloatVec x = hn::Set(d, p[r * p_stride + key]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sums[r][j] = hn::MulAdd(x, values[j], sums[r][j]);
    }
  };
  int key = 0;
  for (; key + kSets <= keys; key += kSets) {
    add_key(acc[0], key);
    if constexpr (kSets == 2) add_key(acc[1], key + 1);
  }
  if (key < keys) add_key(acc[0], key);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      FloatVec sum = acc[0][r][j];
      if constexpr (kSets == 2) sum = hn::Add(sum, acc[1][r][j]);
      hn::Store(sum, d, o + r * o_stride + column + j * kLanes);
    }
  }
}

// The widest columns that fit, in turn.
template <Element kElement, int kRows, int kVectors>
void weigh_all_columns(const float* p, std::int64_t p_stride, const Storage<kElement>* v, std::int64_t v_stride,
                       int keys, int column, int dim, const float* rescale, float* o, std::int64_t o_stride) {
  for (; column + (kVectors - 1) * kLanes < dim; column += kVectors * kLanes)
    weigh_columns<kElement, kRows, kVectors>(p, p_stride, v, v_stride, keys, column, dim, rescale, o, o_stride);
  if constexpr (kVectors > 1) {
    if (column < dim)
      weigh_all_columns<kElement, kRows, kVectors / 2>(p, p_stride, v, v_stride, keys, column, dim, rescale, o,
                                                       o_stride);
  }
}

template <Element kElement, int kRows = kDirectRows>
void weigh_rows(int rows, const float* p, std::int64_t p_stride, const Storage<kElement>* v, std::int64_t v_stride,
                int keys, int dim, const float* rescale, float* o, std::int64_t o_stride) {
  // At most half of the registers hold sums; one row alone needs no more than 8 vectors at a time.
  constexpr int kWide = kRows == 1 ? (k32Registers ? 8 : 4) : (k32Registers ? 16 : 8) / kRows;
  for (; rows >= kRows; rows -= kRows, p += kRows * p_stride, o += kRows * o_stride, rescale += kRows)
    weigh_all_columns<kElement, kRows, kWide>(p, p_stride, v, v_stride, keys, 0, dim, rescale, o, o_stride);
  if constexpr (kRows > 1) {
    if (rows > 0) weigh_rows<kElement, kRows / 2>(rows, p, p_stride, v, v_stride, keys, dim, rescale, o, o_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
