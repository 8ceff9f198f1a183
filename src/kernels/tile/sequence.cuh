#pragma once
// One sequence of a ragged batch: where its rows and keys lie, read on the device at each launch.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

struct Sequence {
  int first_q, len_q;    // rows of the packed q, o and lse that count
  int first_kv, len_kv;  // rows of the packed k and v: the keys that count
  // Boundaries that no sequence can have: o and lse of its rows become NaN, and nothing of k and v is read. The rows
  // are those within the tensors, and may be more than the bound.
  bool bad;
  // Of its mask: added to the offsets in the parameters.
  int diagonal;
};

constexpr int bytes_of(Element element) { return is_8bit(element) ? 1 : element == Element::kF32 ? 4 : 2; }
// Of so many elements of K or V.
template <Traits T>
FC_DEVICE long long cache_bytes(long long elements) {
  if constexpr (has_nibbles(T)) return elements / 2;
  else return elements * bytes_of(element_of_cache(T));
}

FC_DEVICE int load_length(const int* address) {
  return static_cast<int>(ptx::bits_of_float(ptx::ld_global_f32(reinterpret_cast<const float*>(address))));
}

FC_DEVICE int clamped(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

// Rows boundaries[batch] .. boundaries[batch + 1] - 1 of a tensor of `total`, of which used[batch] count (null: all),
// at most `bound`. Where they are not such, false, and the part that is within the tensor.
FC_DEVICE bool rows_at(const int* boundaries, const int* used, int batch, int bound, int total, int& first,
                       int& length) {
  const int begin = load_length(boundaries + batch), end = load_length(boundaries + batch + 1);
  first = clamped(begin, 0, total);
  length = clamped(end, first, total) - first;
  // Differences of values within 0 .. total do not wrap.
  bool good = begin == first && end == first + length;
  if (used) {
    const int count = load_length(used + batch);
    const bool fits = count >= 0 && count <= length;
    good &= fits;
    if (fits) length = count;  // else all its rows are bad
  }
  return good && length <= bound;
}

// Of batch entry `batch`; `problem` holds the bounds.
FC_DEVICE Sequence sequence_at(const RaggedParams& ragged, const ForwardParams& problem, int batch) {
  Sequence s;
  bool good =
      rows_at(ragged.cu_seqlens_q, ragged.seqused_q, batch, problem.seqlen_q, ragged.total_q, s.first_q, s.len_q);
  good &=
      rows_at(ragged.cu_seqlens_kv, ragged.seqused_kv, batch, problem.seqlen_kv, ragged.total_kv, s.first_kv, s.len_kv);
  s.bad = !good;
  if (s.bad) s.len_kv = 0;
  s.diagonal = ragged.is_bottom_right ? s.len_kv - s.len_q : 0;
  return s;
}

// The same of a paged cache: the keys are counted from 0, and `page_of_key` says where each lies.
FC_DEVICE Sequence paged_sequence_at(const RaggedParams& ragged, const PagedParams& paged, const ForwardParams& problem,
                                     int batch) {
  Sequence s;
  const bool good_rows =
      rows_at(ragged.cu_seqlens_q, ragged.seqused_q, batch, problem.seqlen_q, ragged.total_q, s.first_q, s.len_q);
  s.first_kv = 0;
  s.len_kv = load_length(ragged.seqused_kv + batch);
  s.bad = !good_rows || s.len_kv < 0 || s.len_kv > problem.seqlen_kv || s.len_kv > paged.table_keys;
  if (s.bad) s.len_kv = 0;
  s.diagonal = ragged.is_bottom_right ? s.len_kv - s.len_q : 0;
  return s;
}

// The page in a place of a sequence's row of the block table; -1 where the pool has no such page.
FC_DEVICE int page_at(const PagedParams& paged, int batch, int place) {
  const int page = load_length(paged.block_table + batch * paged.table_stride + place);
  return page >= 0 && page < paged.pages ? page : -1;
}
// That which holds a key of the sequence.
FC_DEVICE int page_of_key(const PagedParams& paged, int batch, int key) {
  return page_at(paged, batch, key / paged.page_size);
}

// The parameters of a sequence by itself, a batch of one, for the tiles of one query head (the heads of lse lie total_q
// apart, and here as far as the sequence is long).
template <Traits T>
FC_DEVICE ForwardParams params_of(const ForwardParams& bounds, const RaggedParams& ragged, const Sequence& s,
                                  int head) {
  ForwardParams one = bounds;
  one.q = static_cast<const char*>(bounds.q) + s.first_q * bounds.q_stride.row * bytes_of(T.element);
  one.k = static_cast<const char*>(bounds.k) + cache_bytes<T>(s.first_kv * bounds.k_stride.row);
  one.v = static_cast<const char*>(bounds.v) + cache_bytes<T>(s.first_kv * bounds.v_stride.row);
  one.o = static_cast<char*>(bounds.o) + s.first_q * bounds.o_stride.row * bytes_of(T.output);
  if (bounds.lse) one.lse = bounds.lse + s.first_q + static_cast<long long>(head) * (ragged.total_q - s.len_q);
  one.batch = 1;
  one.seqlen_q = s.len_q;
  one.seqlen_kv = s.len_kv;
  one.right_offset += s.diagonal;
  one.left_offset += s.diagonal;
  return one;
}

// What masks and scores of a sequence go by.
FC_DEVICE ForwardParams params_of_sequence(const ForwardParams& problem, const RaggedParams& ragged, int len_q,
                                           int len_kv) {
  ForwardParams own = problem;
  own.seqlen_q = len_q, own.seqlen_kv = len_kv;
  if (ragged.is_bottom_right) own.right_offset += len_kv - len_q, own.left_offset += len_kv - len_q;
  return own;
}

// The same of functions of scores.
template <Traits T>
FC_DEVICE ScoreParams score_params_of(const ScoreParams& score, int heads_q, int batch) {
  ScoreParams one = score;
  if constexpr (T.alibi == 2) one.alibi += static_cast<long long>(batch) * heads_q;
  return one;
}

// NaN to a tile's rows of a bad sequence: those from `first_row` on, `rows` at the most, and those that lie the bound
// further, once or more, which no tile of the grid has. `one` is what params_of made.
template <Traits T>
FC_DEVICE void write_bad_rows(const ForwardParams& one, int head, int first_row, int rows, int bound, int thread,
                              int threads) {
  const float nan = ptx::float_of_bits(0x7fffffffu);
  const int period = (bound + rows - 1) / rows * rows;
  for (int first = first_row; first < one.seqlen_q; first += period) {
    const int end = min_int(first + rows, one.seqlen_q);
    for (int row = first + thread / 32; row < end; row += threads / 32) {
      const long long at = head * one.o_stride.head + row * one.o_stride.row;
      for (int column = thread % 32; column < T.head_dim_v; column += 32) store_any<T.output>(one.o, at + column, nan);
      if (one.lse && thread % 32 == 0)
        ptx::st_global_f32(one.lse + static_cast<long long>(head) * one.seqlen_q + row, nan);
    }
  }
}

}  // namespace flashcore::tile
