#pragma once
// A quantised cache in sm80_wide_fwd. Codes come to shared memory as they are stored. Once a block all warps turn K
// into a tile of q's type, and later V into the same one, so that what multiplies is what multiplies 16-bit caches. In
// registers each of the warps that share columns or keys would turn the same codes again.

#include "kernels/sm80_wide_fwd/pages.cuh"
#include "kernels/sm80_wide_fwd/tile_of_cta.cuh"
#include "kernels/tile/cache_element.cuh"
#include "kernels/tile/cache_nibbles.cuh"
#include "kernels/tile/key_factors.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm80_wide_fwd {

// A tile of K or V in a stage: of codes two, of int4 four, are one 16-bit column.
template <Traits T, int kColumns>
using StoredTile = tile::SharedTile<kColumns * cache_bits(T) / 16, tile::SharedLayout::kXor>;

// Strides in the columns of such a tile.
template <Traits T>
FC_DEVICE decltype(auto) stored_strides(const Strides& strides) {
  if constexpr (has_quantised_cache(T)) {
    const auto units = [](long long elements) { return elements * cache_bits(T) / 16; };
    return Strides{units(strides.batch), units(strides.head), units(strides.row)};
  } else {
    return (strides);
  }
}

// One or two words of codes as eight elements of q's type, in their order.
template <Traits T>
FC_DEVICE void widen_chunk(unsigned low, unsigned high, unsigned (&pairs)[4]) {
  if constexpr (has_nibbles(T)) {
    unsigned apart[4];  // codes i and i + 4
    tile::widen_nibbles<T.element>(low, apart);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pairs[i] = ptx::prmt(apart[2 * i], apart[2 * i + 1], 0x5410u);
      pairs[2 + i] = ptx::prmt(apart[2 * i], apart[2 * i + 1], 0x7632u);
    }
  } else {
    unsigned of_low[2], of_high[2];
    tile::widen<T.element, element_of_cache(T)>(low, of_low);
    tile::widen<T.element, element_of_cache(T)>(high, of_high);
    pairs[0] = of_low[0], pairs[1] = of_low[1], pairs[2] = of_high[0], pairs[3] = of_high[1];
  }
}

// All rows of a block, kColumns of them: 16 bytes of codes at a time. A row with a mark becomes NaN. `marks`: a word
// for each row, of paged K.
template <Traits T, Config C, int kColumns, int kStored, bool kHasMarks>
FC_DEVICE void widen_block(ptx::SharedAddress to, ptx::SharedAddress from, ptx::SharedAddress marks) {
  using Tile = tile::SharedTile<kColumns, tile::SharedLayout::kXor>;
  using Stored = StoredTile<T, kStored>;
  constexpr int kChunks = 16 / cache_bits(T);  // of Tile, from one of Stored
  constexpr int kOfRow = Tile::kChunks / kChunks, kCount = C.block_n * kOfRow;
  static_assert(Tile::kChunks % kChunks == 0 && kOfRow <= Stored::kChunks);
#pragma unroll 1
  for (int index = ptx::tid_x(); index < kCount; index += threads_per_block(C)) {
    const int row = index / kOfRow, chunk = index % kOfRow;
    const ptx::Vector4 codes = ptx::ld_shared_v4(from + Stored::offset(row, chunk));
    bool is_nan = false;
    if constexpr (kHasMarks) is_nan = ptx::ld_shared_u32(marks + 4 * row) != 0;
    // Eight lanes write 128 bytes apart, not 256: of neighbours each has another chunk of its own first.
    const int turn = index / (8 / kChunks) % kChunks;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int part = i ^ turn;
      unsigned pairs[4];
      if constexpr (has_nibbles(T)) {
        const unsigned even = part < 2 ? codes.x : codes.z, odd = part < 2 ? codes.y : codes.w;
        widen_chunk<T>(part % 2 == 0 ? even : odd, 0, pairs);
      } else {
        widen_chunk<T>(part == 0 ? codes.x : codes.z, part == 0 ? codes.y : codes.w, pairs);
      }
      constexpr unsigned kNan = 0x7fff7fffu;  // two of fp16, or of bf16
      const auto word = [&](int j) { return ptx::float_of_bits(is_nan ? kNan : pairs[j]); };
      ptx::st_shared_v4(to + Tile::offset(row, chunk * kChunks + part), word(0), word(1), word(2), word(3));
    }
  }
}

// What a block's keys have besides their codes: whether their page exists, and the factors of K or of V, which are on
// their way until the thread stores them.
template <Traits T, Config C>
struct KeyNotes {
  static constexpr int kThreads = threads_per_block(C), kOwn = (C.block_n + kThreads - 1) / kThreads;
  float factors[kOwn];

  // The thread's rows of the block, and the places of their factors.
  template <class Visit>
  FC_DEVICE static void each_row(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = ptx::tid_x() + i * kThreads;
      if (C.block_n % kThreads == 0 || row < C.block_n) visit(row, i);
    }
  }
  FC_DEVICE void read(const Work& work, const Descale& by, int first_key) {
    each_row([&](int row, int i) {
      factors[i] = 0.0f;
      if (first_key + row < work.sequence.len_kv)
        factors[i] = tile::descale(by, work.batch, work.head_kv, first_key + row);
    });
  }
  // `marks`: a word for each key of a block of K; 0: of V.
  template <class Rows>
  FC_DEVICE void read_paged(const Work& work, const Descale& by, const Rows& rows, ptx::SharedAddress marks) {
    each_row([&](int row, int i) {
      const int page = rows.page_of(row);
      if (marks) ptx::st_shared_u32(marks + 4 * row, page == Rows::kBadPage);
      if constexpr (T.token_factors) {
        factors[i] = 0.0f;
        if (page >= 0) factors[i] = tile::descale(by, page, work.head_kv, rows.in_page(row));
      }
    });
  }
  FC_DEVICE void store(ptx::SharedAddress to) const {
    each_row([&](int row, int i) { ptx::st_shared_u32(to + 4 * row, ptx::bits_of_float(factors[i])); });
  }
};

// Weights times the factors of their values in fp16, which would not hold them: a row's are in units of a power of two
// that no product so far exceeds by 2. Which one it is follows the largest score with its value's factor in it, as the
// softmax follows the largest score, so that warps which share rows agree on it where they agree on the maximum.
struct ValueUnits {
  float top[2];     // of score * scale_log2 + log2(factor)
  int exponent[2];  // of the unit; relative to the row's maximum, as weights are

  FC_DEVICE void reset() {
    top[0] = top[1] = ptx::negative_infinity();
    exponent[0] = exponent[1] = 0;
  }
  FC_DEVICE static float power_of_two(int exponent) {
    return ptx::float_of_bits(static_cast<unsigned>(127 + tile::min_int(tile::max_int(exponent, -126), 127)) << 23);
  }
  // The largest of the warp's keys.
  template <int kTiles>
  FC_DEVICE static float largest(const float (&scores)[kTiles][4], const float (&factors)[kTiles][2], float scale_log2,
                                 int r) {
    float maximum = ptx::negative_infinity();
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        maximum = ptx::max(maximum, ptx::fma(scores[n][2 * r + i], scale_log2, ptx::lg2(factors[n][i])));
    return tile::quad_max(maximum);
  }
  // With `of_block`, and the row's maximum after it. Returns what O so far is multiplied with besides.
  FC_DEVICE float update(float of_block, float max_scaled, int r) {
    constexpr float kMost = 112.0f;  // 2^14 times a unit, and a unit by 2^14, are normal numbers
    top[r] = ptx::max(top[r], of_block);
    const float above = top[r] - tile::finite_max(max_scaled);
    const int before = exponent[r];
    exponent[r] = static_cast<int>(-ptx::max(-ptx::max(above, -kMost), -kMost));
    return power_of_two(before - exponent[r]);
  }
  FC_DEVICE float to_weight(int r) const { return power_of_two(-exponent[r]); }
  FC_DEVICE float undone(int r) const { return power_of_two(exponent[r]); }
};

}  // namespace flashcore::sm80_wide_fwd
