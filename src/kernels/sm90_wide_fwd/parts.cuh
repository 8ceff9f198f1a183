#pragma once
// Parts of a tile in sm90_wide_fwd, whose keys several clusters have: what each leaves in global memory, and the kernel
// that merges them, a step of its own. One CTA that merged all rows of a tile took longer than the multiplies: of 32
// parts of 64 rows about 85 of 180 us on an H200 (one sequence of 32,768 keys, 128 heads; nothing is kept).

#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm90_wide_fwd/config.h"
#include "kernels/sm90_wide_fwd/params.h"
#include "kernels/tile/merge_parts.cuh"
#include "kernels/tile/partial.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/sequence.cuh"

namespace flashcore::sm90_wide_fwd {

// A row of o and lse, at its end.
template <Traits T>
struct RowEnd {
  const ForwardParams& problem;
  const ScoreParams* score_params;
  int total_q;  // of a ragged batch
  int batch, first_q, len_q;

  // What the row of O is multiplied with. The thread that `writes` writes its log-sum-exp.
  FC_DEVICE float end(int head, int position, float maximum, float total, bool writes) const {
    float scale, lse;
    if constexpr (T.sink) {
      const float sink = tile::Score<T>{problem, score_params}.sink_log2(head);
      scale = tile::add_sink(maximum, total, sink, lse);
    } else {
      scale = tile::inverse_sum(total);
      lse = tile::log_sum_exp(maximum, total);
    }
    if (problem.lse && writes && position < len_q) {
      const long long of_head = T.ragged ? static_cast<long long>(head) * total_q + first_q
                                         : static_cast<long long>(batch * problem.heads_q + head) * len_q;
      ptx::st_global_f32(problem.lse + of_head + position, lse);
    }
    return scale;
  }
};

// A part: maximum and sum of each row, then O. Four words of it are what a thread of a consumer holds of a row in two
// chunks of eight columns next to each other; those of all rows lie one after another, so that a warp writes 512 bytes
// at once and a row is read in 64.
template <Traits T, Config C>
struct Parts {
  static constexpr int kFirstO = 2 * kRows;
  static constexpr int kFours = 4;      // of a block of 64 columns, of each of a row's four threads
  static constexpr int kRowWords = 16;  // of a row in one of them

  const Params<ptx::TensorMap>& params;

  // Of a CTA's tile, among those that could exist.
  FC_DEVICE int tile_number(int batch, int head_tile, int position, int rank) const {
    const int heads = params.problem.heads_q / C.pack_heads;
    const int of_cluster = (batch * heads + head_tile) * params.row_tiles + position / cluster_positions(C);
    return of_cluster * C.cluster + rank;
  }
  FC_DEVICE float* address(int tile, int part) const {
    return static_cast<float*>(params.parts) +
           (static_cast<long long>(tile) * params.num_splits + part) * (part_bytes(T) / 4);
  }
  // How many parts the tile has. A word of each.
  FC_DEVICE unsigned* count(int tile) const { return params.part_counts + tile; }
  // Of the first row's words in four number `four` of a block of 64 columns.
  FC_DEVICE static int place(int block, int four, int thread_of_row) {
    return kRows * kRowWords * (kFours * block + four) + 4 * thread_of_row;
  }
};

// A row for each CTA: the bits do not depend on who computed which part last, for parts are added in the order of keys.
template <Traits T, Config C>
FC_DEVICE void merge_row(const Params<ptx::TensorMap>& params, const ScoreParams* score, const RaggedParams* ragged,
                         const PagedParams* paged = nullptr) {
  const ForwardParams& problem = params.problem;
  const int number = ptx::ctaid_x();
  const int position = number % problem.seqlen_q, of_batch = number / problem.seqlen_q;
  const int head = of_batch % problem.heads_q, batch = of_batch / problem.heads_q;
  int first_q = 0, len_q = problem.seqlen_q;
  if constexpr (T.ragged) {
    tile::Sequence sequence;
    if constexpr (T.paged) sequence = tile::paged_sequence_at(*ragged, *paged, problem, batch);
    else sequence = tile::sequence_at(*ragged, problem, batch);
    // Rows of a bad sequence are NaN already.
    if (sequence.bad || position >= sequence.len_q) return;
    first_q = sequence.first_q, len_q = sequence.len_q;
  }
  const int of_pack = head % C.pack_heads, of_cluster = position % cluster_positions(C);
  const int rank = divides_heads(C) ? of_pack / own_heads(C) : of_cluster / own_positions(C);
  const int of_row = of_pack % own_heads(C) * own_positions(C) + of_cluster % own_positions(C);
  const Parts<T, C> parts = {params};
  const int tile = parts.tile_number(batch, head / C.pack_heads, position, rank);
  const int count = tile::load_length(reinterpret_cast<const int*>(parts.count(tile)));
  if (count == 1) return;  // its CTA has stored it

  using P = Parts<T, C>;
  const int thread = ptx::tid_x(), four = thread / 4 % P::kFours, block = thread / (4 * P::kFours);
  const int column = 64 * block + 16 * four + tile::column_of_lane(thread);
  if (column >= T.head_dim_v) return;
  const tile::MergedFour merged = tile::merge_parts<P::kFirstO, P::kRowWords, 8>(
      [&](int part) { return parts.address(tile, part); }, count, of_row, P::place(block, four, thread % 4));
  const float scale = RowEnd<T>{problem, score, params.total_q, batch, first_q, len_q}.end(
      head, position, merged.maximum, merged.total, thread == 0);
  unsigned short* o = static_cast<unsigned short*>(problem.o) + batch * (T.ragged ? 0 : problem.o_stride.batch) +
                      head * problem.o_stride.head + (first_q + position) * problem.o_stride.row;
  const auto store = [&](int at, float a, float b) {
    if (at < T.head_dim_v)
      ptx::st_global_u32(reinterpret_cast<unsigned*>(o + at), tile::pack<T.output>(a * scale, b * scale));
  };
  store(column, merged.o[0], merged.o[1]);
  store(column + 8, merged.o[2], merged.o[3]);
}

}  // namespace flashcore::sm90_wide_fwd
