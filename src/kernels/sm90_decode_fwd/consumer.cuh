#pragma once
// The warpgroup of sm90_decode_fwd that computes: the CTA's blocks of one tile after the other, and, as the last of a
// tile's CTAs to arrive, the tile from its parts.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_decode_fwd/context.cuh"
#include "kernels/tile/element.cuh"
#include "kernels/tile/row_softmax.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace flashcore::sm90_decode_fwd {

struct RowState {
  float maximum[2], total[2];  // the maximum · scale_log2, and the sum of 2^(score - maximum)
};

template <Traits T, Config C>
struct Consumer {
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kBlockN = C.block_n;
  static constexpr int kSteps = kBlockN / 16;
  static constexpr int kPositions = positions(C);
  static constexpr int kConsumerBarrier = 1;
  static constexpr int kPartsAtOnce = C.ctas_per_sm < 3 ? 4 : 2;  // in flight in a merge: they take registers

  const Context<T, C>& context;
  const int warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
  Ring<kQStages> ring_q;
  Ring<C.num_stages> ring_k, ring_v;
  float acc_o[kDimV / 2];
  float acc_s[kBlockN / 2];
  unsigned p[kSteps][4];
  tile::RowSoftmax<T.element, kRescaleThreshold> softmax;

  FC_DEVICE explicit Consumer(const Context<T, C>& owner) : context(owner) {}

  FC_DEVICE void release(ptx::SharedAddress barrier) {
    if (lane == 0) ptx::mbarrier_arrive(barrier);
  }

  FC_DEVICE int row(int r) const { return 16 * warp + lane / 4 + 8 * r; }
  FC_DEVICE int position(int r) const { return row(r) % kPositions; }

  FC_DEVICE void mask(int block) {
    const ForwardParams& problem = context.params.problem;
    const int first_key = block * kBlockN + 2 * (lane % 4);
    int end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end[r] = problem.seqlen_kv;
      if constexpr (T.bounded_right) end[r] = min_int(end[r], position(r) + problem.right_offset + 1);
    }
    tile::mask_keys(acc_s, first_key, end);
  }
  FC_DEVICE bool needs_mask(int block) const {
    int full_end = context.params.problem.seqlen_kv;
    if constexpr (T.bounded_right) full_end = min_int(full_end, context.params.problem.right_offset + 1);
    return (block + 1) * kBlockN > full_end;
  }

  FC_DEVICE void issue_scores() {
    ptx::mbarrier_wait(context.k_full(ring_k.stage), ring_k.parity);
    // K-major operands ignore the leading offset.
    tile::issue_scores<kBf16, kDim, kTileRows, kBlockN>(acc_s, ptx::WgmmaDescriptor::of(context.q(ring_q.stage), 16),
                                                        ptx::WgmmaDescriptor::of(context.k(ring_k.stage), 16));
  }
  FC_DEVICE void issue_values() {
    ptx::mbarrier_wait(context.v_full(ring_v.stage), ring_v.parity);
    tile::issue_values<kBf16, 0, kSteps>(acc_o, p, ptx::WgmmaDescriptor::of(context.v(ring_v.stage), kBlockN * 128));
  }
  FC_DEVICE void release_k() { release(context.k_empty(ring_k.stage)), ring_k.advance(); }
  FC_DEVICE void release_v() { release(context.v_empty(ring_v.stage)), ring_v.advance(); }

  FC_DEVICE RowState attend(const Segment& segment) {
    const float scale_log2 = context.params.problem.scale_log2;
    ptx::mbarrier_wait(context.q_full(ring_q.stage), ring_q.parity);
    issue_scores();
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) acc_o[i] = 0.0f;
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_s);
    release_k();
    if (needs_mask(segment.first)) mask(segment.first);
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, kBlockN / 2>(acc_s, scale_log2, p);
#pragma unroll 1
    for (int i = 1; i < segment.count; ++i) {
      issue_scores();
      issue_values();
      ptx::wgmma_wait<1>();
      ptx::wgmma_registers(acc_s);
      release_k();
      if (needs_mask(segment.first + i)) mask(segment.first + i);
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      release_v();
      softmax.update(acc_s, scale_log2, p, acc_o);
    }
    release(context.q_empty(ring_q.stage)), ring_q.advance();
    issue_values();
    const RowState state = {{softmax.max_scaled[0], softmax.max_scaled[1]},
                            {tile::quad_sum(softmax.sum[0]), tile::quad_sum(softmax.sum[1])}};
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_o);
    release_v();
    return state;
  }

  // Whether any of the warp's 16 rows exists.
  FC_DEVICE bool warp_has_rows() const { return warp < context.params.warps; }

  // Whether wgmma's column lies within O's: asked at run time, for an accumulator that nothing reads makes ptxas
  // serialise the multiplies (C7511).
  FC_DEVICE bool is_column(int chunk) const { return T.head_dim_v % 16 == 0 || chunk * 8 < ptx::opaque(T.head_dim_v); }

  // Chunks of 8 columns of the lane's two rows among the 16 of `row_warp`: [first, first + kCount).
  template <int kCount>
  FC_DEVICE void store_o(int tile, int row_warp, int first, const float (&o)[4 * kCount], const RowState& state) const {
    const ForwardParams& problem = context.params.problem;
    const auto place = context.place_of(tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * row_warp + lane / 4 + 8 * r, head = row / kPositions, position = row % kPositions;
      if (head >= place.heads || position >= problem.seqlen_q) continue;
      unsigned short* to = static_cast<unsigned short*>(problem.o) + place.batch * problem.o_stride.batch +
                           (place.first_head + head) * problem.o_stride.head + position * problem.o_stride.row +
                           2 * (lane % 4);
      const float scale = tile::inverse_sum(state.total[r]);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        if (is_column(first + c)) {
          ptx::st_global_u32(reinterpret_cast<unsigned*>(to + 8 * (first + c)),
                             tile::pack<T.element>(o[4 * c + 2 * r] * scale, o[4 * c + 2 * r + 1] * scale));
        }
      }
    }
  }
  FC_DEVICE void store_lse(int tile, int row_warp, const RowState& state) const {
    const ForwardParams& problem = context.params.problem;
    if (!problem.lse || lane % 4 != 0) return;
    const auto place = context.place_of(tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * row_warp + lane / 4 + 8 * r, head = row / kPositions, position = row % kPositions;
      if (head >= place.heads || position >= problem.seqlen_q) continue;
      const long long at = static_cast<long long>(place.batch) * problem.heads_q + place.first_head + head;
      ptx::st_global_f32(problem.lse + at * problem.seqlen_q + position,
                         tile::log_sum_exp(state.maximum[r], state.total[r]));
    }
  }

  FC_DEVICE void send(unsigned char* to, const RowState& state) const {
    if (lane % 4 == 0) {
      ptx::st_global_v4(to + lane / 4 * 16, {ptx::bits_of_float(state.maximum[0]), ptx::bits_of_float(state.total[0]),
                                             ptx::bits_of_float(state.maximum[1]), ptx::bits_of_float(state.total[1])});
    }
#pragma unroll
    for (int c = 0; c < chunks(T); ++c) {
      ptx::st_global_v4(to + kStateBytes + c * kChunkBytes + lane * 16,
                        {ptx::bits_of_float(acc_o[4 * c]), ptx::bits_of_float(acc_o[4 * c + 1]),
                         ptx::bits_of_float(acc_o[4 * c + 2]), ptx::bits_of_float(acc_o[4 * c + 3])});
    }
  }
  FC_DEVICE static RowState load_state(const unsigned char* from) {
    const ptx::Vector4 word = ptx::ld_global_v4(from);
    return {{ptx::float_of_bits(word.x), ptx::float_of_bits(word.z)},
            {ptx::float_of_bits(word.y), ptx::float_of_bits(word.w)}};
  }

  // The tile of CTAs [first, last] from their parts, in their order, so that repeats give the same bits. Warps without
  // rows of their own help: each takes every few chunks of columns.
  FC_DEVICE void merge(int tile, int first, int last) {
    const int warps = context.params.warps, helpers = 4 / warps;
    const int row_warp = warp % warps, helper = warp / warps;
    if (helper >= helpers) return;
    const auto part_of = [&](int cta) { return context.part(cta, cta == first ? 1 : 0, row_warp); };
    RowState merged = {{ptx::negative_infinity(), ptx::negative_infinity()}, {0.0f, 0.0f}};
#pragma unroll kPartsAtOnce
    for (int cta = first; cta <= last; ++cta) {
      const RowState from = load_state(part_of(cta) + lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // As the softmax of a block does: relative to the maximum so far.
        const float before = merged.maximum[r];
        merged.maximum[r] = ptx::max(before, from.maximum[r]);
        merged.total[r] = ptx::fma(tile::weight(from.maximum[r], merged.maximum[r]), from.total[r],
                                   tile::weight(before, merged.maximum[r]) * merged.total[r]);
      }
    }
    constexpr int kCount = chunks(T) % 4 == 0 ? 4 : 2;  // at once
    for (int chunk = helper * kCount; chunk < chunks(T); chunk += helpers * kCount) {
      float o[4 * kCount] = {};
#pragma unroll kPartsAtOnce
      for (int cta = first; cta <= last; ++cta) {
        const unsigned char* part = part_of(cta);
        const RowState from = load_state(part + lane / 4 * 16);
        const float weights[2] = {tile::weight(from.maximum[0], merged.maximum[0]),
                                  tile::weight(from.maximum[1], merged.maximum[1])};
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
          const ptx::Vector4 word = ptx::ld_global_v4(part + kStateBytes + (chunk + c) * kChunkBytes + lane * 16);
          o[4 * c] = ptx::fma(weights[0], ptx::float_of_bits(word.x), o[4 * c]);
          o[4 * c + 1] = ptx::fma(weights[0], ptx::float_of_bits(word.y), o[4 * c + 1]);
          o[4 * c + 2] = ptx::fma(weights[1], ptx::float_of_bits(word.z), o[4 * c + 2]);
          o[4 * c + 3] = ptx::fma(weights[1], ptx::float_of_bits(word.w), o[4 * c + 3]);
        }
      }
      store_o<kCount>(tile, row_warp, chunk, o, merged);
    }
    if (helper == 0) store_lse(tile, row_warp, merged);
  }

  // A tile that other CTAs work on too: the part is handed in, and whoever hands in the last makes the tile.
  FC_DEVICE void hand_in(const Segment& segment, const RowState& state) {
    const int cta = ptx::ctaid_x(), tile_begin = segment.tile * context.params.tile_blocks;
    if (warp_has_rows()) send(context.part(cta, segment.first == 0 ? 1 : 0, warp), state);
    ptx::bar_sync(kConsumerBarrier, 128);  // the part is complete
    const int first = context.owner(tile_begin), last = context.owner(tile_begin + context.params.tile_blocks - 1);
    if (ptx::tid_x() == 0) {
      const unsigned before = ptx::atomic_add_global_acq_rel(context.params.counters + segment.tile, 1);
      const bool is_last = before == static_cast<unsigned>(last - first);
      if (is_last) ptx::st_global_u32(context.params.counters + segment.tile, 0);
      ptx::st_shared_u32(context.arrived(), is_last);
    }
    ptx::bar_sync(kConsumerBarrier, 128);  // what thread 0 has acquired, all have
    if (ptx::ld_shared_u32(context.arrived()) != 0) merge(segment.tile, first, last);
  }

  FC_DEVICE void run() {
    const int end = context.first_block(ptx::ctaid_x() + 1);
    for (int block = context.first_block(ptx::ctaid_x()); block < end;) {
      const Segment segment = context.segment_at(block, end);
      const RowState state = attend(segment);
      if (segment.count < context.params.tile_blocks) hand_in(segment, state);
      else if (warp_has_rows())
        store_o<chunks(T)>(segment.tile, warp, 0, acc_o, state), store_lse(segment.tile, warp, state);
      block += segment.count;
    }
  }
};

}  // namespace flashcore::sm90_decode_fwd
