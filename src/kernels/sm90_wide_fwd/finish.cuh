#pragma once
// The end of a tile in sm90_wide_fwd: O through Q's rows and out by TMA, and the log-sum-exp. Where several clusters
// have parts of a tile's keys, each leaves its part for the step that merges them.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_wide_fwd/context.cuh"
#include "kernels/sm90_wide_fwd/parts.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::sm90_wide_fwd {

// By both consumers.
template <Traits T, Config C>
struct Finish {
  using TileQo = tile::TmaTile<kRows, tile::max_int(T.head_dim, T.head_dim_v)>;
  using Accumulator = float[own_blocks(T)][32];
  const Context<T, C>& context;
  const int batch, head, first_position;  // of the tile
  const int first_q, len_q;               // of its sequence
  const int index;                        // of the consumer

  FC_DEVICE const ForwardParams& problem() const { return context.params.problem; }
  FC_DEVICE static int warp() { return ptx::tid_x() % 128 / 32; }
  FC_DEVICE static int lane() { return ptx::tid_x() % 32; }
  FC_DEVICE static int row(int r) { return 16 * warp() + tile::row_of_lane(lane(), r); }
  FC_DEVICE int position_of(int of_row) const { return first_position + of_row % own_positions(C); }
  FC_DEVICE int head_of(int of_row) const { return context.first_head(head) + of_row / own_positions(C); }
  FC_DEVICE bool exists(int of_row) const { return position_of(of_row) < len_q; }

  // Of the consumer's blocks of 64 columns, among all.
  FC_DEVICE int block_of(int b) const { return kConsumers * b + index; }
  FC_DEVICE bool has_block(int b) const { return kConsumers * b + 1 < column_blocks(T.head_dim_v) || index == 0; }

  // Of a tile that this CTA has by itself: each warp its rows and its consumer's columns. Q is not read any more.
  FC_DEVICE void store(const tile::RowState& state, const Accumulator& o) const {
    const RowEnd<T> rows = {problem(), context.score_params, context.params.total_q, batch, first_q, len_q};
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      scale[r] = rows.end(head_of(row(r)), position_of(row(r)), state.maximum[r], state.total[r],
                          index == 0 && lane() % 4 == 0);
    const ptx::SharedAddress own = context.qo() + kRowsPerStore * warp() * 128;
#pragma unroll
    for (int b = 0; b < own_blocks(T); ++b) {
      if (!has_block(b)) continue;
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        unsigned packed[4];
        tile::pack_operand<T.output>(packed, o[b], d, scale);
        ptx::stmatrix_x4(own + block_of(b) * TileQo::kBlockBytes + TileQo::offset(lane() % 16, 2 * d + lane() / 16),
                         packed[0], packed[1], packed[2], packed[3]);
      }
    }
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();  // the warp's rows are written
    const int of_warp = kRowsPerStore * warp();
    // Boxes of a ragged batch have a row of the tensor, as those that are loaded (row_in_map).
    if (lane() != 0 || (T.ragged && !exists(of_warp))) return;
    const int map_row = position_of(of_warp) + (T.ragged ? problem().seqlen_q - len_q : 0);
    const int map_batch = T.ragged ? first_q + len_q : batch;
#pragma unroll
    for (int b = 0; b < own_blocks(T); ++b) {
      if (!has_block(b)) continue;
      ptx::tma_store_4d(context.params.o, own + block_of(b) * TileQo::kBlockBytes, 64 * block_of(b), map_row,
                        head_of(of_warp), map_batch);
    }
    ptx::bulk_commit();
  }

  // --- parts --------------------------------------------------------------------------------------------------------
  FC_DEVICE int tile_number(const Parts<T, C>& parts) const {
    return parts.tile_number(batch, context.head_tile(head), first_position, context.rank());
  }
  // Of a tile with one part nobody merges it.
  FC_DEVICE void tell_count(const Share& share) const {
    const Parts<T, C> parts = {context.params};
    if (context.params.num_splits > 1 && share.part == 0 && ptx::tid_x() == 128)
      ptx::st_global_u32(parts.count(tile_number(parts)), static_cast<unsigned>(share.parts));
  }
  FC_DEVICE void write_part(const tile::RowState& state, const Accumulator& o, const Share& share) const {
    const Parts<T, C> parts = {context.params};
    float* to = parts.address(tile_number(parts), share.part);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists(row(r))) continue;
      if (index == 0 && lane() % 4 == 0) {
        ptx::st_global_f32(to + 2 * row(r), state.maximum[r]);
        ptx::st_global_f32(to + 2 * row(r) + 1, state.total[r]);
      }
      float* of_row = to + Parts<T, C>::kFirstO + row(r) * Parts<T, C>::kRowWords;
#pragma unroll
      for (int b = 0; b < own_blocks(T); ++b) {
        if (!has_block(b)) continue;
#pragma unroll
        for (int four = 0; four < Parts<T, C>::kFours; ++four) {
          const float* from = o[b] + 8 * four + 2 * r;
          ptx::st_global_v4(of_row + Parts<T, C>::place(block_of(b), four, lane() % 4),
                            {ptx::bits_of_float(from[0]), ptx::bits_of_float(from[1]), ptx::bits_of_float(from[4]),
                             ptx::bits_of_float(from[5])});
        }
      }
    }
  }
};

}  // namespace flashcore::sm90_wide_fwd
