#pragma once
// Tiles as TMA writes and wgmma reads them: blocks of 64 columns, each a row of 128 bytes per row of the tile, 128-byte
// swizzle, aligned to 1 KB.

#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/tile/shared_layout.h"

namespace flashcore::tile {

// kRows rows of kDim columns.
template <int kRows, int kDim>
struct TmaTile {
  static constexpr int kBlocks = column_blocks(kDim);
  static constexpr int kBlockBytes = kRows * 128;
  static constexpr int kBytes = tma_tile_bytes(kRows, kDim);

  // Functions, because a static member more would be a constant of every kernel.
  FC_DEVICE static constexpr int line_bytes() { return 128; }
  FC_DEVICE static constexpr int block_columns() { return 64; }

  // Of 16 bytes, `chunk` counting over all columns.
  FC_DEVICE static int offset(int row, int chunk) {
    return chunk / 8 * kBlockBytes + row * 128 + ((chunk % 8 ^ row % 8) << 4);
  }

  // Rows [row, row + kRows) of a head, in boxes of 64 columns that are rows high; `barrier` must expect their bytes.
  FC_DEVICE static void load(ptx::SharedAddress tile, const ptx::TensorMap& map, ptx::SharedAddress barrier, int row,
                             int head, int batch) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) ptx::tma_load_4d(tile + b * kBlockBytes, map, barrier, 64 * b, row, head, batch);
  }
  // The same, announced to the barrier first.
  FC_DEVICE static void load_expected(ptx::SharedAddress tile, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                                      int row, int head, int batch) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
    load(tile, map, barrier, row, head, batch);
  }
  // Of a cluster of kRanks CTAs that want the same tile: each loads its share of the rows into all.
  template <int kRanks>
  FC_DEVICE static void load_multicast(ptx::SharedAddress tile, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                                       int row, int head, int batch, int rank) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
    const int first = rank * (kRows / kRanks);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      ptx::tma_load_4d_multicast(tile + b * kBlockBytes + first * 128, map, barrier, 64 * b, row + first, head, batch,
                                 (1 << kRanks) - 1);
    }
  }
};

}  // namespace flashcore::tile
