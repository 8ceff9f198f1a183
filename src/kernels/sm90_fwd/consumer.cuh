#pragma once
// A consumer of sm90_fwd: one warpgroup that owns 64 query rows of a tile.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/distributed_shared.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_fwd/context.cuh"
#include "kernels/tile/consumer.cuh"
#include "kernels/tile/epilogue.cuh"
#include "kernels/tile/partial.cuh"
#include "kernels/tile/producer.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace flashcore::sm90_fwd {

template <Traits T, Config C>
struct Consumer : tile::AttentionWarpgroup<Consumer<T, C>, T, C.block_n, C.rescale_threshold>,
                  tile::SlopeOfTile<has_score(T)>,
                  tile::WholeKeys<T.ragged>,
                  tile::HeadOfTile<has_expression(T)>,
                  tile::ListOfTile<T.mask_expression> {
  using Base = tile::AttentionWarpgroup<Consumer<T, C>, T, C.block_n, C.rescale_threshold>;
  using Base::acc_o, Base::acc_s, Base::p, Base::softmax, Base::lane, Base::warp, Base::mark;
  using Activity = tile::Activity;
  static constexpr int kDimV = Base::kDimV;
  static constexpr int kBlockN = C.block_n;
  static constexpr bool kBounded = tile::Mask<T, ForwardParams>::kBounded;
  // Whether a tile may have blocks that none of the consumer's rows sees, before those that some see and after them.
  static constexpr bool skips() { return kBounded || T.mask_expression; }
  static constexpr bool skips_after() { return T.bounded_left || T.mask_expression; }

  const Context<T, C>& context;
  const int index;  // of the consumer warpgroup
  const int row_group, key_group;
  const tile::PingPong<C.num_consumers, C.ping_pong> turns;
  Ring<group_stages(C)> ring_k, ring_v;  // of the key group
  Ring<C.q_stages> ring_q;
  Ring<kTileSlots> ring_tile;

  // Of stage 0; K-major operands ignore the leading offset.
  const ptx::WgmmaDescriptor first_q, first_k, first_v;

  int first_row;  // of the tile at hand, that is this consumer's

  FC_DEVICE Consumer(const Context<T, C>& owner, int i)
      : context(owner),
        index(i),
        row_group(C.key_groups == 1 ? i : i % row_groups(C)),
        key_group(C.key_groups == 1 ? 0 : i / row_groups(C)),
        turns{i},
        first_q(ptx::WgmmaDescriptor::of(owner.qo(0, row_group), 16)),
        first_k(ptx::WgmmaDescriptor::of(owner.k(0), 16)),
        first_v(ptx::WgmmaDescriptor::of(owner.v(0), kBlockN * 128)) {}

  // --- what AttentionWarpgroup asks for -----------------------------------------------------------------------------
  FC_DEVICE int slot_k() const { return key_group * group_stages(C) + ring_k.stage(); }
  FC_DEVICE int slot_v() const { return key_group * group_stages(C) + ring_v.stage(); }

  FC_DEVICE ptx::WgmmaDescriptor q_descriptor() const {
    return first_q.advanced(ring_q.stage() * row_groups(C) * qo_slab_bytes(T));
  }
  FC_DEVICE ptx::WgmmaDescriptor k_descriptor() const { return first_k.advanced(slot_k() * k_tile_bytes(C, T)); }
  FC_DEVICE ptx::WgmmaDescriptor v_descriptor() const { return first_v.advanced(slot_v() * v_tile_bytes(C, T)); }

  FC_DEVICE void acquire_k() {
    mark(Activity::kWaitK);
    ptx::mbarrier_wait(context.k_full(slot_k()), ring_k.parity());
  }
  FC_DEVICE void acquire_v() {
    mark(Activity::kWaitV);
    ptx::mbarrier_wait(context.v_full(slot_v()), ring_v.parity());
  }
  // To every producer that loads into the slot. Relaxed: wgmma has read it and been waited for, and TMA writes it next.
  FC_DEVICE void release_keys(ptx::SharedAddress barrier) {
    if constexpr (C.cluster == 1) {
      tile::arrive_for_warp(barrier);
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

  FC_DEVICE void begin_issue() {
    if constexpr (C.ping_pong >= 1 && C.ping_pong <= 3) mark(Activity::kWaitTurn);
    turns.begin_turn();
  }
  FC_DEVICE void end_issue() { turns.issued(); }
  FC_DEVICE void first_done() { turns.first_done(); }
  FC_DEVICE void all_done() { turns.all_done(); }
  FC_DEVICE void begin_softmax() {
    if constexpr (C.ping_pong == 4) mark(Activity::kWaitTurn);
    turns.begin_softmax();
  }
  FC_DEVICE void end_softmax() { turns.end_softmax(); }
  FC_DEVICE void skip_turn() { begin_issue(), end_issue(), first_done(), all_done(), begin_softmax(), end_softmax(); }

  // The keys of the block at hand, which `block` may be the place of in a list.
  FC_DEVICE int key_block(int block) const {
    if constexpr (T.mask_expression) return tile::BlockList::block_of(this->entry);
    return block;
  }
  FC_DEVICE void take_entry(int block) {
    if constexpr (T.mask_expression) this->entry = this->list.entry(context.expression_params, block);
  }

  FC_DEVICE tile::Cut cut(int block) const {
    block = key_block(block);
    if constexpr (T.ragged) {
      return {(block + 1) * kBlockN > this->whole_end, T.bounded_left && block * kBlockN < this->whole_begin};
    } else {
      return context.mask().template cut<kBlockN>(block, first_row, first_row + kRowsPerConsumer - 1);
    }
  }
  FC_DEVICE void mask_scores(int block, tile::Cut cut) {
    block = key_block(block);
    if constexpr (T.ragged) {
      const tile::SlotRows at = context.rows_in(ring_tile.stage(), row_group * kRowsPerConsumer);
      return tile::Mask<T, ForwardParams>{at.own}.apply(acc_s, cut, block * kBlockN + tile::column_of_lane(lane()),
                                                        {Base::row(at.first_row, 0), Base::row(at.first_row, 1)});
    }
    context.mask().apply(acc_s, cut, block * kBlockN + tile::column_of_lane(lane()),
                         {Base::row(first_row, 0), Base::row(first_row, 1)});
  }

  // The score function on the scores at hand, or the mask function.
  template <bool kMask>
  FC_DEVICE void express(const ForwardParams& problem, int first, int block) {
    const tile::Expressions<> functions = {problem, context.expression_params};
    const int first_key = key_block(block) * kBlockN + tile::column_of_lane(lane());
    if constexpr (kMask) functions.mask(acc_s, this->own_head, first_key, {Base::row(first, 0), Base::row(first, 1)});
    else functions.score(acc_s, this->own_head, first_key, {Base::row(first, 0), Base::row(first, 1)});
  }
  template <bool kMask>
  FC_DEVICE void express(int block) {
    if constexpr (T.ragged) {
      const tile::SlotRows at = context.rows_in(ring_tile.stage(), row_group * kRowsPerConsumer);
      express<kMask>(at.own, at.first_row, block);
    } else {
      express<kMask>(context.params.problem, first_row, block);
    }
  }
  FC_DEVICE void express_scores(int block) { express<false>(block); }
  FC_DEVICE void mask_listed(int block) {
    if (tile::BlockList::use_of(this->entry, row_group) != tile::ListedUse::kFull) express<true>(block);
  }

  FC_DEVICE void transform_scores(int block) {
    block = key_block(block);
    if constexpr (T.ragged) {
      const tile::SlotRows at = context.rows_in(ring_tile.stage(), row_group * kRowsPerConsumer);
      const tile::Score<T, ForwardParams, true> score = {at.own, context.score_params};  // TMA brings whole boxes
      return score.apply(
          acc_s, this->slope, score.template side<kBlockN>(block, at.first_row, at.first_row + kRowsPerConsumer - 1),
          block * kBlockN + tile::column_of_lane(lane()), {Base::row(at.first_row, 0), Base::row(at.first_row, 1)});
    }
    context.score().apply(
        acc_s, this->slope, context.score().template side<kBlockN>(block, first_row, first_row + kRowsPerConsumer - 1),
        block * kBlockN + tile::column_of_lane(lane()), {Base::row(first_row, 0), Base::row(first_row, 1)});
  }

  // --- a tile -------------------------------------------------------------------------------------------------------
  FC_DEVICE tile::BlockShare begin_ragged_tile() {
    const SlotTile tile = context.tile_in(ring_tile.stage());
    const ForwardParams own = context.params_of_tile(tile);
    const tile::Mask<T, ForwardParams> mask = {own};
    const int first = tile.first_row + row_group * kRowsPerConsumer;
    this->whole_end = mask.end_of(first), this->whole_begin = mask.begin_of(first + kRowsPerConsumer - 1);
    if constexpr (has_score(T)) this->slope = context.score().slope(tile.batch, tile.head_q);
    if constexpr (has_expression(T)) {
      const ForwardParams& p = context.params.problem;
      this->own_head = {tile.batch, tile.head_q, tile.head_q / (p.heads_q / p.heads_kv)};
    }
    if constexpr (T.mask_expression) {
      this->list = context.list_of(tile);
      return tile::share_of_list(tile.blocks.end, this->list.of_group(context.expression_params, row_group));
    }
    return tile::share_of_blocks<T.bounded_left, C.key_groups>(
        tile.blocks, mask.template blocks<kBlockN>(first, min_int(first + kRowsPerConsumer, tile.len_q) - 1),
        key_group);
  }
  FC_DEVICE tile::BlockShare begin_tile(int number) {
    if constexpr (T.ragged) return begin_ragged_tile();
    const auto tile = context.tile_at(number);
    first_row = tile.first_row + row_group * kRowsPerConsumer;
    if constexpr (has_expression(T)) this->own_head = {tile.batch, tile.head_q, tile.head_kv};
    if constexpr (has_score(T)) this->slope = context.score().slope(tile.batch, tile.head_q);
    if constexpr (T.mask_expression) {
      this->list = tile.list;
      return tile::share_of_list(tile.blocks.end, tile.list.of_group(context.expression_params, row_group));
    }
    const int last_row = min_int(first_row + kRowsPerConsumer, context.params.problem.seqlen_q) - 1;
    return tile::share_of_blocks<T.bounded_left, C.key_groups>(
        tile.blocks, context.mask().template blocks<kBlockN>(first_row, last_row), key_group);
  }
  // At the tile's end: a turn that is spent before puts the group's blocks behind those that the ring holds for others.
  FC_DEVICE void pad_ping_pong_round(const tile::BlockShare& work) {
    if (work.spare_turn) skip_turn();
  }

  // A warp's rows of Q's slab go back once its O has left them. With two slabs the next tile is begun first: waiting
  // for the store would hold up the warp for 500 clocks.
  FC_DEVICE void release_slab(int stage) {
    mark(Activity::kWaitStore);
    tile::release_stored_rows(context.q_empty(stage, row_group));
  }
  FC_DEVICE void release_last_slab() {
    if (C.q_stages == 2 && ring_q.count > 0) release_slab((ring_q.count - 1) % C.q_stages);
  }

  // From the first scores to the probabilities of the last block, whose P·V is still to come.
  FC_DEVICE void attend(const tile::BlockShare& work) {
    int block = work.first_block;
    take_entry(block);
    Base::first_scores();
    // Zeros to add to, rather than a first multiply that overwrites: the two ways into the loop made ptxas copy O,
    // and spill.
    tile::set_zero(acc_o);
    const float scale_log2 = context.params.problem.scale_log2;
    begin_softmax();
    mark(Activity::kMask, block);
    Base::transform_where_asked(block);
    Base::mask_where_cut(block);
    Base::mask_where_listed(block);
    mark(Activity::kSoftmax, block);
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, kBlockN / 2>(acc_s, scale_log2, p);
    end_softmax();
    release_last_slab();
    // The end is asked of an opaque number: ptxas schedules what the compiler makes of the plain loop 2% slower for
    // three consumers. Under a causal mask a diagonal that is not aligned to the blocks crosses a second one.
#pragma unroll 1
    for (block -= C.key_groups; ptx::opaque(block) >= work.last_block; block -= C.key_groups) {
      take_entry(block);
      Base::template next_block<kBounded>(block, scale_log2);
    }
  }
  FC_DEVICE void begin_last_pv() {
    acquire_v();
    mark(Activity::kPv);
    Base::issue_pv();
  }
  FC_DEVICE void end_last_pv() {
    mark(Activity::kPv);
    Base::wait_pv();
    release_v();
  }
  FC_DEVICE void init_empty_row() {
    Base::init_empty_row();
    release_last_slab();
  }

  // What a tile's O leaves with.
  struct EpilogueArgs {
    int first_row, head, batch;  // of the consumer's; of a ragged batch as in the tensor map
    float scale[2], lse[2];      // of the lane's two rows
  };
  // Needs no O, so that it runs under the last multiply.
  FC_DEVICE EpilogueArgs finalize_softmax(int number) {
    mark(Activity::kEpilogue);
    // Found again rather than kept through the main loop.
    EpilogueArgs args;
    if constexpr (T.ragged) {
      const SlotTile tile = context.tile_in(ring_tile.stage());
      const int shift = context.params.problem.seqlen_q - tile.len_q;
      args.first_row = tile.first_row + row_group * kRowsPerConsumer + shift;
      args.head = tile.head_q, args.batch = tile.first_q + tile.len_q;
    } else {
      const auto tile = context.place_of(ptx::opaque(number));
      args.first_row = tile.first_row + row_group * kRowsPerConsumer;
      args.head = tile.head_q, args.batch = tile.batch;
    }
    if constexpr (T.sink) {
      const float sink = context.score().sink_log2(args.head);
#pragma unroll
      for (int r = 0; r < 2; ++r) args.scale[r] = softmax.finish_with_sink(r, args.lse[r], sink);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) args.scale[r] = softmax.finish(r, args.lse[r]);
    }
    return args;
  }
  // All keys of the rows: what O leaves with is found under the last multiply.
  FC_DEVICE EpilogueArgs attend_all(const tile::BlockShare& work, int number) {
    EpilogueArgs args = {};
    if ((!skips() && !T.ragged) || work.has_keys()) {  // without a mask every row sees keys
      attend(work);
      begin_last_pv();
      args = finalize_softmax(number);
      end_last_pv();
    } else {
      init_empty_row();
      args = finalize_softmax(number);
    }
    return args;
  }

  // O through the consumer's own Q rows, which nobody reads any more, and out by TMA, each warp's rows by themselves.
  // The log-sum-exp after O, which whoever waits for the kernel waits for longer.
  FC_DEVICE void store(const EpilogueArgs& args) {
    mark(Activity::kEpilogue);
    const int rows = kRowsPerStore * warp();
    // Boxes of a ragged batch have a row of the tensor, as those that are loaded (row_in_map).
    const bool exists = !T.ragged || args.first_row + rows < context.params.problem.seqlen_q;
    tile::store_o_tma<T.output, kRowsPerConsumer, T.head_dim_v>(
        acc_o, args.scale, context.qo(ring_q.stage(), row_group) + rows * 128, context.params.o, args.first_row + rows,
        args.head, args.batch, exists);
    if constexpr (T.ragged) {
      tile::store_ragged_lse(context.params.problem, context.ragged_params->total_q, args.batch, args.head,
                             {Base::row(args.first_row, 0), Base::row(args.first_row, 1)}, lane(), args.lse);
    } else {
      tile::store_lse(context.params.problem, args.batch, args.head,
                      {Base::row(args.first_row, 0), Base::row(args.first_row, 1)}, lane(), args.lse);
    }
  }

  // --- key groups ---------------------------------------------------------------------------------------------------
  // The others hand their O over to the first.
  static constexpr int kPartsBarrier = 12;

  FC_DEVICE ptx::SharedAddress part(int sender) const { return context.part(sender, row_group, warp()); }
  // Once when all parts are written, and again when they have been read. All wait both times: compute-sanitizer does
  // not follow an arrival without a wait.
  FC_DEVICE void sync_key_groups() {
    mark(Activity::kWaitPartner);
    ptx::bar_sync(kPartsBarrier + row_group, 128 * C.key_groups);
  }
  FC_DEVICE void write_partial() {
    mark(Activity::kMerge);
    tile::write_partial(part(key_group), lane(), tile::RowState::of(softmax), acc_o);
    sync_key_groups();  // written
    sync_key_groups();  // read
  }
  FC_DEVICE void read_partial(int sender) {
    const tile::RowState other = tile::read_state(part(sender), lane());
    float own_weight[2], weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float common = ptx::max(softmax.max_scaled[r], other.maximum[r]);
      own_weight[r] = tile::weight(softmax.max_scaled[r], common), weights[r] = tile::weight(other.maximum[r], common);
      softmax.max_scaled[r] = common;
      // A lane's share of the sum: the four of a row are added up later.
      softmax.sum[r] = ptx::fma(softmax.sum[r], own_weight[r], lane() % 4 == 0 ? other.total[r] * weights[r] : 0.0f);
    }
    tile::scale_rows(acc_o, own_weight);
    tile::add_partial(acc_o, part(sender), lane(), weights);
  }
  FC_DEVICE void read_partials() {
    sync_key_groups();  // written
    mark(Activity::kMerge);
#pragma unroll
    for (int sender = 1; sender < C.key_groups; ++sender) read_partial(sender);
    sync_key_groups();  // read
  }

  // A key group's share of the keys: it may be none where the rows see some.
  FC_DEVICE void attend_part(const tile::BlockShare& work) {
    if (work.has_keys()) {
      attend(work);
      if constexpr (!T.bounded_left) pad_ping_pong_round(work);
      begin_last_pv();
      end_last_pv();
    } else {
      init_empty_row();
      if constexpr (!T.bounded_left) pad_ping_pong_round(work);
    }
    // Behind all blocks of the group.
    if constexpr (T.bounded_left) tile::skip_blocks(*this, work.skipped_after), pad_ping_pong_round(work);
  }

  FC_DEVICE int next_number() {
    mark(Activity::kWaitTile);
    return context.next_tile(ring_tile);
  }
  FC_DEVICE void run() {
    Base::begin_role(tile::Role::kConsumer);
    turns.start();
    for (int number = next_number(); number >= 0; number = next_number()) {
      mark(Activity::kSetUp);
      const tile::BlockShare work = begin_tile(number);
      if constexpr (skips()) tile::skip_blocks(*this, work.skipped);
      mark(Activity::kWaitQ);
      ptx::mbarrier_wait(context.q_full(ring_q.stage(), row_group), ring_q.parity());
      if constexpr (C.key_groups == 1) {
        const EpilogueArgs args = attend_all(work, number);
        if constexpr (skips_after()) tile::skip_blocks(*this, work.skipped_after);
        context.release_tile(ring_tile);
        store(args);
      } else {
        attend_part(work);
        if (key_group == 0) read_partials(), store(finalize_softmax(number));
        else write_partial();
        context.release_tile(ring_tile);
      }
      if constexpr (C.q_stages == 1) release_slab(0);
      ring_q.advance();
    }
    mark(Activity::kWaitStore);
    ptx::bulk_wait_read<0>();  // shared memory outlives what TMA still reads of it
    Base::end_role();
  }
};

}  // namespace flashcore::sm90_fwd
