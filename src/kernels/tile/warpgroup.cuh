#pragma once
// What a warpgroup of the Hopper families does with one block of keys. Tiles lie in shared memory as TMA writes them:
// blocks of 64 columns, each a row of 128 bytes per row of the tile, 128-byte swizzle.

#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace flashcore::tile {

// Rows [row, row + kRows) of a head into shared memory, kBlocks blocks of 64 columns. The barrier expects their bytes.
template <int kBlocks>
FC_DEVICE void load_rows(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                         int rows, int row, int head, int batch) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    ptx::tma_load_4d(destination + b * rows * 128, map, barrier, 64 * b, row, head, batch);
}

// Starts S = Q·Kᵀ, 64 rows of Q in a tile of kRowsQ by all kKeys of the block, over kDim columns.
template <bool kBf16, int kDim, int kRowsQ, int kKeys>
FC_DEVICE void issue_scores(float (&scores)[kKeys / 2], ptx::WgmmaDescriptor q, ptx::WgmmaDescriptor k) {
  ptx::wgmma_registers(scores);
  ptx::wgmma_fence();
  constexpr int kWholeBlocks = kDim / 64;
#pragma unroll
  for (int b = 0; b < kWholeBlocks; ++b)
    ptx::wgmma_ss_x4<kBf16>(scores, q.advanced(b * kRowsQ * 128).low, k.advanced(b * kKeys * 128).low, b > 0);
#pragma unroll
  for (int d = 4 * kWholeBlocks; d < kDim / 16; ++d) {
    ptx::wgmma_ss<kBf16>(scores, q.advanced(kWholeBlocks * kRowsQ * 128 + d % 4 * 32).word(),
                         k.advanced(kWholeBlocks * kKeys * 128 + d % 4 * 32).word(), d > 0);
  }
  ptx::wgmma_commit();
}

// Starts O += P·V over the keys [16 kBegin, 16 kEnd) of the block.
template <bool kBf16, int kBegin, int kEnd, int kSteps, int kCount>
FC_DEVICE void issue_values(float (&acc_o)[kCount], const unsigned (&p)[kSteps][4], ptx::WgmmaDescriptor v) {
  ptx::wgmma_registers(acc_o);
  ptx::wgmma_fence();
  constexpr int kFours = (kEnd - kBegin) / 4;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int n = kBegin + 4 * i;
    ptx::wgmma_rs_x4<kBf16>(acc_o, p + n, v.advanced(n * 2048).low);
  }
#pragma unroll
  for (int n = kBegin + 4 * kFours; n < kEnd; ++n)
    ptx::wgmma_rs<kBf16, true>(acc_o, p[n], v.advanced(n * 2048).word(), 1);
  ptx::wgmma_commit();
}

// Row r (0, 1) of the lane sees the keys before end[r]; `first_key` is that of the lane's first score.
template <int kCount>
FC_DEVICE void mask_keys(float (&scores)[kCount], int first_key, const int (&end)[2]) {
  const int seen[2] = {end[0] - first_key, end[1] - first_key};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i / 4 * 8 + i % 2 >= seen[i / 2 % 2]) scores[i] = ptx::negative_infinity();
  }
}

}  // namespace flashcore::tile
