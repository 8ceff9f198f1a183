#pragma once
// What consumer warpgroups of a CTA agree on: their turns at the tensor cores, and which of a tile's blocks are whose.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/tile/mask.cuh"

namespace flashcore::tile {

// Ping-pong: consumer i may issue the multiplies of a step once consumer i - 1 gives up its turn. kTurn: 0: there are
// no turns; 1: when it has issued its own; 2: when the first of its two multiplies is done, 3: when both are. Or, 4,
// turns are of the softmax: consumer i begins its own when that of consumer i - 1 has ended. Else nothing keeps
// consumers from working on their softmaxes side by side, where each takes half as long again, and then on their
// multiplies.
template <int kConsumers, int kTurn>
struct PingPong {
  static constexpr int kFirstBarrier = 8;

  int index;  // of the consumer

  // Once, before anyone's first turn: the last consumer gives it to the first.
  FC_DEVICE void start() const {
    if (kTurn != 0 && index == kConsumers - 1) ptx::bar_arrive(kFirstBarrier, 256);
  }
  FC_DEVICE void begin_turn() const {
    if constexpr (kTurn >= 1 && kTurn <= 3) wait_for_turn();
  }
  FC_DEVICE void issued() const { end_if<1>(); }
  FC_DEVICE void first_done() const { end_if<2>(); }
  FC_DEVICE void all_done() const { end_if<3>(); }
  FC_DEVICE void begin_softmax() const {
    if constexpr (kTurn == 4) wait_for_turn();
  }
  FC_DEVICE void end_softmax() const { end_if<4>(); }

 private:
  FC_DEVICE void wait_for_turn() const { ptx::bar_sync(kFirstBarrier + index, 256); }
  template <int kWhen>
  FC_DEVICE void end_if() const {
    if constexpr (kTurn == kWhen) ptx::bar_arrive(kFirstBarrier + (index + 1 == kConsumers ? 0 : index + 1), 256);
  }
};

// A consumer's part of a tile, from right to left. The tile's blocks of keys are dealt out to key groups in turn.
struct BlockShare {
  int first_block, last_block;  // of those that some of its rows see; none: first < last
  // Of its blocks that none of its rows sees: upper consumers under a causal mask let those on the right pass, in a
  // window lower ones those on the left.
  int skipped, skipped_after;
  bool spare_turn;  // the first key group has a block more
  FC_DEVICE bool has_keys() const { return first_block >= last_block; }
};

// Of key group `group` of kGroups: `of_tile` are the tile's blocks, `seen` those that some of the consumer's rows see.
template <bool kBoundedLeft, int kGroups>
FC_DEVICE BlockShare share_of_blocks(BlockRange of_tile, BlockRange seen, int group) {
  const int count = of_tile.count(), own_count = (count + kGroups - 1 - group) / kGroups;
  BlockShare share;
  share.skipped = (of_tile.end - min_int(of_tile.end, seen.end) + kGroups - 1 - group) / kGroups;
  share.first_block = of_tile.end - 1 - group - kGroups * share.skipped;
  share.last_block = 0, share.skipped_after = 0;
  if constexpr (kBoundedLeft) {
    if (seen.count() == 0) share.skipped = own_count, share.first_block = -1;
    else share.last_block = seen.begin;
    const int left = share.has_keys() ? (share.first_block - share.last_block) / kGroups + 1 : 0;
    share.skipped_after = own_count - share.skipped - left;
  }
  share.spare_turn = (count + kGroups - 1) / kGroups > own_count;
  return share;
}

// Of a list of `count` blocks, from whose places `seen` some of the consumer's rows see keys.
FC_DEVICE BlockShare share_of_list(int count, BlockRange seen) {
  return {seen.end - 1, seen.begin, count - seen.end, seen.begin, false};
}

// Lets blocks pass that the rings hold for other consumers, turns included.
template <class Consumer>
FC_DEVICE void skip_blocks(Consumer& consumer, int count) {
  for (int i = 0; i < count; ++i) {
    consumer.acquire_k();
    consumer.release_k();
    consumer.skip_turn();
    consumer.acquire_v();
    consumer.release_v();
  }
}

// A warp's rows of a slab go back once what TMA stores from them has been read.
FC_DEVICE void release_stored_rows(ptx::SharedAddress empty) {
  if (ptx::tid_x() % 32 == 0) {
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(empty);
  }
}

}  // namespace flashcore::tile
