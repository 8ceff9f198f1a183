#pragma once
// Forward attention for Hopper: one producer warpgroup feeds K and V through a ring by TMA, each consumer warpgroup
// owns 64 query rows and multiplies with wgmma, P in registers. The schedule of FlashAttention-3 (Shah et al., 2024):
// the scores of the next block are computed under the P·V of the last, and consumers take turns at the tensor cores.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/setmaxnreg.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/params.h"
#include "kernels/tile/element.cuh"
#include "kernels/tile/row_softmax.cuh"

namespace flashcore::sm90_fwd {

struct Barrier {
  unsigned long long word;
};

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[C.q_stages][C.num_consumers][qo_slab_bytes(T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.num_stages][v_tile_bytes(C, T)];
  Barrier q_full[C.q_stages][C.num_consumers], q_empty[C.q_stages][C.num_consumers];
  Barrier k_full[C.num_stages], k_empty[C.num_stages];
  Barrier v_full[C.num_stages], v_empty[C.num_stages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  int tile[kTileSlots][2];
  unsigned char pad[tile::round_up(barrier_bytes(C), 1024) - barrier_bytes(C)];
};

// Position in a ring as the number of items passed: one register, where a stage and a parity would be two.
template <int kStages>
struct Ring {
  unsigned count = 0;
  FC_DEVICE int stage() const { return static_cast<int>(ptx::opaque(count) % kStages); }
  FC_DEVICE int parity() const {
    return static_cast<int>(ptx::opaque(count) / kStages % 2);
  }  // of the phase that a reader waits for
  FC_DEVICE void advance() { ++count; }
};

// Where a tile lies and which keys it needs.
struct Tile {
  int batch, head_q, head_kv;
  int first_row;
  int blocks;  // of block_n keys that some row of the tile sees
};

template <Traits T, Config C>
struct Kernel {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kBlockM = block_m(C);
  static constexpr int kBlockN = C.block_n;
  static constexpr int kArrivals = 4 * C.num_consumers;  // one lane of each consumer warp

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  FC_DEVICE explicit Kernel(const Params<ptx::TensorMap>& p) : params(p) {}

  FC_DEVICE ptx::SharedAddress qo(int stage, int consumer) const {
    return shared + FC_OFFSET_OF(Storage, qo) + (stage * C.num_consumers + consumer) * qo_slab_bytes(T);
  }
  FC_DEVICE ptx::SharedAddress k(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k) + stage * k_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress v(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v) + stage * v_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress q_full(int stage, int consumer) const {
    return shared + FC_OFFSET_OF(Storage, q_full) + 8 * (stage * C.num_consumers + consumer);
  }
  FC_DEVICE ptx::SharedAddress q_empty(int stage, int consumer) const {
    return shared + FC_OFFSET_OF(Storage, q_empty) + 8 * (stage * C.num_consumers + consumer);
  }
  FC_DEVICE ptx::SharedAddress k_full(int stage) const { return shared + FC_OFFSET_OF(Storage, k_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress k_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, k_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress v_full(int stage) const { return shared + FC_OFFSET_OF(Storage, v_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress v_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, v_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress tile_full(int slot) const {
    return shared + FC_OFFSET_OF(Storage, tile_full) + 8 * slot;
  }
  FC_DEVICE ptx::SharedAddress tile_empty(int slot) const {
    return shared + FC_OFFSET_OF(Storage, tile_empty) + 8 * slot;
  }
  FC_DEVICE ptx::SharedAddress tile_number(int slot) const { return shared + FC_OFFSET_OF(Storage, tile) + 8 * slot; }

  FC_DEVICE static int min_int(int a, int b) { return a < b ? a : b; }

  // --- scheduling -------------------------------------------------------------------------------------------------
  // Full attention: a head's tiles together. Causal: longest tiles first, over as many heads as fit in L2.
  FC_DEVICE Tile tile_at(int number) const {
    const ForwardParams& p = params.problem;
    int head, row_tile;
    if constexpr (T.causal) {
      const int section = params.by_section_tiles.quotient(number);
      const int within = number - section * params.row_tiles * params.heads_per_section;
      const bool whole = section < params.whole_sections;
      const tile::FastDivide by_heads = whole ? params.by_section_heads : params.by_last_section_heads;
      const int section_heads =
          whole ? params.heads_per_section : p.heads_q * p.batch - section * params.heads_per_section;
      const int rank = by_heads.quotient(within);
      row_tile = params.row_tiles - 1 - rank;
      head = section * params.heads_per_section + within - rank * section_heads;
    } else {
      head = params.by_row_tiles.quotient(number);
      row_tile = number - head * params.row_tiles;
    }
    Tile tile;
    tile.batch = params.by_heads_q.quotient(head);
    tile.head_q = head - tile.batch * p.heads_q;
    tile.head_kv = params.by_group_size.quotient(tile.head_q);
    tile.first_row = row_tile * kBlockM;
    tile.blocks = key_blocks(min_int(tile.first_row + kBlockM, p.seqlen_q) - 1);
    return tile;
  }
  // Blocks of keys that rows up to `last_row` see.
  FC_DEVICE int key_blocks(int last_row) const {
    int end = params.problem.seqlen_kv;
    if constexpr (T.causal) end = min_int(end, last_row + params.problem.causal_offset + 1);
    return end <= 0 ? 0 : (end + kBlockN - 1) / kBlockN;
  }

  // --- producer: load ---------------------------------------------------------------------------------------------
  template <int kBlocks>
  FC_DEVICE static void load_tile(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                                  int rows, int row, int head, int batch) {
    ptx::mbarrier_arrive_expect_tx(barrier, rows * kBlocks * 128);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      ptx::tma_load_4d(destination + b * rows * 128, map, barrier, 64 * b, row, head, batch);
  }

  FC_DEVICE void produce() {
    Ring<C.num_stages> ring_k, ring_v;
    Ring<C.q_stages> ring_q;
    Ring<kTileSlots> ring_tile;
    const int count = params.tile_count;
    int number = ptx::ctaid_x();
    for (;;) {
      // An empty barrier starts as if its previous phase had ended: writers wait for the opposite parity.
      ptx::mbarrier_wait(tile_empty(ring_tile.stage()), ring_tile.parity() ^ 1);
      ptx::st_shared_u32(tile_number(ring_tile.stage()), static_cast<unsigned>(number < count ? number : -1));
      ptx::mbarrier_arrive(tile_full(ring_tile.stage()));
      ring_tile.advance();
      if (number >= count) break;
      const Tile tile = tile_at(number);

      const auto load_k = [&](int block) {
        ptx::mbarrier_wait(k_empty(ring_k.stage()), ring_k.parity() ^ 1);
        load_tile<column_blocks(T.head_dim)>(k(ring_k.stage()), params.k, k_full(ring_k.stage()), kBlockN,
                                             block * kBlockN, tile.head_kv, tile.batch);
        ring_k.advance();
      };
      const auto load_v = [&](int block) {
        ptx::mbarrier_wait(v_empty(ring_v.stage()), ring_v.parity() ^ 1);
        load_tile<column_blocks(T.head_dim_v)>(v(ring_v.stage()), params.v, v_full(ring_v.stage()), kBlockN,
                                               block * kBlockN, tile.head_kv, tile.batch);
        ring_v.advance();
      };
#pragma unroll
      for (int c = 0; c < C.num_consumers; ++c) {
        ptx::mbarrier_wait(q_empty(ring_q.stage(), c), ring_q.parity() ^ 1);
        load_tile<column_blocks(T.head_dim)>(qo(ring_q.stage(), c), params.q, q_full(ring_q.stage(), c),
                                             kRowsPerConsumer, tile.first_row + c * kRowsPerConsumer, tile.head_q,
                                             tile.batch);
        if (c == 0 && tile.blocks > 0) load_k(tile.blocks - 1);
      }
      ring_q.advance();
      for (int block = tile.blocks - 2; block >= 0; --block) {
        load_k(block);
        load_v(block + 1);
      }
      // After the last K, where its latency hides; at the start of a tile it would not.
      if constexpr (C.scheduler == 2) {
        const unsigned handed_out = ptx::atomic_add_global(params.tile_counter, 1);
        // Every CTA asks until it is refused: count requests in all, and the last one leaves the counter as it was.
        if (handed_out == static_cast<unsigned>(count) - 1) ptx::st_global_u32(params.tile_counter, 0);
        number = ptx::nctaid_x() + static_cast<int>(handed_out);
      } else if constexpr (C.scheduler == 1) {
        number += ptx::nctaid_x();
      } else {
        number = count;
      }
      if (tile.blocks > 0) load_v(0);
    }
  }

  // --- consumer: compute and finish -------------------------------------------------------------------------------
  struct Consumer {
    const Kernel& kernel;
    const int index;  // of the consumer warpgroup
    Ring<C.num_stages> ring_k, ring_v;
    Ring<C.q_stages> ring_q;
    Ring<kTileSlots> ring_tile;

    float acc_o[kDimV / 2];
    float acc_s[kBlockN / 2];
    unsigned p[kBlockN / 16][4];
    tile::RowSoftmax<C.lazy_rescale> softmax;

    // Of stage 0; K-major operands ignore the leading offset.
    const ptx::WgmmaDescriptor first_q, first_k, first_v;

    FC_DEVICE Consumer(const Kernel& owner, int i)
        : kernel(owner),
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
      const ptx::WgmmaDescriptor q = first_q.advanced(q_stage * C.num_consumers * qo_slab_bytes(T));
      const ptx::WgmmaDescriptor k = first_k.advanced(ring_k.stage() * k_tile_bytes(C, T));
      ptx::wgmma_registers(acc_s);
      ptx::wgmma_fence();
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        ptx::wgmma_ss<kBf16>(acc_s, q.advanced(d / 4 * (kRowsPerConsumer * 128) + d % 4 * 32).word(),
                             k.advanced(d / 4 * (kBlockN * 128) + d % 4 * 32).word(), d > 0);
      }
      ptx::wgmma_commit();
    }
    FC_DEVICE void issue_values() {
      const ptx::WgmmaDescriptor v = first_v.advanced(ring_v.stage() * v_tile_bytes(C, T));
      ptx::wgmma_registers(acc_o);
      ptx::wgmma_fence();
#pragma unroll
      for (int n = 0; n < kBlockN / 16; ++n) ptx::wgmma_rs<kBf16, true>(acc_o, p[n], v.advanced(n * 2048).word(), 1);
      ptx::wgmma_commit();
    }

    // The accumulator layout of m64nN is the operand layout of m64k16, 16 columns at a time.
    FC_DEVICE void convert_p() {
#pragma unroll
      for (int n = 0; n < kBlockN / 16; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) p[n][i] = tile::pack<T.element>(acc_s[8 * n + 2 * i], acc_s[8 * n + 2 * i + 1]);
        ptx::wgmma_registers(p[n]);
      }
    }

    FC_DEVICE void mask(int block, int first_row) {
      const int thread = thread_index(), lane = thread % 32;
      const int row = first_row + thread / 32 * 16 + lane / 4;
      const int first_key = block * kBlockN + 2 * (lane % 4);
      int end[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        end[r] = kernel.params.problem.seqlen_kv;
        if constexpr (T.causal) end[r] = min_int(end[r], row + 8 * r + kernel.params.problem.causal_offset + 1);
      }
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i) {
        if (first_key + i / 4 * 8 + i % 2 >= end[i / 2 % 2]) acc_s[i] = ptx::negative_infinity();
      }
    }
    FC_DEVICE bool needs_mask(int block, int first_row) const {
      int full_end = kernel.params.problem.seqlen_kv;
      if constexpr (T.causal) full_end = min_int(full_end, first_row + kernel.params.problem.causal_offset + 1);
      return (block + 1) * kBlockN > full_end;
    }

    // Q's slab goes back once O has left it. With two of them the next tile is begun first: thread 0 would hold up its
    // warpgroup for the store's 500 clocks.
    FC_DEVICE void release_slab(int stage) {
      if (thread_index() == 0) {
        ptx::bulk_wait_read<0>();
        ptx::mbarrier_arrive(kernel.q_empty(stage, index));
      }
    }
    FC_DEVICE void release_last_slab() {
      if (C.q_stages == 2 && ring_q.count > 0) release_slab((ring_q.count - 1) % C.q_stages);
    }

    FC_DEVICE void wait_k() { ptx::mbarrier_wait(kernel.k_full(ring_k.stage()), ring_k.parity()); }
    FC_DEVICE void wait_v() { ptx::mbarrier_wait(kernel.v_full(ring_v.stage()), ring_v.parity()); }
    FC_DEVICE void release_k() {
      release(kernel.k_empty(ring_k.stage()));
      ring_k.advance();
    }
    FC_DEVICE void release_v() {
      release(kernel.v_empty(ring_v.stage()));
      ring_v.advance();
    }

    // The scores of `block` under the values of the one before it.
    template <bool kMask>
    FC_DEVICE void step(int block, int first_row) {
      wait_k();
      take_turn();
      issue_scores(ring_q.stage());
      wait_v();
      issue_values();
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::wgmma_registers(acc_s);
      release_k();
      if constexpr (kMask) mask(block, first_row);
      softmax.update(acc_s, kernel.params.problem.scale_log2);
      // ptxas places this wait before the exponentials. Holding it back with a branch was measured and is slower by up
      // to 1%: the other consumer's multiplies fill the tensor cores either way.
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      release_v();
      softmax.rescale(acc_o);
      convert_p();
    }

    // A consumer's part of a tile.
    struct Work {
      int first_row;
      int blocks;   // of keys that some of its rows see
      int skipped;  // of the tile's that none does: upper consumers under a causal mask let those pass
    };
    FC_DEVICE Work work_of(int number) const {
      const Tile tile = kernel.tile_at(number);
      Work work;
      work.first_row = tile.first_row + index * kRowsPerConsumer;
      work.blocks =
          min_int(tile.blocks,
                  kernel.key_blocks(min_int(work.first_row + kRowsPerConsumer, kernel.params.problem.seqlen_q) - 1));
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

    // The first scores of a tile, with nothing to hide them under.
    FC_DEVICE void begin(const Work& work) {
      for (int i = 0; i < work.skipped; ++i) skip_k(1), skip_v(1);
      ptx::mbarrier_wait(kernel.q_full(ring_q.stage(), index), ring_q.parity());
      if (work.blocks == 0) return;
      wait_k();
      take_turn();
      issue_scores(ring_q.stage());
      pass_turn();
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_s);
      release_k();
    }

    // From the first scores to the probabilities of the last block, whose P·V is still to come.
    FC_DEVICE void attend(const Work& work) {
      // Zeros to add to, rather than a first multiply that overwrites: the two ways into the loop made ptxas copy O,
      // and spill.
#pragma unroll
      for (int i = 0; i < kDimV / 2; ++i) acc_o[i] = 0.0f;
      if (work.blocks == 0) {
        softmax.none();
        release_last_slab();
        return;
      }
      int block = work.blocks - 1;
      if (needs_mask(block, work.first_row)) mask(block, work.first_row);
      softmax.first(acc_s, kernel.params.problem.scale_log2);
      convert_p();
      release_last_slab();
      --block;
      // A diagonal that is not aligned to the blocks crosses a second one.
      if constexpr (T.causal) {
#pragma unroll 1
        for (; block >= 0 && needs_mask(block, work.first_row); --block) step<true>(block, work.first_row);
      }
#pragma unroll 1
      for (; block >= 0; --block) step<false>(block, work.first_row);
    }

    FC_DEVICE void last_values() {
      wait_v();
      issue_values();
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      release_v();
    }

    // The last values of one tile with the first scores of the next. K's ring runs ahead of V's by what the next tile
    // skips, which must fit in it.
    FC_DEVICE static bool can_chain(const Work& work, const Work& next) {
      return work.blocks > 0 && next.blocks > 0 && next.skipped <= C.num_stages;
    }
    FC_DEVICE void chain(const Work& next) {
      skip_k(next.skipped);
      Ring<C.q_stages> next_q = ring_q;
      next_q.advance();
      ptx::mbarrier_wait(kernel.q_full(next_q.stage(), index), next_q.parity());
      wait_k();
      take_turn();
      issue_scores(next_q.stage());
      wait_v();
      issue_values();
      pass_turn();
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_s);
      ptx::wgmma_registers(acc_o);
      release_k();
      release_v();
      skip_v(next.skipped);
    }

    // O through the consumer's own Q rows, which nobody reads any more, and out by TMA.
    FC_DEVICE void finish(int number) {
      // Found again rather than kept through the main loop.
      const Tile tile = kernel.tile_at(ptx::opaque(number));
      const int first_row = tile.first_row + index * kRowsPerConsumer;
      const ForwardParams& problem = kernel.params.problem;
      const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
      float scale[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float lse;
        scale[r] = softmax.finish(r, lse);
        const int row = first_row + 16 * warp + 8 * r + lane / 4;
        if (problem.lse && lane % 4 == 0 && row < problem.seqlen_q) {
          ptx::st_global_f32(
              problem.lse + (static_cast<long long>(tile.batch) * problem.heads_q + tile.head_q) * problem.seqlen_q +
                  row,
              lse);
        }
      }
      const ptx::SharedAddress smem_o = kernel.qo(ring_q.stage(), index);
      const int row = 16 * warp + lane % 16;
#pragma unroll
      for (int d = 0; d < kDimV / 16; ++d) {
        const int chunk = 2 * d + lane / 16;
        unsigned packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          packed[i] =
              tile::pack<T.element>(acc_o[8 * d + 2 * i] * scale[i % 2], acc_o[8 * d + 2 * i + 1] * scale[i % 2]);
        ptx::stmatrix_x4(smem_o + chunk / 8 * (kRowsPerConsumer * 128) + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                         packed[0], packed[1], packed[2], packed[3]);
      }
      ptx::fence_proxy_async();
      ptx::bar_sync(1 + index, 128);
      if (thread == 0) {
#pragma unroll
        for (int b = 0; b < column_blocks(T.head_dim_v); ++b) {
          ptx::tma_store_4d(kernel.params.o, smem_o + b * kRowsPerConsumer * 128, 64 * b, first_row, tile.head_q,
                            tile.batch);
        }
        ptx::bulk_commit();
      }
      if constexpr (C.q_stages == 1) release_slab(0);
      ring_q.advance();
    }

    // The next tile's number, or less than 0 after the last.
    FC_DEVICE int next_number() {
      ptx::mbarrier_wait(kernel.tile_full(ring_tile.stage()), ring_tile.parity());
      const int number = static_cast<int>(ptx::ld_shared_u32(kernel.tile_number(ring_tile.stage())));
      ptx::bar_warp_sync();  // all lanes have read it
      release(kernel.tile_empty(ring_tile.stage()));
      ring_tile.advance();
      return number;
    }

    FC_DEVICE void consume() {
      if (C.ping_pong && index == C.num_consumers - 1) ptx::bar_arrive(kTurnBarrier, 256);
      int number = next_number();
      bool begun = false;
      while (number >= 0) {
        const Work work = work_of(number);
        if (!begun) begin(work);
        attend(work);
        begun = false;
        int next = -1;
        if constexpr (C.q_stages == 2) {
          next = next_number();
          if (next >= 0) {
            const Work next_work = work_of(next);
            begun = can_chain(work, next_work);
            if (begun) chain(next_work);
          }
        }
        if (!begun && work.blocks > 0) last_values();
        finish(number);
        if constexpr (C.q_stages == 1) next = next_number();
        number = next;
      }
      ptx::bulk_wait_read<0>();  // shared memory outlives what TMA still reads of it
    }
  };

  FC_DEVICE void init_barriers() {
    for (int stage = 0; stage < C.q_stages; ++stage) {
      for (int c = 0; c < C.num_consumers; ++c)
        ptx::mbarrier_init(q_full(stage, c), 1), ptx::mbarrier_init(q_empty(stage, c), 1);
    }
    for (int stage = 0; stage < C.num_stages; ++stage) {
      ptx::mbarrier_init(k_full(stage), 1), ptx::mbarrier_init(k_empty(stage), kArrivals);
      ptx::mbarrier_init(v_full(stage), 1), ptx::mbarrier_init(v_empty(stage), kArrivals);
    }
    for (int slot = 0; slot < kTileSlots; ++slot)
      ptx::mbarrier_init(tile_full(slot), 1), ptx::mbarrier_init(tile_empty(slot), kArrivals);
    // Once: by every thread that has made one, the fences cost 2000 clocks.
    ptx::fence_mbarrier_init();
  }

  FC_DEVICE void run() {
    const int warpgroup = ptx::shfl_idx(ptx::tid_x() / 128, 0);
    if (ptx::tid_x() == 0) init_barriers();
    if (ptx::tid_x() == 32) {
      ptx::prefetch_tensormap(params.q);
      ptx::prefetch_tensormap(params.k);
      ptx::prefetch_tensormap(params.v);
    }
    ptx::bar_sync();
    if (warpgroup == 0) {
      ptx::setmaxnreg_dec<producer_registers(C)>();
      if (ptx::tid_x() == 0) produce();
    } else {
      ptx::setmaxnreg_inc<consumer_registers(C)>();
      Consumer consumer(*this, warpgroup - 1);
      consumer.consume();
    }
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ Params<ptx::TensorMap> params) {
  Kernel<T, C>(params).run();
}

}  // namespace flashcore::sm90_fwd
