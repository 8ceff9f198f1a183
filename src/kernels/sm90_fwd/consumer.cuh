#pragma once
// A consumer of sm90_fwd: one warpgroup that owns 64 query rows of a tile.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/distributed_shared.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_fwd/context.cuh"
#include "kernels/tile/element.cuh"
#include "kernels/tile/row_softmax.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace flashcore::sm90_fwd {

template <Traits T, Config C>
struct Consumer {
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kBlockN = C.block_n;

  const Context<T, C>& context;
  const int index;  // of the consumer warpgroup
  Ring<C.num_stages> ring_k, ring_v;
  Ring<C.q_stages> ring_q;
  Ring<kTileSlots> ring_tile;

  float acc_o[kDimV / 2];
  float acc_s[kBlockN / 2];
  unsigned p[kBlockN / 16][4];
  tile::RowSoftmax<T.element, C.rescale_threshold> softmax;

  // Of stage 0; K-major operands ignore the leading offset.
  const ptx::WgmmaDescriptor first_q, first_k, first_v;

  FC_DEVICE Consumer(const Context<T, C>& owner, int i)
      : context(owner),
        index(i),
        first_q(ptx::WgmmaDescriptor::of(owner.qo(0, i), 16)),
        first_k(ptx::WgmmaDescriptor::of(owner.k(0), 16)),
        first_v(ptx::WgmmaDescriptor::of(owner.v(0), kBlockN * 128)) {}

  FC_DEVICE static int thread_index() { return ptx::tid_x() % 128; }  // within the warpgroup

  FC_DEVICE void release(ptx::SharedAddress barrier) {
    if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  // Ping-pong: consumer i may issue matrix work once consumer i - 1 has issued its own.
  static constexpr int kTurnBarrier = 8;
  FC_DEVICE void take_turn() {
    if constexpr (C.ping_pong) ptx::bar_sync(kTurnBarrier + index, 256);
  }
  FC_DEVICE void pass_turn() {
    if constexpr (C.ping_pong) ptx::bar_arrive(kTurnBarrier + (index + 1 == C.num_consumers ? 0 : index + 1), 256);
  }

  // Of the rows in Q stage `q_stage`.
  FC_DEVICE void issue_scores(int q_stage) {
    tile::issue_scores<kBf16, kDim, kRowsPerConsumer, kBlockN>(
        acc_s, first_q.advanced(q_stage * C.num_consumers * qo_slab_bytes(T)),
        first_k.advanced(ring_k.stage() * k_tile_bytes(C, T)));
  }
  FC_DEVICE void issue_values() {
    tile::issue_values<kBf16, 0, kBlockN / 16>(acc_o, p, first_v.advanced(ring_v.stage() * v_tile_bytes(C, T)));
  }

  FC_DEVICE void mask(int block, int first_row) {
    const int thread = thread_index(), lane = thread % 32;
    const int row = first_row + thread / 32 * 16 + lane / 4;
    const int first_key = block * kBlockN + 2 * (lane % 4);
    int end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end[r] = context.params.problem.seqlen_kv;
      if constexpr (T.causal) end[r] = min_int(end[r], row + 8 * r + context.params.problem.causal_offset + 1);
    }
    tile::mask_keys(acc_s, first_key, end);
  }
  FC_DEVICE bool needs_mask(int block, int first_row) const {
    int full_end = context.params.problem.seqlen_kv;
    if constexpr (T.causal) full_end = min_int(full_end, first_row + context.params.problem.causal_offset + 1);
    return (block + 1) * kBlockN > full_end;
  }

  // Q's slab goes back once O has left it. With two of them the next tile is begun first: thread 0 would hold up its
  // warpgroup for the store's 500 clocks.
  FC_DEVICE void release_slab(int stage) {
    if (thread_index() == 0) {
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(context.q_empty(stage, index));
    }
  }
  FC_DEVICE void release_last_slab() {
    if (C.q_stages == 2 && ring_q.count > 0) release_slab((ring_q.count - 1) % C.q_stages);
  }

  FC_DEVICE void wait_k() { ptx::mbarrier_wait(context.k_full(ring_k.stage()), ring_k.parity()); }
  FC_DEVICE void wait_v() { ptx::mbarrier_wait(context.v_full(ring_v.stage()), ring_v.parity()); }
  // To every producer that loads into the slot.
  FC_DEVICE void release_keys(ptx::SharedAddress barrier) {
    if constexpr (C.cluster == 1) {
      release(barrier);
    } else if (ptx::tid_x() % 32 == 0) {
#pragma unroll
      for (int rank = 0; rank < C.cluster; ++rank) ptx::mbarrier_arrive_cluster(ptx::mapa(barrier, rank));
    }
  }
  FC_DEVICE void release_k() {
    release_keys(context.k_empty(ring_k.stage()));
    ring_k.advance();
  }
  FC_DEVICE void release_v() {
    release_keys(context.v_empty(ring_v.stage()));
    ring_v.advance();
  }

  // A consumer's part of a tile.
  struct Work {
    int first_row;
    int blocks;   // of keys that some of its rows see
    int skipped;  // of the tile's that none does: upper consumers under a causal mask let those pass
  };
  FC_DEVICE Work work_of(int number) const {
    const Tile tile = context.tile_at(number);
    Work work;
    work.first_row = tile.first_row + index * kRowsPerConsumer;
    work.blocks =
        min_int(tile.blocks,
                context.key_blocks(min_int(work.first_row + kRowsPerConsumer, context.params.problem.seqlen_q) - 1));
    work.skipped = tile.blocks - work.blocks;
    return work;
  }
  FC_DEVICE void skip_k(int count) {
    for (int i = 0; i < count; ++i) {
      wait_k();
      release_k();
      take_turn();
      pass_turn();
    }
  }
  FC_DEVICE void skip_v(int count) {
    for (int i = 0; i < count; ++i) {
      wait_v();
      release_v();
    }
  }

  // Whether a tile can be chained to the next: its last values multiply with the next one's first scores. Only with two
  // stages of Q. K's ring runs ahead of V's by what the next tile skips, which must fit in it.
  static constexpr bool kChains = C.q_stages == 2;
  FC_DEVICE static bool can_chain(const Work& next) { return next.blocks > 0 && next.skipped <= C.num_stages; }

  // The first scores of a tile, with nothing to hide them under.
  FC_DEVICE void begin(const Work& work) {
    for (int i = 0; i < work.skipped; ++i) skip_k(1), skip_v(1);
    ptx::mbarrier_wait(context.q_full(ring_q.stage(), index), ring_q.parity());
    if (work.blocks == 0) return;
    wait_k();
    take_turn();
    issue_scores(ring_q.stage());
    pass_turn();
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_s);
    release_k();
  }

  // From the first scores to the probabilities of the last block, whose P·V is still to come, or, where the tile can be
  // chained to the next, is done together with the next one's first scores. True then; `next` is that tile's number.
  FC_DEVICE bool attend(const Work& work, int& next) {
    // Zeros to add to, rather than a first multiply that overwrites: the two ways into the loop made ptxas copy O,
    // and spill.
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) acc_o[i] = 0.0f;
    if (work.blocks == 0) {
      softmax.none();
      release_last_slab();
      if constexpr (kChains) next = next_number();
      return false;
    }
    const float scale_log2 = context.params.problem.scale_log2;
    int block = work.blocks - 1;
    if (needs_mask(block, work.first_row)) mask(block, work.first_row);
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, kBlockN / 2>(acc_s, scale_log2, p);
    release_last_slab();
    Ring<C.q_stages> q = ring_q;
    int skipped = 0;  // of the next tile's blocks
    // The scores of a block under the values of the one before it; of the next tile's first block (-1) in the same
    // lines, for a copy of them costs a sixth of the compile time.
#pragma unroll 1
    for (--block; kChains || block >= 0; --block) {
      if (kChains && block < 0) {
        next = next_number();
        if (next < 0) return false;
        const Work next_work = work_of(next);
        if (!can_chain(next_work)) return false;
        skipped = next_work.skipped;
        skip_k(skipped);
        q.advance();
        ptx::mbarrier_wait(context.q_full(q.stage(), index), q.parity());
      }
      wait_k();
      take_turn();
      issue_scores(q.stage());
      wait_v();
      issue_values();
      pass_turn();
      if (kChains && block < 0) break;
      ptx::wgmma_wait<1>();
      ptx::wgmma_registers(acc_s);
      release_k();
      // A diagonal that is not aligned to the blocks crosses a second one. Asked here rather than in a loop of its own:
      // a second copy of the loop costs a quarter of the compile time and bought nothing.
      if constexpr (T.causal) {
        if (needs_mask(block, work.first_row)) mask(block, work.first_row);
      }
      // Before the exponentials, which overwrite P. Registers of their own for the next P were measured: the copies
      // cost more than the overlap gains, for the other consumers' multiplies fill the tensor cores either way.
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      release_v();
      softmax.update(acc_s, scale_log2, p, acc_o);
    }
    if constexpr (kChains) {
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_s);
      ptx::wgmma_registers(acc_o);
      release_k();
      release_v();
      skip_v(skipped);
    }
    return kChains;
  }

  FC_DEVICE void last_values() {
    wait_v();
    issue_values();
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_o);
    release_v();
  }

  // O through the consumer's own Q rows, which nobody reads any more, and out by TMA.
  FC_DEVICE void finish(int number) {
    // Found again rather than kept through the main loop.
    const Tile tile = context.tile_at(ptx::opaque(number));
    const int first_row = tile.first_row + index * kRowsPerConsumer;
    const ForwardParams& problem = context.params.problem;
    const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float lse;
      scale[r] = softmax.finish(r, lse);
      const int row = first_row + 16 * warp + 8 * r + lane / 4;
      if (problem.lse && lane % 4 == 0 && row < problem.seqlen_q) {
        ptx::st_global_f32(
            problem.lse + (static_cast<long long>(tile.batch) * problem.heads_q + tile.head_q) * problem.seqlen_q + row,
            lse);
      }
    }
    const ptx::SharedAddress smem_o = context.qo(ring_q.stage(), index);
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int d = 0; d < kDimV / 16; ++d) {
      const int chunk = 2 * d + lane / 16;
      unsigned packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        packed[i] = tile::pack<T.element>(acc_o[8 * d + 2 * i] * scale[i % 2], acc_o[8 * d + 2 * i + 1] * scale[i % 2]);
      ptx::stmatrix_x4(smem_o + chunk / 8 * (kRowsPerConsumer * 128) + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                       packed[0], packed[1], packed[2], packed[3]);
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(1 + index, 128);
    if (thread == 0) {
#pragma unroll
      for (int b = 0; b < column_blocks(T.head_dim_v); ++b) {
        ptx::tma_store_4d(context.params.o, smem_o + b * kRowsPerConsumer * 128, 64 * b, first_row, tile.head_q,
                          tile.batch);
      }
      ptx::bulk_commit();
    }
    if constexpr (C.q_stages == 1) release_slab(0);
    ring_q.advance();
  }

  // The next tile's number, or less than 0 after the last.
  FC_DEVICE int next_number() {
    ptx::mbarrier_wait(context.tile_full(ring_tile.stage()), ring_tile.parity());
    const int number = static_cast<int>(ptx::ld_shared_u32(context.tile_number(ring_tile.stage())));
    ptx::bar_warp_sync();  // all lanes have read it
    release(context.tile_empty(ring_tile.stage()));
    ring_tile.advance();
    return number;
  }

  FC_DEVICE void run() {
    if (C.ping_pong && index == C.num_consumers - 1) ptx::bar_arrive(kTurnBarrier, 256);
    int number = next_number();
    bool begun = false;
    while (number >= 0) {
      const Work work = work_of(number);
      if (!begun) begin(work);
      int next = -1;
      begun = attend(work, next);
      if (!begun && work.blocks > 0) last_values();
      finish(number);
      if constexpr (!kChains) next = next_number();
      number = next;
    }
    ptx::bulk_wait_read<0>();  // shared memory outlives what TMA still reads of it
  }
};

}  // namespace flashcore::sm90_fwd
