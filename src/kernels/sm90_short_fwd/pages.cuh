#pragma once
// Keys of a paged cache in sm90_short_fwd: which sequence a CTA has, whose lengths the device alone knows, and how the
// warps of a key group load its blocks.

#include "kernels/sm90_short_fwd/config.h"
#include "kernels/sm90_short_fwd/params.h"
#include "kernels/tile/extent.cuh"
#include "kernels/tile/page_boxes.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm90_short_fwd {

// All parameters of `forward_paged`.
using PagedKernelParams = Paged<PoolParams<ptx::TensorMap>>;

template <Traits T, Config C>
struct Pages : tile::SlopesOfRows<has_score(T), 2> {
  const PagedKernelParams* pool;
  tile::Sequence sequence;
  tile::Extent extent;
  int first_seen;  // the first key that some row of the tile sees
  // What the table says of the lane's box in the block of keys that is loaded next, and in that of values: asked for a
  // step before, so that it arrives under a block.
  int entry_of_keys, entry_of_values;

  FC_DEVICE void read_sequence(int batch) {
    const ForwardParams& bounds = pool->plain.plain.problem;
    set_sequence(tile::paged_sequence_at(pool->ragged, pool->paged, bounds, batch));
  }
  FC_DEVICE void set_sequence(const tile::Sequence& s) {
    sequence = s;
    extent = tile::Extent::of<T>(pool->plain.plain.problem, &pool->ragged, s.len_q, s.len_kv);
  }
  // Reads the sequence with so many longer ones, and returns its number. By the whole CTA; `scratch` holds a word for
  // each thread and five more. CTAs start in the order of the grid, and a long sequence that begins last is waited
  // for.
  FC_DEVICE int read_sequence_by_length(int longer, ptx::SharedAddress scratch) {
    const int count = pool->plain.plain.problem.batch, own = ptx::tid_x();  // no more than threads
    tile::Sequence s = {0, 0, 0, -1, false, 0};
    if (own < count) s = tile::paged_sequence_at(pool->ragged, pool->paged, pool->plain.plain.problem, own);
    ptx::st_shared_u32(scratch + 4 * own, s.len_kv);
    ptx::bar_sync();
    int rank = 0;
    if (own < count) {
#pragma unroll 4
      for (int i = 0; i < count; i += 4) {
        const ptx::Vector4 lengths = ptx::ld_shared_v4(scratch + 4 * i);
        const auto compare = [&](int other, unsigned its) {
          const int l = static_cast<int>(its) + (other < own);  // equal ones in their order
          rank += l > s.len_kv;
        };
        compare(i, lengths.x), compare(i + 1, lengths.y), compare(i + 2, lengths.z), compare(i + 3, lengths.w);
      }
    }
    // What the others would wait for memory for.
    const ptx::SharedAddress found = scratch + 4 * threads_per_block(C);
    if (own < count && rank == longer) {
      ptx::st_shared_v4(found, ptx::float_of_bits(own), ptx::float_of_bits(s.first_q), ptx::float_of_bits(s.len_q),
                        ptx::float_of_bits(s.len_kv));
      ptx::st_shared_u32(found + 16, s.bad);
    }
    ptx::fence_proxy_async();  // TMA writes here next
    ptx::bar_sync();
    const ptx::Vector4 words = ptx::ld_shared_v4(found);
    const auto number = [](unsigned word) { return static_cast<int>(word); };
    s = {number(words.y), number(words.z), 0, number(words.w), ptx::ld_shared_u32(found + 16) != 0, 0};
    set_sequence(s);
    return number(words.x);
  }
  FC_DEVICE tile::PagedKeys<T, C.block_n> keys(int batch, int head_kv) const {
    return {pool->plain.boxes, pool->paged, pool->plain.v_end, batch, sequence.len_kv, head_kv, first_seen};
  }
  // NaN to a tile's rows of a sequence whose lengths are not possible, by the whole CTA.
  FC_DEVICE void write_bad(int first_head, int heads) const {
    for (int head = first_head; head < first_head + heads; ++head)
      tile::write_bad_rows<T>(tile::params_of<T>(pool->plain.plain.problem, pool->ragged, sequence, head), head, 0,
                              sequence.len_q, sequence.len_q, ptx::tid_x(), threads_per_block(C));
  }
};

// What a kernel keeps beside its accumulators. Of dense keys no base of Pages: one more, even an empty one, changes
// what ptxas makes of kernels that do not use it.
template <bool kPaged, Traits T, Config C>
struct StateOfKernel {
  using Type = tile::SlopesOfRows<has_score(T), 2>;
};
template <Traits T, Config C>
struct StateOfKernel<true, T, C> {
  using Type = Pages<T, C>;
};

}  // namespace flashcore::sm90_short_fwd
