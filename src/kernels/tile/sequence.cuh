#pragma once
// The sequences of a ragged batch: boundaries that lie in device memory, read anew at every launch.

#include "kernels/ptx/memory.cuh"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// Rows first_q .. first_q + len_q - 1 of q and o, first_kv .. of k and v.
struct Sequence {
  int first_q, len_q, first_kv, len_kv;
  bool bad;  // its boundaries are not possible: len_q is of the rows that lie in the tensor, len_kv 0
};

// Rows [begin, end) of a tensor of `total`, of at most `bound`; false if that is not so, and then what lies within.
FC_DEVICE bool clamp_rows(int begin, int end, int bound, int total, int& first, int& length) {
  const bool fits = begin >= 0 && end >= begin && end <= total && end - begin <= bound;
  first = min_int(max_int(begin, 0), total);
  length = max_int(min_int(end, total) - first, 0);
  return fits;
}

FC_DEVICE Sequence sequence_at(const ForwardParams& problem, const RaggedParams& ragged, int batch) {
  Sequence s;
  s.bad = !clamp_rows(ptx::ld_global_s32(ragged.cu_seqlens_q + batch), ptx::ld_global_s32(ragged.cu_seqlens_q + batch + 1),
                      problem.seqlen_q, ragged.total_q, s.first_q, s.len_q);
  s.bad |= !clamp_rows(ptx::ld_global_s32(ragged.cu_seqlens_kv + batch),
                       ptx::ld_global_s32(ragged.cu_seqlens_kv + batch + 1), problem.seqlen_kv, ragged.total_kv,
                       s.first_kv, s.len_kv);
  if (ragged.seqused_kv) {
    const int used = ptx::ld_global_s32(ragged.seqused_kv + batch);
    s.bad |= used < 0 || used > s.len_kv;
    s.len_kv = used;
  }
  if (s.bad) s.len_kv = 0;
  return s;
}

}  // namespace flashcore::tile
