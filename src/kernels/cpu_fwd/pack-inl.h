// Between memory of any element type and stride and the fp32 panels that the micro-kernel reads.
#if defined(FLASHCORE_CPU_FWD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_PACK_INL_H_
#undef FLASHCORE_CPU_FWD_PACK_INL_H_
#else
#define FLASHCORE_CPU_FWD_PACK_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "core/dtype.h"
#include "kernels/cpu_fwd/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashcore::cpu_fwd {
namespace HWY_NAMESPACE {

// Highway emulates fp16 conversion where there is no instruction, without infinities, NaN or rounding to even.
inline constexpr bool kHasHalf = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON;

template <Element kElement>
using Storage = std::conditional_t<kElement == Element::kF32, float, std::uint16_t>;

// kLanes elements as fp32; exact.
template <Element kElement>
HWY_INLINE FloatVec load_as_float(const Storage<kElement>* from) {
  const FloatTag d;
  if constexpr (kElement == Element::kF32) {
    return hn::LoadU(d, from);
  } else if constexpr (kElement == Element::kBF16) {
    const hn::Rebind<std::uint32_t, FloatTag> d32;
    const hn::Rebind<std::uint16_t, FloatTag> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
  } else if constexpr (kHasHalf) {
    const hn::Rebind<std::uint16_t, FloatTag> d16;
    const hn::Rebind<hwy::float16_t, FloatTag> dhalf;
    return hn::PromoteTo(d, hn::BitCast(dhalf, hn::LoadU(d16, from)));
  } else {
    HWY_ALIGN float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = half_to_float(from[i]);
    return hn::Load(d, lanes);
  }
}

// kLanes elements rounded to nearest even.
template <Element kElement>
HWY_INLINE void store_from_float(FloatVec value, Storage<kElement>* to) {
  const FloatTag d;
  if constexpr (kElement == Element::kF32) {
    hn::StoreU(value, d, to);
  } else if constexpr (kElement == Element::kBF16) {
    const hn::Rebind<std::uint32_t, FloatTag> d32;
    const hn::Rebind<std::int32_t, FloatTag> di32;
    const hn::Rebind<std::uint16_t, FloatTag> d16;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
    // The carry could turn a NaN into infinity.
    const auto quiet = hn::Or(bits, hn::Set(d32, 0x00400000u));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
    const auto high = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, high)), d16, to);
  } else if constexpr (kHasHalf) {
    const hn::Rebind<std::uint16_t, FloatTag> d16;
    const hn::Rebind<hwy::float16_t, FloatTag> dhalf;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(dhalf, value)), d16, to);
  } else {
    HWY_ALIGN float lanes[kLanes];
    hn::Store(value, d, lanes);
    for (int i = 0; i < kLanes; ++i) to[i] = float_to_half(lanes[i]);
  }
}

// The first `count` < kLanes elements, the other lanes 0. Reads nothing past them: what lies there may be another
// tensor, or no memory at all.
template <Element kElement>
HWY_INLINE FloatVec load_tail(const Storage<kElement>* from, int count) {
  Storage<kElement> tail[kLanes] = {};
  std::memcpy(tail, from, static_cast<std::size_t>(count) * sizeof(tail[0]));
  return load_as_float<kElement>(tail);
}

// Calls emit(column, vector) for every vector of a row; columns past `count` are 0.
template <Element kElement, class Emit>
HWY_INLINE void for_each_vector(const Storage<kElement>* row, int count, Emit&& emit) {
  int column = 0;
  for (; column + kLanes <= count; column += kLanes) emit(column, load_as_float<kElement>(row + column));
  if (column < count) emit(column, load_tail<kElement>(row + column, count - column));
}

template <Element kElement>
void store_row(const float* values, int count, Storage<kElement>* row) {
  const FloatTag d;
  int column = 0;
  for (; column + kLanes <= count; column += kLanes)
    store_from_float<kElement>(hn::Load(d, values + column), row + column);
  if (column < count) {
    Storage<kElement> tail[kLanes];
    store_from_float<kElement>(hn::Load(d, values + column), tail);
    std::memcpy(row + column, tail, static_cast<std::size_t>(count - column) * sizeof(tail[0]));
  }
}

#if HWY_TARGET == HWY_SCALAR
inline constexpr int kKeysAtOnce = 1;
HWY_INLINE void store_transposed(const FloatVec (&keys)[kKeysAtOnce], float* panel) {
  hn::Store(keys[0], FloatTag(), panel);
}
#else
inline constexpr int kKeysAtOnce = 4;

// Stores the 128-bit blocks of a vector at out, out + stride, ...
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> vector, float* out, std::int64_t stride) {
  constexpr int kCount = static_cast<int>(hn::MaxLanes(D()));
  if constexpr (kCount == 4) {
    hn::Store(vector, d, out);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, vector), out, stride);
    store_blocks(half, hn::UpperHalf(half, vector), out + kCount / 8 * stride, stride);
  }
}

// kLanes columns of 4 keys into 4 neighbouring lanes of a panel: panel[column][0..3] = keys[0..3][column]. Two
// interleaves make every 128-bit block a transposed 4 × 4 matrix; block b holds columns 4b .. 4b + 3.
HWY_INLINE void store_transposed(const FloatVec (&keys)[kKeysAtOnce], float* panel) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, keys[0], keys[1]));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, keys[2], keys[3]));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, keys[0], keys[1]));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, keys[2], keys[3]));
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), panel, 4 * kPanel);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), panel + kPanel, 4 * kPanel);
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), panel + 2 * kPanel, 4 * kPanel);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), panel + 3 * kPanel, 4 * kPanel);
}
#endif

// K rows, transposed: panels of kPanel keys, each [head_dim padded][kPanel]. Lanes past the last key hold that key
// again, or what the block before left: their scores are never looked at.
template <Element kElement>
void pack_k(const Storage<kElement>* k, std::int64_t stride, int keys, int head_dim, float* panels) {
  const std::int64_t panel_floats = std::int64_t{round_up(head_dim, kLanes)} * kPanel;
  for (int key = 0; key < keys; key += kKeysAtOnce) {
    const Storage<kElement>* rows[kKeysAtOnce];
    for (int i = 0; i < kKeysAtOnce; ++i) rows[i] = k + std::min(key + i, keys - 1) * stride;
    float* panel = panels + key / kPanel * panel_floats + key % kPanel;
    FloatVec vectors[kKeysAtOnce];
    int column = 0;
    for (; column + kLanes <= head_dim; column += kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeysAtOnce; ++i) vectors[i] = load_as_float<kElement>(rows[i] + column);
      store_transposed(vectors, panel + column * kPanel);
    }
    if (column == head_dim) continue;
#pragma GCC unroll 4
    for (int i = 0; i < kKeysAtOnce; ++i) vectors[i] = load_tail<kElement>(rows[i] + column, head_dim - column);
    store_transposed(vectors, panel + column * kPanel);
  }
}

// V rows as they are: panels of kPanel columns, each [keys][kPanel].
template <Element kElement>
void pack_v(const Storage<kElement>* v, std::int64_t stride, int keys, int head_dim_v, float* panels) {
  const FloatTag d;
  for (int key = 0; key < keys; ++key) {
    for_each_vector<kElement>(v + key * stride, head_dim_v, [&](int column, FloatVec x) {
      hn::Store(x, d, panels + (static_cast<std::int64_t>(column / kPanel) * keys + key) * kPanel + column % kPanel);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
