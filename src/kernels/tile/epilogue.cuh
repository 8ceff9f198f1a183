#pragma once
// How results leave: O normalised and rounded, and the log-sum-exp.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::tile {

// Of the lane's two rows: one lane of the four that share them stores.
template <class Params>
FC_DEVICE void store_lse(const Params& params, int batch, int head, const int (&rows)[2], int lane,
                         const float (&lse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (params.lse && lane % 4 == 0 && rows[r] < params.seqlen_q)
      ptx::st_global_f32(lse_pointer(params, batch, head, rows[r]), lse[r]);
  }
}

// The same of a ragged batch's rows, as its tensor maps know them (gpu_family.h): of a sequence that ends at
// packed row `end`, row r lies at r - seqlen_q from there.
FC_DEVICE void store_ragged_lse(const ForwardParams& params, int total_q, int end, int head, const int (&rows)[2],
                                int lane, const float (&lse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (params.lse && lane % 4 == 0 && rows[r] < params.seqlen_q)
      ptx::st_global_f32(params.lse + static_cast<long long>(head) * total_q + (end - params.seqlen_q + rows[r]),
                         lse[r]);
  }
}

// A warp's 16 rows of O through shared memory that nobody else reads or writes, out by TMA in boxes of 16 rows. They
// are rows of a TmaTile of kRows rows; `smem_o` is the first of them, a multiple of 8 rows from the tile's start. The
// thread's store group is left open to bulk_wait_read. `exists`: whether any of the rows does; asked here and not by
// who calls, because a branch around all of it made ptxas compile the whole kernel otherwise.
template <Element E, int kRows, int kDim, int kCount>
FC_DEVICE void store_o_tma(const float (&acc_o)[kCount], const float (&scale)[2], ptx::SharedAddress smem_o,
                           const ptx::TensorMap& map, int row, int head, int batch, bool exists = true) {
  using Tile = TmaTile<kRows, kDim>;
  const int lane = ptx::tid_x() % 32;
#pragma unroll
  for (int d = 0; d < kCount / 8; ++d) {
    unsigned packed[4];
    pack_operand<E>(packed, acc_o, d, scale);
    ptx::stmatrix_x4(smem_o + Tile::offset(lane % 16, 2 * d + lane / 16), packed[0], packed[1], packed[2], packed[3]);
  }
  ptx::fence_proxy_async();
  ptx::bar_warp_sync();  // the warp's rows are written
  if (lane == 0 && exists) {
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; ++b)
      ptx::tma_store_4d(map, smem_o + b * Tile::kBlockBytes, 64 * b, row, head, batch);
    ptx::bulk_commit();
  }
}

}  // namespace flashcore::tile
