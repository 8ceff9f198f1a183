#pragma once
// The end of a tile in sm90_wide_fwd: O through Q's rows and out by TMA, and the log-sum-exp. Where several clusters
// have parts of a tile's keys, the last CTA to arrive merges the parts. It reads all of them, its own too, in the order
// of keys: the bits do not depend on who is last.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_wide_fwd/context.cuh"
#include "kernels/tile/merge_parts.cuh"
#include "kernels/tile/partial.cuh"
#include "kernels/tile/tma_tile.cuh"

namespace flashcore::sm90_wide_fwd {

// By both consumers.
template <Traits T, Config C>
struct Finish {
  using TileQo = tile::TmaTile<kRows, tile::max_int(T.head_dim, T.head_dim_v)>;
  using Accumulator = float[own_blocks(T)][32];
  static constexpr int kAllBarrier = 12;  // of both consumers

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

  // What a row of O is multiplied with. One thread of those that ask writes its log-sum-exp.
  FC_DEVICE float end_row(int of_row, float maximum, float total, bool writes) const {
    float scale, lse;
    if constexpr (T.sink) {
      const float sink = tile::Score<T>{problem(), context.score_params}.sink_log2(head_of(of_row));
      scale = tile::add_sink(maximum, total, sink, lse);
    } else {
      scale = tile::inverse_sum(total);
      lse = tile::log_sum_exp(maximum, total);
    }
    if (problem().lse && writes && exists(of_row)) {
      const long long of_head = T.ragged ? static_cast<long long>(head_of(of_row)) * context.params.total_q + first_q
                                         : static_cast<long long>(batch * problem().heads_q + head_of(of_row)) * len_q;
      ptx::st_global_f32(problem().lse + of_head + position_of(of_row), lse);
    }
    return scale;
  }

  // Of a tile that this CTA has by itself: each warp its rows and its consumer's columns. Q is not read any more.
  FC_DEVICE void store(const tile::RowState& state, const Accumulator& o) const {
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      scale[r] = end_row(row(r), state.maximum[r], state.total[r], index == 0 && lane() % 4 == 0);
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
  // Of the CTAs that could have a tile, however many exist.
  FC_DEVICE int tile_number() const {
    const int heads = problem().heads_q / C.pack_heads;
    const int of_cluster =
        (batch * heads + context.head_tile(head)) * context.params.row_tiles + first_position / cluster_positions(C);
    return of_cluster * C.cluster + context.rank();
  }
  FC_DEVICE float* part_address(int part) const {
    return static_cast<float*>(context.params.parts) +
           (static_cast<long long>(tile_number()) * context.params.num_splits + part) * (part_bytes(T) / 4);
  }
  static constexpr int kFirstO = 2 * kRows;
  FC_DEVICE void write_part(const tile::RowState& state, const Accumulator& o, const Share& share) const {
    float* to = part_address(share.part);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists(row(r))) continue;
      if (index == 0 && lane() % 4 == 0) {
        ptx::st_global_f32(to + 2 * row(r), state.maximum[r]);
        ptx::st_global_f32(to + 2 * row(r) + 1, state.total[r]);
      }
      float* of_row = to + kFirstO + row(r) * T.head_dim_v + tile::column_of_lane(lane());
#pragma unroll
      for (int b = 0; b < own_blocks(T); ++b) {
#pragma unroll
        for (int chunk = 0; chunk < 8; ++chunk) {
          const int column = 64 * block_of(b) + 8 * chunk;
          if (column >= T.head_dim_v) continue;
          ptx::st_global_f32(of_row + column, o[b][4 * chunk + 2 * r]);
          ptx::st_global_f32(of_row + column + 1, o[b][4 * chunk + 2 * r + 1]);
        }
      }
    }
  }
  // True in the CTA that is the last one to arrive.
  FC_DEVICE bool arrive(const Share& share) const {
    ptx::bar_sync(kAllBarrier, 128 * kConsumers);  // all threads have written
    if (ptx::tid_x() == 128) {
      unsigned* counter = context.params.counters + tile_number();
      const bool is_last = ptx::atomic_add_global_acq_rel(counter, 1) == static_cast<unsigned>(share.parts) - 1;
      if (is_last) ptx::st_global_u32(counter, 0);  // as the next launch wants it
      ptx::st_shared_u32(context.flag(), is_last);
    }
    ptx::bar_sync(kAllBarrier, 128 * kConsumers);
    return ptx::ld_shared_u32(context.flag()) != 0;
  }
  // Four columns of a row for each thread.
  FC_DEVICE void merge(const Share& share) const {
    constexpr int kVectors = T.head_dim_v / 4;
#pragma unroll 1
    for (int item = ptx::tid_x() - 128; item < kRows * kVectors; item += 128 * kConsumers) {
      const int of_row = item / kVectors, column = item % kVectors * 4;
      if (!exists(of_row)) continue;
      const tile::MergedFour merged = tile::merge_parts<kFirstO, T.head_dim_v>(
          [&](int part) { return part_address(part); }, share.parts, of_row, column);
      const float scale = end_row(of_row, merged.maximum, merged.total, column == 0);
      unsigned short* o = static_cast<unsigned short*>(problem().o) + batch * problem().o_stride.batch +
                          head_of(of_row) * problem().o_stride.head +
                          (first_q + position_of(of_row)) * problem().o_stride.row;
      unsigned* to = reinterpret_cast<unsigned*>(o + column);
      ptx::st_global_u32(to, tile::pack<T.output>(merged.o[0] * scale, merged.o[1] * scale));
      ptx::st_global_u32(to + 1, tile::pack<T.output>(merged.o[2] * scale, merged.o[3] * scale));
    }
  }
};

}  // namespace flashcore::sm90_wide_fwd
