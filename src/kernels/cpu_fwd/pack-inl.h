// Between memory of any element type and stride and the fp32 panels that the micro-kernel reads.
#if defined(FLASHCORE_CPU_FWD_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_PACK_INL_H_
#undef FLASHCORE_CPU_FWD_PACK_INL_H_
#else
#define FLASHCORE_CPU_FWD_PACK_INL_H_
#endif

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

// Calls emit(column, vector) for every vector of a row; columns past `count` are 0. Reads nothing past the row: what
// lies there may be another tensor, or no memory at all.
template <Element kElement, class Emit>
HWY_INLINE void for_each_vector(const Storage<kElement>* row, int count, Emit&& emit) {
  int column = 0;
  for (; column + kLanes <= count; column += kLanes) emit(column, load_as_float<kElement>(row + column));
  if (column < count) {
    Storage<kElement> tail[kLanes] = {};
    std::memcpy(tail, row + column, static_cast<std::size_t>(count - column) * sizeof(tail[0]));
    emit(column, load_as_float<kElement>(tail));
  }
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
// panel[column][lane] of one key; `panel` points at its lane.
inline void store_transposed(const float* const rows[4], int padded_columns, int lanes, float* panel) {
  for (int lane = 0; lane < lanes; ++lane) {
    for (int column = 0; column < padded_columns; ++column) panel[column * kPanel + lane] = rows[lane][column];
  }
}
#else
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

// Transposes 4 keys into 4 neighbouring lanes of a panel: panel[column][0..3] = rows[0..3][column]. Two interleaves
// make every 128-bit block a transposed 4 × 4 matrix; block b holds columns 4b .. 4b + 3.
inline void store_transposed(const float* const rows[4], int padded_columns, int /*lanes*/, float* panel) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  for (int column = 0; column < padded_columns; column += kLanes) {
    const auto row0 = hn::Load(d, rows[0] + column), row1 = hn::Load(d, rows[1] + column);
    const auto row2 = hn::Load(d, rows[2] + column), row3 = hn::Load(d, rows[3] + column);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
    float* out = panel + column * kPanel;
    store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), out, 4 * kPanel);
    store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), out + kPanel, 4 * kPanel);
    store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), out + 2 * kPanel, 4 * kPanel);
    store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), out + 3 * kPanel, 4 * kPanel);
  }
}
#endif

// K rows, transposed: panels of kPanel keys, each [head_dim padded][kPanel]. Lanes past the last key are 0 or what the
// block before left: their scores are never looked at.
template <Element kElement>
void pack_k(const Storage<kElement>* k, std::int64_t stride, int keys, int head_dim, float* panels) {
  constexpr int kGroup = kPanel < 4 ? kPanel : 4;
  const FloatTag d;
  const int padded = round_up(head_dim, kLanes);
  HWY_ALIGN float staging[kGroup][kMaxHeadDim];
  const float* rows[4] = {};
  for (int i = 0; i < kGroup; ++i) rows[i] = staging[i];
  for (int key = 0; key < keys; key += kGroup) {
    for (int i = 0; i < kGroup; ++i) {
      if (key + i >= keys) {
        std::memset(staging[i], 0, sizeof(staging[i]));
        continue;
      }
      for_each_vector<kElement>(k + (key + i) * stride, head_dim,
                                [&](int column, FloatVec x) { hn::Store(x, d, staging[i] + column); });
    }
    float* panel = panels + static_cast<std::int64_t>(key / kPanel) * kPanel * padded;
    store_transposed(rows, padded, kGroup, panel + key % kPanel);
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
