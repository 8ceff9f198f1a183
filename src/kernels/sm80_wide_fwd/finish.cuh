#pragma once
// The end of a tile: its log-sum-exp, O through shared memory, and where several CTAs have parts of a tile's keys, the
// last of them to arrive merges the parts. It reads all of them, its own too, in the order of keys: the bits do not
// depend on who is last.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/sm80_wide_fwd/tile_of_cta.cuh"
#include "kernels/tile/merge_parts.cuh"
#include "kernels/tile/partial.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/shared_tile.cuh"

namespace flashcore::sm80_wide_fwd {

// O's columns are dealt out in pieces of 16, one to each of a row's warps in turn. The last warps may have one less.
template <Traits T, Config C>
FC_DEVICE bool has_piece(int column_warp, int i) {
  return all_pieces(T) % C.column_warps == 0 || i * C.column_warps + column_warp < all_pieces(T);
}

template <Traits T, Config C>
struct Finish {
  static constexpr int kPieces = warp_pieces(C, T), kThreads = threads_per_block(C);
  using TileO = tile::SharedTile<padded_dim_v(T.head_dim_v), tile::SharedLayout::kXor>;
  using Accumulator = float[2 * kPieces][4];

  const Params& params;
  const ScoreParams* score_params;
  const Work& work;
  const int lane, row_warp, column_warp;
  const float factor_v;  // 1, but of a quantised cache

  // Rows of the tile; those of positions that do not exist are its last ones.
  FC_DEVICE int row(int r) const { return 16 * row_warp + tile::row_of_lane(lane, r); }
  FC_DEVICE int rows() const {
    return tile::min_int(work.sequence.len_q * params.group_size - work.first_row, tile_rows(C));
  }
  // Of tile i of the accumulator, which is half a piece.
  FC_DEVICE int chunk_of(int i) const { return 2 * (i / 2 * C.column_warps + column_warp) + i % 2; }

  struct Place {
    int position, head;
    unsigned short* o;
  };
  FC_DEVICE Place place_of(int of_row) const {
    const ForwardParams& problem = params.problem;
    Place place;
    place.position = params.by_group_size.quotient(work.first_row + of_row);
    place.head = work.head_kv * params.group_size + work.first_row + of_row - place.position * params.group_size;
    place.o = static_cast<unsigned short*>(problem.o) + work.batch * problem.o_stride.batch +
              place.head * problem.o_stride.head + (work.sequence.first_q + place.position) * problem.o_stride.row;
    return place;
  }
  // What O is multiplied with. One thread of a row writes its log-sum-exp.
  FC_DEVICE float end_row(const Place& place, float maximum, float total, bool writes) const {
    const ForwardParams& problem = params.problem;
    float scale, lse;
    if constexpr (T.sink) {
      const float sink = tile::Score<T, Extent>{work.extent, score_params}.sink_log2(place.head);
      scale = tile::add_sink(maximum, total, sink, lse);
    } else {
      scale = tile::inverse_sum(total);
      lse = tile::log_sum_exp(maximum, total);
    }
    if constexpr (has_quantised_cache(T) && !T.token_factors) scale *= factor_v;
    if (problem.lse && writes) {
      const long long of_head =
          T.ragged ? static_cast<long long>(place.head) * params.total_q + work.sequence.first_q
                   : static_cast<long long>(work.batch * problem.heads_q + place.head) * problem.seqlen_q;
      ptx::st_global_f32(problem.lse + of_head + place.position, lse);
    }
    return scale;
  }

  // Of a tile that this CTA has by itself: each warp its own columns, in 16-byte pieces. Q is not read any more.
  FC_DEVICE void store(const tile::RowState& state, const Accumulator& o, ptx::SharedAddress shared_o) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row(r) >= rows()) continue;
      const float scale =
          end_row(place_of(row(r)), state.maximum[r], state.total[r], column_warp == 0 && lane % 4 == 0);
#pragma unroll
      for (int i = 0; i < 2 * kPieces; ++i) {
        if (!has_piece<T, C>(column_warp, i / 2)) continue;
        ptx::st_shared_u32(shared_o + TileO::offset(row(r), chunk_of(i)) + 2 * tile::column_of_lane(lane),
                           tile::pack<T.element>(o[i][2 * r] * scale, o[i][2 * r + 1] * scale));
      }
    }
    ptx::bar_warp_sync();
    const int own_rows = tile::min_int(rows() - 16 * row_warp, 16);
#pragma unroll 1
    for (int index = lane; index < own_rows * 2 * kPieces; index += 32) {
      const int of_row = 16 * row_warp + index / (2 * kPieces), chunk = chunk_of(index % (2 * kPieces));
      if (chunk * 8 >= T.head_dim_v) continue;
      ptx::st_global_v4(place_of(of_row).o + chunk * 8, ptx::ld_shared_v4(shared_o + TileO::offset(of_row, chunk)));
    }
  }

  // --- parts ------------------------------------------------------------------------------------------------------
  // Maximum and sum of each row, then O by rows: those that exist, and no others, are what CTAs write and read.
  FC_DEVICE float* part_address(int part) const {
    return static_cast<float*>(params.parts) +
           (static_cast<long long>(work.tile) * params.num_splits + part) * (part_bytes(C, T) / 4);
  }
  static constexpr int kFirstO = 2 * tile_rows(C);
  FC_DEVICE void write_part(const tile::RowState& state, const Accumulator& o) const {
    float* to = part_address(work.part);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row(r) >= rows()) continue;
      if (column_warp == 0 && lane % 4 == 0) {
        ptx::st_global_f32(to + 2 * row(r), state.maximum[r]);
        ptx::st_global_f32(to + 2 * row(r) + 1, state.total[r]);
      }
      float* of_row = to + kFirstO + row(r) * T.head_dim_v + tile::column_of_lane(lane);
#pragma unroll
      for (int i = 0; i < 2 * kPieces; ++i) {
        const int column = 8 * chunk_of(i);
        if (column >= T.head_dim_v) continue;
        ptx::st_global_f32(of_row + column, o[i][2 * r]);
        ptx::st_global_f32(of_row + column + 1, o[i][2 * r + 1]);
      }
    }
  }
  // True in the CTA that is the last one to arrive.
  FC_DEVICE bool arrive(ptx::SharedAddress flag) const {
    ptx::bar_sync();  // all threads have written
    if (ptx::tid_x() == 0) {
      unsigned* counter = params.counters + work.tile;
      const bool is_last = ptx::atomic_add_global_acq_rel(counter, 1) == static_cast<unsigned>(work.parts) - 1;
      if (is_last) ptx::st_global_u32(counter, 0);  // as the next launch wants it
      ptx::st_shared_u32(flag, is_last);
    }
    ptx::bar_sync();
    return ptx::ld_shared_u32(flag) != 0;
  }
  // Four columns of a row for each thread.
  FC_DEVICE void merge() const {
    constexpr int kVectors = T.head_dim_v / 4;
    const int count = rows() * kVectors;
#pragma unroll 1
    for (int index = ptx::tid_x(); index < count; index += kThreads) {
      const int of_row = index / kVectors, of_column = index % kVectors * 4;
      const tile::MergedFour merged = tile::merge_parts<kFirstO, T.head_dim_v>(
          [&](int part) { return part_address(part); }, work.parts, of_row, of_column);
      const Place place = place_of(of_row);
      const float scale = end_row(place, merged.maximum, merged.total, of_column == 0);
      unsigned* to = reinterpret_cast<unsigned*>(place.o + of_column);
      ptx::st_global_u32(to, tile::pack<T.element>(merged.o[0] * scale, merged.o[1] * scale));
      ptx::st_global_u32(to + 1, tile::pack<T.element>(merged.o[2] * scale, merged.o[3] * scale));
    }
  }
};

}  // namespace flashcore::sm80_wide_fwd
