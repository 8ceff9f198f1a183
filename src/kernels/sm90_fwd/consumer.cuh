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
  const int row_group, key_group;
  Ring<group_stages(C)> ring_k, ring_v;  // of the key group
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
        row_group(C.key_groups == 1 ? i : i % row_groups(C)),
        key_group(C.key_groups == 1 ? 0 : i / row_groups(C)),
        first_q(ptx::WgmmaDescriptor::of(owner.qo(0, row_group), 16)),
        first_k(ptx::WgmmaDescriptor::of(owner.k(0), 16)),
        first_v(ptx::WgmmaDescriptor::of(owner.v(0), kBlockN * 128)) {}

  FC_DEVICE static int thread_index() { return ptx::tid_x() % 128; }  // within the warpgroup

  FC_DEVICE void release(ptx::SharedAddress barrier) {
    if (ptx::tid_x() % 32 == 0) ptx::mbarrier_arrive(barrier);
  }

  FC_DEVICE int slot_k() const { return key_group * group_stages(C) + ring_k.stage(); }
  FC_DEVICE int slot_v() const { return key_group * group_stages(C) + ring_v.stage(); }

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
        acc_s, first_q.advanced(q_stage * row_groups(C) * qo_slab_bytes(T)),
        first_k.advanced(slot_k() * k_tile_bytes(C, T)));
  }
  FC_DEVICE void issue_values() {
    tile::issue_values<kBf16, 0, kBlockN / 16>(acc_o, p, first_v.advanced(slot_v() * v_tile_bytes(C, T)));
  }

  FC_DEVICE void mask(int block, int first_row) {
    const int thread = thread_index(), lane = thread % 32;
    const int row = first_row + thread / 32 * 16 + lane / 4;
    const int first_key = block * kBlockN + 2 * (lane % 4);
    int end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end[r] = context.params.problem.seqlen_kv;
      if constexpr (T.bounded_right) end[r] = min_int(end[r], row + 8 * r + context.params.problem.right_offset + 1);
    }
    tile::mask_keys(acc_s, first_key, end);
  }
  FC_DEVICE bool needs_mask(int block, int first_row) const {
    int full_end = context.params.problem.seqlen_kv;
    if constexpr (T.bounded_right) full_end = min_int(full_end, first_row + context.params.problem.right_offset + 1);
    return (block + 1) * kBlockN > full_end;
  }

  // A warp's rows of Q's slab go back once its O has left them. With two slabs the next tile is begun first: waiting
  // for the store would hold up the warp for 500 clocks.
  FC_DEVICE void release_slab(int stage) {
    if (ptx::tid_x() % 32 == 0) {
      ptx::bulk_wait_read<0>();
      ptx::mbarrier_arrive(context.q_empty(stage, row_group));
    }
  }
  FC_DEVICE void release_last_slab() {
    if (C.q_stages == 2 && ring_q.count > 0) release_slab((ring_q.count - 1) % C.q_stages);
  }

  FC_DEVICE void wait_k() { ptx::mbarrier_wait(context.k_full(slot_k()), ring_k.parity()); }
  FC_DEVICE void wait_v() { ptx::mbarrier_wait(context.v_full(slot_v()), ring_v.parity()); }
  // To every producer that loads into the slot. Relaxed: wgmma has read it and been waited for, and TMA writes it next.
  FC_DEVICE void release_keys(ptx::SharedAddress barrier) {
    if constexpr (C.cluster == 1) {
      release(barrier);
    } else if (ptx::tid_x() % 32 == 0) {
#pragma unroll
      for (int rank = 0; rank < C.cluster; ++rank) ptx::mbarrier_arrive_cluster_relaxed(ptx::mapa(barrier, rank));
    }
  }
  FC_DEVICE void release_k() {
    release_keys(context.k_empty(slot_k()));
    ring_k.advance();
  }
  FC_DEVICE void release_v() {
    release_keys(context.v_empty(slot_v()));
    ring_v.advance();
  }

  // A consumer's part of a tile. Its blocks of keys are dealt out to the key groups in turn.
  struct Work {
    int first_row;
    int first_block;  // the last of the keys that some of its rows see; less than 0: none
    int skipped;      // of its blocks that none does: upper consumers under a causal mask let those pass
    bool spare_turn;  // the first key group has a block more
  };
  FC_DEVICE Work work_of(int number) const {
    const Tile tile = context.tile_at(number);
    constexpr int kGroups = C.key_groups;
    Work work;
    work.first_row = tile.first_row + row_group * kRowsPerConsumer;
    const int seen =
        min_int(tile.blocks,
                context.key_blocks(min_int(work.first_row + kRowsPerConsumer, context.params.problem.seqlen_q) - 1));
    work.skipped = (tile.blocks - seen + kGroups - 1 - key_group) / kGroups;
    work.first_block = tile.blocks - 1 - key_group - kGroups * work.skipped;
    work.spare_turn = (tile.blocks + kGroups - 1) / kGroups > (tile.blocks + kGroups - 1 - key_group) / kGroups;
    return work;
  }
  FC_DEVICE void skip_block() {
    wait_k();
    release_k();
    take_turn();
    pass_turn();
    wait_v();
    release_v();
  }

  // At the tile's end: a turn that is spent before puts the group's blocks behind those that the ring holds for others.
  FC_DEVICE void spend_spare_turn(const Work& work) {
    if (work.spare_turn) take_turn(), pass_turn();
  }

  // From the first scores, which have nothing to hide under, to the probabilities of the last block, whose P·V is still
  // to come.
  FC_DEVICE void attend(const Work& work) {
    wait_k();
    take_turn();
    issue_scores(ring_q.stage());
    pass_turn();
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_s);
    release_k();
    // Zeros to add to, rather than a first multiply that overwrites: the two ways into the loop made ptxas copy O,
    // and spill.
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) acc_o[i] = 0.0f;
    const float scale_log2 = context.params.problem.scale_log2;
    int block = work.first_block;
    if (needs_mask(block, work.first_row)) mask(block, work.first_row);
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, kBlockN / 2>(acc_s, scale_log2, p);
    release_last_slab();
    // The scores of a block under the values of the one before it. The end is asked of an opaque number: ptxas
    // schedules what the compiler makes of the plain loop 2% slower for three consumers.
#pragma unroll 1
    for (block -= C.key_groups; ptx::opaque(block) >= 0; block -= C.key_groups) {
      wait_k();
      take_turn();
      issue_scores(ring_q.stage());
      wait_v();
      issue_values();
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::wgmma_registers(acc_s);
      release_k();
      // A diagonal that is not aligned to the blocks crosses a second one. Asked here rather than in a loop of its own:
      // a second copy of the loop costs a quarter of the compile time and bought nothing.
      if constexpr (T.bounded_right) {
        if (needs_mask(block, work.first_row)) mask(block, work.first_row);
      }
      // Before the exponentials, which overwrite P. Under the multiply they were measured, in the scores' registers and
      // in their own: slower each time, for the other consumers' multiplies fill the tensor cores either way.
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      release_v();
      softmax.update(acc_s, scale_log2, p, acc_o);
    }
  }

  // What a tile's O leaves with.
  struct Exit {
    int first_row, head, batch;  // of the consumer's
    float scale[2], lse[2];      // of the lane's two rows
  };
  // Needs no O, so that it runs under the last multiply.
  FC_DEVICE Exit leave(int number) {
    // Found again rather than kept through the main loop.
    const Tile tile = context.tile_at(ptx::opaque(number));
    Exit exit;
    exit.first_row = tile.first_row + row_group * kRowsPerConsumer;
    exit.head = tile.head_q, exit.batch = tile.batch;
#pragma unroll
    for (int r = 0; r < 2; ++r) exit.scale[r] = softmax.finish(r, exit.lse[r]);
    return exit;
  }

  FC_DEVICE void begin_last_values() {
    wait_v();
    issue_values();
  }
  FC_DEVICE void end_last_values() {
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_o);
    release_v();
  }
  // Rows that see no key.
  FC_DEVICE void attend_nothing() {
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) acc_o[i] = 0.0f;
    softmax.none();
    release_last_slab();
  }
  // All keys of the rows: what O leaves with is found under the last multiply.
  FC_DEVICE Exit attend_all(const Work& work, int number) {
    Exit exit = {};
    if (!T.bounded_right || work.first_block >= 0) {  // without a mask every row sees keys
      attend(work);
      begin_last_values();
      exit = leave(number);
      end_last_values();
    } else {
      attend_nothing();
      exit = leave(number);
    }
    return exit;
  }

  // O through the consumer's own Q rows, which nobody reads any more, and out by TMA, each warp's rows by themselves.
  FC_DEVICE void store_o(const Exit& exit) {
    const int lane = ptx::tid_x() % 32, first_row = kRowsPerStore * (thread_index() / 32);
    const ptx::SharedAddress smem_o = context.qo(ring_q.stage(), row_group) + first_row * 128;
    const int row = lane % 16;
#pragma unroll
    for (int d = 0; d < kDimV / 16; ++d) {
      const int chunk = 2 * d + lane / 16;
      unsigned packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        packed[i] = tile::pack<T.element>(acc_o[8 * d + 2 * i] * exit.scale[i % 2],
                                          acc_o[8 * d + 2 * i + 1] * exit.scale[i % 2]);
      ptx::stmatrix_x4(smem_o + chunk / 8 * (kRowsPerConsumer * 128) + row * 128 + ((chunk % 8 ^ row % 8) << 4),
                       packed[0], packed[1], packed[2], packed[3]);
    }
    ptx::fence_proxy_async();
    ptx::bar_warp_sync();  // the warp's rows are written
    if (lane == 0) {
#pragma unroll
      for (int b = 0; b < column_blocks(T.head_dim_v); ++b) {
        ptx::tma_store_4d(context.params.o, smem_o + b * kRowsPerConsumer * 128, 64 * b, exit.first_row + first_row,
                          exit.head, exit.batch);
      }
      ptx::bulk_commit();
    }
  }

  // After O, which whoever waits for the kernel waits for longer.
  FC_DEVICE void store_lse(const Exit& exit) const {
    const ForwardParams& problem = context.params.problem;
    const int thread = thread_index(), lane = thread % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = exit.first_row + thread / 32 * 16 + lane / 4 + 8 * r;
      if (problem.lse && lane % 4 == 0 && row < problem.seqlen_q) {
        const long long head = static_cast<long long>(exit.batch) * problem.heads_q + exit.head;
        ptx::st_global_f32(problem.lse + head * problem.seqlen_q + row, exit.lse[r]);
      }
    }
  }

  // --- key groups -------------------------------------------------------------------------------------------------
  // The others hand their O over to the first, fragment by fragment to the same lane of the same warp.
  static constexpr int kPartsBarrier = 12;

  FC_DEVICE ptx::SharedAddress part(int sender) const { return context.part(sender, row_group, thread_index() / 32); }
  // Once when all parts are written, and again when they have been read. All wait both times: compute-sanitizer does
  // not follow an arrival without a wait.
  FC_DEVICE void meet() { ptx::bar_sync(kPartsBarrier + row_group, 128 * C.key_groups); }
  FC_DEVICE void send_part() {
    const int lane = ptx::tid_x() % 32;
    const float total[2] = {tile::quad_sum(softmax.sum[0]), tile::quad_sum(softmax.sum[1])};
    const ptx::SharedAddress to = part(key_group);
    if (lane % 4 == 0)
      ptx::st_shared_v4(to + lane / 4 * 16, softmax.max_scaled[0], total[0], softmax.max_scaled[1], total[1]);
#pragma unroll
    for (int c = 0; c < kDimV / 8; ++c) {
      ptx::st_shared_v4(to + kStateBytes + c * kChunkBytes + lane * 16, acc_o[4 * c], acc_o[4 * c + 1],
                        acc_o[4 * c + 2], acc_o[4 * c + 3]);
    }
    meet();  // written
    meet();  // read
  }
  FC_DEVICE void receive_part(int sender) {
    const int lane = ptx::tid_x() % 32;
    const ptx::SharedAddress from = part(sender);
    const ptx::Vector4 state = ptx::ld_shared_v4(from + lane / 4 * 16);
    const float maximum[2] = {ptx::float_of_bits(state.x), ptx::float_of_bits(state.z)};
    const float total[2] = {ptx::float_of_bits(state.y), ptx::float_of_bits(state.w)};
    float own[2], other[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float common = ptx::max(softmax.max_scaled[r], maximum[r]);
      own[r] = tile::weight(softmax.max_scaled[r], common), other[r] = tile::weight(maximum[r], common);
      softmax.max_scaled[r] = common;
      // A lane's share of the sum: the four of a row are added up later.
      softmax.sum[r] = ptx::fma(softmax.sum[r], own[r], lane % 4 == 0 ? total[r] * other[r] : 0.0f);
    }
#pragma unroll
    for (int c = 0; c < kDimV / 8; ++c) {
      const ptx::Vector4 o = ptx::ld_shared_v4(from + kStateBytes + c * kChunkBytes + lane * 16);
      acc_o[4 * c] = ptx::fma(acc_o[4 * c], own[0], ptx::float_of_bits(o.x) * other[0]);
      acc_o[4 * c + 1] = ptx::fma(acc_o[4 * c + 1], own[0], ptx::float_of_bits(o.y) * other[0]);
      acc_o[4 * c + 2] = ptx::fma(acc_o[4 * c + 2], own[1], ptx::float_of_bits(o.z) * other[1]);
      acc_o[4 * c + 3] = ptx::fma(acc_o[4 * c + 3], own[1], ptx::float_of_bits(o.w) * other[1]);
    }
  }
  FC_DEVICE void receive_parts() {
    meet();  // written
#pragma unroll
    for (int sender = 1; sender < C.key_groups; ++sender) receive_part(sender);
    meet();  // read
  }

  // A key group's share of the keys: it may be none where the rows see some.
  FC_DEVICE void attend_part(const Work& work) {
    if (work.first_block < 0) {
      attend_nothing();
      spend_spare_turn(work);
    } else {
      attend(work);
      spend_spare_turn(work);
      begin_last_values();
      end_last_values();
    }
  }

  FC_DEVICE void store(const Exit& exit) {
    store_o(exit);
    store_lse(exit);
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
    for (int number = next_number(); number >= 0; number = next_number()) {
      const Work work = work_of(number);
      if constexpr (T.bounded_right) {
        for (int i = 0; i < work.skipped; ++i) skip_block();
      }
      ptx::mbarrier_wait(context.q_full(ring_q.stage(), row_group), ring_q.parity());
      if constexpr (C.key_groups == 1) {
        store(attend_all(work, number));
      } else {
        attend_part(work);
        if (key_group == 0) receive_parts(), store(leave(number));
        else send_part();
      }
      if constexpr (C.q_stages == 1) release_slab(0);
      ring_q.advance();
    }
    ptx::bulk_wait_read<0>();  // shared memory outlives what TMA still reads of it
  }
};

}  // namespace flashcore::sm90_fwd
