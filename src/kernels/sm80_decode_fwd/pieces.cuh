#pragma once
// Who copies what: a thread's 16-byte pieces of a block of K or V.

#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm80_decode_fwd/config.h"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C, class Tile>
struct Pieces {
  static constexpr int kChunks = Tile::kChunks, kCopies = C.block_n * kChunks;
  static constexpr int kCount = (kCopies + threads_per_block(C) - 1) / threads_per_block(C);
  static constexpr bool kOneChunk = threads_per_block(C) % kChunks == 0;
  // Beside the widest O addresses of more copies would spill.
  static constexpr int kAtOnce = kCount <= 2 || padded_dim(T, T.head_dim) + padded_dim(T, T.head_dim_v) > 256 ? 2
                                 : kCount <= 8                                                                ? kCount
                                                                                                              : 4;

  FC_DEVICE static int key(int i) {
    return kOneChunk ? thread() / kChunks + i * (threads_per_block(C) / kChunks)
                     : (thread() + i * threads_per_block(C)) / kChunks;
  }
  FC_DEVICE static int chunk(int i) { return (kOneChunk ? thread() : thread() + i * threads_per_block(C)) % kChunks; }
  FC_DEVICE static bool exists(int i) {
    return i < kCount && (kCopies % threads_per_block(C) == 0 || key(i) < C.block_n);
  }
  FC_DEVICE static unsigned offset(int i) {
    // What the swizzle adds is the same for rows that are 8 apart.
    if constexpr (kOneChunk && threads_per_block(C) / kChunks % 8 == 0)
      return Tile::offset(key(0), chunk(0)) + i * (threads_per_block(C) / kChunks) * Tile::kPitch;
    else return Tile::offset(key(i), chunk(i));
  }
  FC_DEVICE static unsigned thread() { return ptx::tid_x(); }
};

}  // namespace flashcore::sm80_decode_fwd
