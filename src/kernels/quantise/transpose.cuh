#pragma once
// V on its way to [batch, heads_kv, dim, seqlen]: a CTA turns a tile of keys and columns in shared memory, where a word
// holds a column of four keys.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/prmt.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/quantise/params.h"
#include "kernels/quantise/rows.cuh"
#include "kernels/tile/saturation.cuh"

namespace flashcore::quantise {

// The words of four rows, which have a column in each byte, to words of four columns.
FC_DEVICE void transpose_bytes(unsigned (&words)[4]) {
  const unsigned ab_low = ptx::prmt(words[0], words[1], 0x5140u), ab_high = ptx::prmt(words[0], words[1], 0x7362u);
  const unsigned cd_low = ptx::prmt(words[2], words[3], 0x5140u), cd_high = ptx::prmt(words[2], words[3], 0x7362u);
  words[0] = ptx::prmt(ab_low, cd_low, 0x5410u), words[1] = ptx::prmt(ab_low, cd_low, 0x7632u);
  words[2] = ptx::prmt(ab_high, cd_high, 0x5410u), words[3] = ptx::prmt(ab_high, cd_high, 0x7632u);
}

// A warp takes 16 columns and a lane four keys: a load takes whole sectors of 32 bytes, and the lanes' words of a
// column lie one after another. Keys up to the next multiple of 16 are zeros.
template <Kind K, bool kVector>
FC_DEVICE void write_transposed(const QuantiseParams& params, const Operand& v, int number) {
  constexpr int kWarpsOfTile = kTileColumns / kColumns;
  static_assert(kWarpsOfTile * 32 == kThreads && kTileKeys == 4 * 32);
  const int tile = params.by_column_tiles.quotient(number), column_tile = number - tile * params.column_tiles;
  const int slab = params.by_key_tiles.quotient(tile), first_key = (tile - slab * params.key_tiles) * kTileKeys;
  const int warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
  const int part = column_tile * kWarpsOfTile + warp;
  const float factor = ptx::ld_global_f32(v.factors + group_of_slab(v, slab));
  const ptx::SharedAddress shared = ptx::dynamic_shared();
  unsigned saturated = 0;
  if (part * kColumns < v.dim) {
    unsigned codes[4][kColumns / 4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + lane * 4 + i;
      if (key >= v.seqlen) continue;
      float values[kColumns];
      load_columns<K.element, kVector>(v, place_of(v, slab * v.seqlen + key), part, values);
      codes_of<K.code>(values, factor, codes[i]);
      if constexpr (K.counts) saturated += tile::count_saturating<K.code>(values, factor);
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      unsigned words[4] = {codes[0][i], codes[1][i], codes[2][i], codes[3][i]};
      transpose_bytes(words);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        ptx::st_shared_u32(shared + (warp * kColumns + 4 * i + j) * kTileKeys + lane * 4, words[j]);
    }
  }
  if constexpr (K.counts) tile::add_count_of_warp(params.saturated + 2 * v.number, saturated);
  ptx::bar_sync();
  const int batch = v.by_heads.quotient(slab), head = slab - batch * v.heads;
  auto* to = static_cast<unsigned char*>(v.to) + batch * v.to_stride.batch + head * v.to_stride.head;
  constexpr int kVectors = kTileKeys / 16;
  for (int i = ptx::tid_x(); i < kTileColumns * kVectors; i += kThreads) {
    const int in_tile = i / kVectors, column = column_tile * kTileColumns + in_tile;
    const int key = first_key + i % kVectors * 16;
    if (column < v.dim && key < v.seqlen)
      ptx::st_global_v4(to + column * v.to_stride.row + key,
                        ptx::ld_shared_v4(shared + in_tile * kTileKeys + i % kVectors * 16));
  }
}

}  // namespace flashcore::quantise
