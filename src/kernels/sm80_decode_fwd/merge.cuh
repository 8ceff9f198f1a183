#pragma once
// The end of a run of blocks: the key warps of a CTA merge, and where several CTAs have parts of a tile, the last of
// them to arrive merges the parts. It reads all of them, its own too, in their order: the bits do not depend on who is
// last.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/sm80_decode_fwd/deal.cuh"
#include "kernels/sm80_decode_fwd/merge_row.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/partial.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm80_decode_fwd {

// Over the key warps of some rows, by way of a stage's shared memory (tile::exchange).
template <Traits T, Config C>
struct OverKeyWarps {
  const ptx::SharedAddress buffer;
  const int own;

  FC_DEVICE ptx::SharedAddress slot(int to, int from) const {
    return buffer +
           (to * (C.key_warps - 1) + (from < to ? from : from - 1)) * tile::partial_bytes(exchange_chunks(C, T));
  }
  FC_DEVICE auto writer(int to, int from) const {
    return [to = slot(to, from)](int offset, float a, float b, float c, float d) {
      ptx::st_shared_v4(to + offset, a, b, c, d);
    };
  }
  FC_DEVICE void wait() const { ptx::bar_sync(); }
  FC_DEVICE bool exists(int) const { return true; }
  FC_DEVICE bool owns(int chunk) const {
    return all_chunks(T) % C.key_warps == 0 || own * warp_chunks(C, T) + chunk < all_chunks(T);
  }
};

// The parts of a tile, where they lie in the workspace, and which is the CTA's own.
struct Parts {
  int count;
  int first_slot;  // of part 0
  int own_slot;
  int counter;

  // A CTA can begin one tile that it does not end, and end one that it has not begun: it has two slots, in this order
  // the second and the first. So the first part of a tile lies in its CTA's second slot, and the others in first ones.
  // With parts of a fixed size each has its own.
  template <Config C>
  FC_DEVICE static constexpr int slots_of_cta() {
    return C.split_keys != 0 ? 1 : 2;
  }
  template <Config C>
  FC_DEVICE static Parts of(const Run& run, const Shares& shares) {
    if constexpr (C.split_keys != 0) {
      return {run.tile_units, run.tile_unit, run.unit, run.tile_unit};
    } else {
      const int first = shares.cta_of(run.tile_unit), last = shares.cta_of(run.tile_unit + run.tile_units - 1);
      const int cta = ptx::ctaid_x();
      return {last - first + 1, 2 * first + 1, cta == first ? 2 * first + 1 : 2 * cta, first};
    }
  }
};

template <Traits T, Config C>
struct Finish {
  static constexpr int kChunks = warp_chunks(C, T);
  using Chunks = float[kChunks][4];

  const Params& params;
  const ScoreParams* score_params;
  const Run& run;
  const int lane, row_warp, key_warp;
  const Factored<T>* descales;

  // Within the tile; rows of heads and positions that do not exist are its last ones.
  FC_DEVICE int row(int r) const { return C.warp_rows * row_warp + tile::row_of_lane(lane, r); }
  static constexpr int kRows = C.warp_rows / 8;  // of a lane
  FC_DEVICE int rows() const { return run.len_q * params.group_size - run.first_row; }
  FC_DEVICE int column(int chunk) const { return (key_warp * kChunks + chunk) * 8; }
  // The lane's pair of columns in a chunk, from first_column() on. Of a quantised cache two chunks share 16 columns, of
  // int4 four share 32: see sort_columns.
  FC_DEVICE int pair_column(int chunk) const {
    if constexpr (has_quantised_cache(T)) {
      const int own = key_warp * kChunks + chunk;
      constexpr int kShared = code_steps(T);
      return own / kShared * (8 * kShared) + own % kShared * 2;
    } else {
      return column(chunk);
    }
  }
  FC_DEVICE int first_column() const {
    return has_quantised_cache(T) ? lane % 4 * (2 * code_steps(T)) : tile::column_of_lane(lane);
  }

  // --- parts ------------------------------------------------------------------------------------------------------
  // Maximum and sum of each row, then O by rows: those that exist, and no others, are what CTAs write and read.
  FC_DEVICE float* part_address(int slot) const {
    return static_cast<float*>(params.parts) + static_cast<long long>(slot) * (part_bytes(C, T) / 4);
  }
  static constexpr int kFirstO = 2 * tile_rows(C);
  // In words; see Parts::of.
  struct PlaceOfParts {
    static constexpr int kFirstO = Finish::kFirstO, kColumns = T.head_dim_v;
    static constexpr int kStride = part_bytes(C, T) / 4 * Parts::slots_of_cta<C>();
    static constexpr int kShift = C.split_keys != 0 ? 0 : part_bytes(C, T) / 4;
  };
  FC_DEVICE void write_part(const Parts& parts, const tile::RowState& state, const Chunks& o) const {
    float* to = part_address(parts.own_slot);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row(r) >= rows()) continue;
      if (key_warp == 0 && lane % 4 == 0) {
        ptx::st_global_f32(to + 2 * row(r), state.maximum[r]);
        ptx::st_global_f32(to + 2 * row(r) + 1, state.total[r]);
      }
      float* of_row = to + kFirstO + row(r) * T.head_dim_v + first_column();
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (column(c) >= T.head_dim_v) continue;
        ptx::st_global_f32(of_row + pair_column(c), o[c][2 * r]);
        ptx::st_global_f32(of_row + pair_column(c) + 1, o[c][2 * r + 1]);
      }
    }
  }
  // True in the CTA that is the last one to arrive.
  FC_DEVICE bool arrive(const Parts& parts, ptx::SharedAddress flag) const {
    ptx::bar_sync();  // all threads have written
    if (ptx::tid_x() == 0) {
      unsigned* counter = params.counters + parts.counter;
      const bool is_last = ptx::atomic_add_global_acq_rel(counter, 1) == static_cast<unsigned>(parts.count) - 1;
      if (is_last) ptx::st_global_u32(counter, 0);  // as the next launch wants it
      ptx::st_shared_u32(flag, is_last);
    }
    ptx::bar_sync();
    return ptx::ld_shared_u32(flag) != 0;
  }
  // A row for each warp, four columns for each lane.
  FC_DEVICE void merge(const Parts& parts) const {
    constexpr int kWarps = C.row_warps * C.key_warps;
    constexpr int kAtOnce = parts_at_once(C);
    const int rows_here = tile::min_int(rows(), tile_rows(C));
#pragma unroll 1
    for (int of_row = C.key_warps * row_warp + key_warp; of_row < rows_here; of_row += kWarps) {
      const Place place = place_of(of_row);
#pragma unroll 1
      for (int first = 0; first < T.head_dim_v; first += 128) {
        // Lanes past the last column do what the last one does, but for storing: a condition on each load would spill.
        const int column = tile::min_int(first + 4 * lane, T.head_dim_v - 4);
        const MergedRow merged = merge_row<PlaceOfParts, kAtOnce>(
            part_address(parts.first_slot) - PlaceOfParts::kShift, parts.count, of_row, column, lane);
        const float scale = end_row(place, merged.maximum, merged.total, column == 0);
        if (column != first + 4 * lane) continue;
        store_pair(place, column, merged.o[0] * scale, merged.o[1] * scale);
        store_pair(place, column + 2, merged.o[2] * scale, merged.o[3] * scale);
      }
    }
  }

  // --- results ----------------------------------------------------------------------------------------------------
  using OutputElement = typename Choice<is_8bit(T.output), unsigned char, unsigned short>::Type;
  struct Place {
    int position, head;
    OutputElement* o;
  };
  FC_DEVICE Place place_of(int of_row) const {
    const ForwardParams& problem = params.problem;
    Place place;
    place.position = params.by_group_size.quotient(run.first_row + of_row);
    place.head = run.head_kv * params.group_size + run.first_row + of_row - place.position * params.group_size;
    place.o = static_cast<OutputElement*>(problem.o) + run.batch * problem.o_stride.batch +
              place.head * problem.o_stride.head + (run.first_q + place.position) * problem.o_stride.row;
    return place;
  }
  FC_DEVICE static void store_pair(const Place& place, int column, float a, float b) {
    if constexpr (is_8bit(T.output))
      ptx::st_global_u16(
          reinterpret_cast<unsigned short*>(place.o + column),
          static_cast<unsigned short>(tile::fp8_of_float<T.output>(a) | tile::fp8_of_float<T.output>(b) << 8));
    else ptx::st_global_u32(reinterpret_cast<unsigned*>(place.o + column), tile::pack<T.output>(a, b));
  }
  // What O is multiplied with. One thread of a row writes its log-sum-exp.
  FC_DEVICE float end_row(const Place& place, float maximum, float total, bool writes) const {
    const ForwardParams& problem = params.problem;
    float scale, lse;
    if constexpr (T.sink) {
      const Extent extent = {problem.heads_q, run.len_q, run.len_kv, 0, 0};
      const float sink = tile::Score<T, Extent>{extent, score_params}.sink_log2(place.head);
      scale = tile::add_sink(maximum, total, sink, lse);
    } else {
      scale = tile::inverse_sum(total);
      lse = tile::log_sum_exp(maximum, total);
    }
    if (problem.lse && writes) {
      const long long heads_rows =
          T.ragged ? static_cast<long long>(place.head) * params.total_q + run.first_q
                   : static_cast<long long>(run.batch * problem.heads_q + place.head) * problem.seqlen_q;
      ptx::st_global_f32(problem.lse + heads_rows + place.position, lse);
    }
    if constexpr (has_quantised_cache(T) && !T.token_factors)
      scale *= tile::descale(descales->descale_v, run.batch, run.head_kv);
    return scale;
  }
  // Of a tile that this CTA has whole.
  FC_DEVICE void store(const tile::RowState& state, const Chunks& o) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row(r) >= rows()) continue;
      const Place place = place_of(row(r));
      const float scale = end_row(place, state.maximum[r], state.total[r], key_warp == 0 && lane % 4 == 0);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (column(c) < T.head_dim_v)
          store_pair(place, pair_column(c) + first_column(), o[c][2 * r] * scale, o[c][2 * r + 1] * scale);
      }
    }
  }
};

}  // namespace flashcore::sm80_decode_fwd
