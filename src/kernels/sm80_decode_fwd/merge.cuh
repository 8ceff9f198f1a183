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

// Parts that one CTA merges, by the slots of the workspace in which they lie: part i in slot first + i · stride, and
// part 0 `shift` behind that.
struct Parts {
  int first, stride, shift, count;
  int counter;    // of those that are there
  bool are_tile;  // all of a tile; else a group of them, whose sum takes the slot of its first part

  FC_DEVICE int first_slot() const { return first + shift; }
};

// How the parts of a tile merge. Up to kPartsAlone the last CTA to arrive merges all. Of more it would wait for memory
// again and again, and so each kPartsOfGroup in a row are a group, whose last CTA merges them, and the last of these
// CTAs merges the groups. A row's bits go by its own keys alone where parts have a fixed size.
struct PartsOfTile {
  int first, stride, shift, count;  // as of Parts, of all
  int own;

  // A CTA can begin one tile that it does not end, and end one that it has not begun: it has two slots, in this order
  // the second and the first. With parts of a fixed size each has its own slot.
  template <Config C>
  FC_DEVICE static PartsOfTile of(const Run& run, const Shares& shares) {
    if constexpr (C.split_keys != 0) {
      return {run.tile_unit, 1, 0, run.tile_units, run.unit - run.tile_unit};
    } else {
      const int first = shares.cta_of(run.tile_unit), last = shares.cta_of(run.tile_unit + run.tile_units - 1);
      return {2 * first, 2, 1, last - first + 1, ptx::ctaid_x() - first};
    }
  }
  FC_DEVICE int own_slot() const { return first + own * stride + (own == 0 ? shift : 0); }
  FC_DEVICE bool has_groups() const { return count > kPartsAlone; }
  // Each slot has two counters: of the group and of the tile whose first part lies there.
  FC_DEVICE Parts of_group() const {
    const int before = own / kPartsOfGroup * kPartsOfGroup;
    const int begin = first + before * stride, behind = before == 0 ? shift : 0;
    return {begin, stride, behind, tile::min_int(kPartsOfGroup, count - before), 2 * (begin + behind), false};
  }
  FC_DEVICE Parts of_tile() const {
    const int each = has_groups() ? kPartsOfGroup : 1;
    return {first, each * stride, shift, (count + each - 1) / each, 2 * (first + shift) + 1, true};
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
  FC_DEVICE static void write_state(float* to, int of_row, float maximum, float total) {
    ptx::st_global_f32(to + 2 * of_row, maximum);
    ptx::st_global_f32(to + 2 * of_row + 1, total);
  }
  FC_DEVICE void write_part(int slot, const tile::RowState& state, const Chunks& o) const {
    float* to = part_address(slot);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row(r) >= rows()) continue;
      if (key_warp == 0 && lane % 4 == 0) write_state(to, row(r), state.maximum[r], state.total[r]);
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
    constexpr int kWarps = C.row_warps * C.key_warps, kWords = part_bytes(C, T) / 4;
    const PlacedParts<kFirstO, T.head_dim_v> placed = {part_address(parts.first), parts.stride * kWords,
                                                       parts.shift * kWords, parts.count};
    const int rows_here = tile::min_int(rows(), tile_rows(C));
#pragma unroll 1
    for (int of_row = C.key_warps * row_warp + key_warp; of_row < rows_here; of_row += kWarps) {
      MergedRow merged;
#pragma unroll 1
      for (int first = 0; first < T.head_dim_v; first += 128) {
        // Lanes past the last column do what the last one does, but for storing: a condition on each load would spill.
        const int column = tile::min_int(first + 4 * lane, T.head_dim_v - 4);
        merged = placed.template merge<parts_at_once(C, T)>(of_row, column, lane);
        const bool is_own = column == first + 4 * lane;
        if (parts.are_tile) {
          const Place place = place_of(of_row);
          const float scale = end_row(place, merged.maximum, merged.total, is_own && column == 0);
          if (!is_own) continue;
          store_pair(place, column, merged.o[0] * scale, merged.o[1] * scale);
          store_pair(place, column + 2, merged.o[2] * scale, merged.o[3] * scale);
        } else {
          ptx::bar_warp_sync();  // all lanes have read what one of them writes
          if (!is_own) continue;
          float* to = part_address(parts.first_slot()) + kFirstO + of_row * T.head_dim_v + column;
#pragma unroll
          for (int i = 0; i < 4; ++i) ptx::st_global_f32(to + i, merged.o[i]);
        }
      }
      if (!parts.are_tile && lane == 0)
        write_state(part_address(parts.first_slot()), of_row, merged.maximum, merged.total);
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
