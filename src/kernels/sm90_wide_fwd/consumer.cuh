#pragma once
// A consumer of sm90_wide_fwd: one of two warpgroups that have the same 64 query rows. Each computes the scores of half
// of a block's keys and its own columns of O. Warp w of one needs of the other what warp w has: they meet in pairs.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/distributed_shared.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/vote.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90_wide_fwd/finish.cuh"
#include "kernels/tile/consumer.cuh"
#include "kernels/tile/shared_row_softmax.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm90_wide_fwd {

template <Traits T, Config C>
struct Consumer : tile::Marks,
                  tile::SlopesOfRows<has_score(T), 2>,
                  tile::HeadOfTile<has_expression(T)>,
                  tile::ListOfTile<Context<T, C>::has_lists()> {
  using Activity = tile::Activity;
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kKeys = own_keys(C);
  static constexpr int kSteps = C.block_n / 16;
  static constexpr int kPairBarrier = 8;  // and the three after it
  using TileP = tile::TmaTile<kRows, C.block_n>;
  using Scores = float[kKeys / 2];
  using Probabilities = unsigned[kSteps][4];

  const Context<T, C>& context;
  const int index;
  Ring<C.num_slots> ring;
  Ring<1> ring_q;
  Ring<kTileSlots> ring_tile;
  int first_position;  // of the tile at hand

  float acc_o[own_blocks(T)][32];  // of every second block of 64 columns
  tile::SharedRowSoftmax softmax;

  FC_DEVICE Consumer(const Context<T, C>& owner, int i) : context(owner), index(i) {}

  FC_DEVICE static int warp() { return ptx::tid_x() % 128 / 32; }
  FC_DEVICE static int lane() { return ptx::tid_x() % 32; }
  // Of the lane's rows, among the tile's heads and among a head's positions.
  FC_DEVICE static int row(int r) { return 16 * warp() + tile::row_of_lane(lane(), r); }
  FC_DEVICE static int head_of(int r) { return own_heads(C) == 1 ? 0 : row(r) / own_positions(C); }
  FC_DEVICE static int position_of(int r) { return own_heads(C) == 1 ? row(r) : row(r) % own_positions(C); }

  // --- between the two ----------------------------------------------------------------------------------------------
  FC_DEVICE void meet() {
    mark(Activity::kWaitPartner);
    ptx::bar_sync(kPairBarrier + warp(), 64);
  }
  // A number of each of the warp's rows.
  FC_DEVICE static ptx::SharedAddress of_row(ptx::SharedAddress numbers, int r) { return numbers + 4 * row(r); }
  FC_DEVICE static void tell(ptx::SharedAddress numbers, const float (&values)[2]) {
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) ptx::st_shared_u32(of_row(numbers, r), ptx::bits_of_float(values[r]));
  }
  FC_DEVICE static float told(ptx::SharedAddress numbers, int r) {
    return ptx::float_of_bits(ptx::ld_shared_u32(of_row(numbers, r)));
  }

  // --- pieces of K and V --------------------------------------------------------------------------------------------
  FC_DEVICE void acquire() { ptx::mbarrier_wait(context.piece_full(ring.stage()), ring.parity()); }
  // Of the piece `behind` places before the one at hand. To every producer that loads into the slot. Relaxed: wgmma has
  // read it and been waited for, and what comes next, TMA or NaN in keys of missing pages, needs nothing of the
  // threads.
  FC_DEVICE void release(int behind) const {
    Ring<C.num_slots> done = ring;
    done.count -= behind;
    const ptx::SharedAddress empty = context.piece_empty(done.stage());
    if constexpr (C.cluster == 1) {
      tile::arrive_for_warp(empty);
    } else if (lane() == 0) {
#pragma unroll
      for (int rank = 0; rank < C.cluster; ++rank) ptx::mbarrier_arrive_cluster_relaxed(ptx::mapa(empty, rank));
    }
  }
  // A piece that the consumer does not read.
  FC_DEVICE void pass() {
    acquire();
    ptx::bar_warp_sync();  // all lanes have looked, before the slot can be filled again
    release(0);
    ring.advance();
  }
  // After the multiplies of a piece have been started: those of the consumer's piece before, `behind` places back, are
  // done, and it goes back.
  template <int kCount>
  FC_DEVICE void end_piece(float (&accumulators)[kCount], bool is_first, int behind) {
    ptx::wgmma_commit();
    if (!is_first) {
      ptx::wgmma_wait<1>();
      release(behind);
    }
    ptx::warpgroup_fence_operand(accumulators);
  }
  FC_DEVICE void end_pieces(int behind) {
    ptx::wgmma_wait<0>();
    release(behind);
  }

  // --- a block ------------------------------------------------------------------------------------------------------
  // Of the consumer's keys.
  FC_DEVICE void multiply_qk(Scores& scores) {
    const ptx::WgmmaDescriptor q = ptx::WgmmaDescriptor::of(context.qo(), 16);
    constexpr int kPieces = column_blocks(T.head_dim);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      mark(Activity::kWaitK);
      acquire();
      mark(Activity::kQk);
      const ptx::WgmmaDescriptor own_q = q.advanced(piece * kRows * 128);
      const ptx::WgmmaDescriptor own_k =
          ptx::WgmmaDescriptor::of(context.slots(ring.stage()) + index * (kKeys * 128), 16);
      ptx::warpgroup_fence_operand(scores);
      ptx::wgmma_fence();
      constexpr int kLastSteps = tile::padded_dim(T.head_dim) % 64 / 16;
      if (piece + 1 < kPieces || kLastSteps == 0) {
        ptx::wgmma_ss_x4<kBf16>(scores, own_q.low, own_k.low, piece > 0);
      } else {
#pragma unroll
        for (int d = 0; d < kLastSteps; ++d)
          ptx::wgmma_ss<kBf16>(scores, own_q.advanced(32 * d).word(), own_k.advanced(32 * d).word(),
                               piece > 0 || d > 0);
      }
      end_piece(scores, piece == 0, 1);
      ring.advance();
    }
    end_pieces(1);
    ptx::warpgroup_fence_operand(scores);
  }
  // The keys of the block at hand, which `block` may be the place of in a list.
  FC_DEVICE int key_block(int block) const {
    if constexpr (Context<T, C>::has_lists()) return tile::BlockList::block_of(this->entry);
    return block;
  }
  // Whether the mask function is known to hide no pair of the block.
  FC_DEVICE bool is_seen_by_all() const {
    if constexpr (Context<T, C>::has_lists()) return tile::BlockList::use_of(this->entry, 0) == tile::ListedUse::kFull;
    return false;
  }
  // The score function, or the mask function, of rows that may be of two heads.
  template <bool kMask>
  FC_DEVICE void express(Scores& scores, const ForwardParams& problem, int first_key, const int (&rows)[2]) const {
    const tile::Expressions<> functions = {problem, context.expression_params};
    tile::Head heads[2] = {this->own_head, this->own_head};
#pragma unroll
    for (int r = 0; r < 2; ++r) heads[r].head_q += head_of(r);
    if constexpr (kMask) functions.mask(scores, heads, first_key, rows);
    else functions.score(scores, heads, first_key, rows);
  }
  // Functions of scores, and the mask.
  FC_DEVICE void transform(Scores& scores, const ForwardParams& problem, int first, int block) const {
    const int own_block = kConsumers * key_block(block) + index, last = first + own_positions(C) - 1;
    const int first_key = own_block * kKeys + tile::column_of_lane(lane());
    const int rows[2] = {first + position_of(0), first + position_of(1)};
    if constexpr (transforms_scores(T)) {
      const tile::Score<T, ForwardParams, T.ragged> score = {problem, context.score_params};
      score.apply(scores, this->slopes, score.template side<kKeys>(own_block, first, last), first_key, rows);
    }
    if constexpr (T.score_expression) express<false>(scores, problem, first_key, rows);
    const tile::Mask<T, ForwardParams> mask = {problem};
    if (const tile::Cut cut = mask.template cut<kKeys>(own_block, first, last); cut.any())
      mask.apply(scores, cut, first_key, rows);
    if constexpr (T.mask_expression)
      if (!is_seen_by_all()) express<true>(scores, problem, first_key, rows);
  }
  FC_DEVICE void transform(Scores& scores, int block) const {
    if constexpr (T.ragged) {
      const tile::SlotRows at = context.rows_in(ring_tile.stage(), 0);
      transform(scores, at.own, at.first_row, block);
    } else {
      transform(scores, context.params.problem, first_position, block);
    }
  }
  // Probabilities of all keys of the block for the warp's rows: the consumer's own through shared memory, too.
  FC_DEVICE void exchange(const Scores& scores, Probabilities& p) {
    const ptx::SharedAddress rows = context.p() + 16 * warp() * 128;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      unsigned packed[4];
      tile::pack_operand<T.element>(packed, scores, n);
      ptx::stmatrix_x4(rows + TileP::offset(lane() % 16, index * (kKeys / 8) + 2 * n + lane() / 16), packed[0],
                       packed[1], packed[2], packed[3]);
    }
    meet();  // P is there
#pragma unroll
    for (int n = 0; n < kSteps; ++n) ptx::ldmatrix_x4(p[n], rows + TileP::offset(lane() % 16, 2 * n + lane() / 16));
  }
  // The consumer's pieces are every second one; it lets the others pass, whose arrivals count as its own.
  FC_DEVICE void multiply_pv(const Probabilities& p) {
    constexpr int kPieces = column_blocks(T.head_dim_v), kWhole = kSteps / 4 * 4;
#pragma unroll
    for (int b = 0; b < own_blocks(T); ++b) {
      if (index == 1) pass();
      if (kConsumers * b + 1 < kPieces || index == 0) {
        mark(Activity::kWaitV);
        acquire();
        mark(Activity::kPv);
        const ptx::WgmmaDescriptor v = ptx::WgmmaDescriptor::of(context.slots(ring.stage()), C.block_n * 128);
        ptx::warpgroup_fence_operand(acc_o[b]);
        ptx::wgmma_fence();
#pragma unroll
        for (int n = 0; n < kWhole; n += 4) ptx::wgmma_rs_x4<kBf16>(acc_o[b], p + n, v.advanced(n * 2048).low);
#pragma unroll
        for (int n = kWhole; n < kSteps; ++n)
          ptx::wgmma_rs<kBf16, true>(acc_o[b], p[n], v.advanced(n * 2048).word(), 1);
        end_piece(acc_o[b], b == 0, kConsumers);
        ring.advance();
      }
      if (index == 0 && kConsumers * b + 1 < kPieces) pass();
    }
    // After the consumer's last piece another may have passed.
    if (kPieces > 1 || index == 0) end_pieces(index == 0 ? (kPieces % 2 == 0 ? 2 : 1) : (kPieces % 2 == 0 ? 1 : 2));
#pragma unroll
    for (int b = 0; b < own_blocks(T); ++b) ptx::warpgroup_fence_operand(acc_o[b]);
  }
  FC_DEVICE void attend(int block) {
    const float scale_log2 = context.params.problem.scale_log2;
    if constexpr (Context<T, C>::has_lists()) this->entry = this->list.entry(context.expression_params, block);
    Scores scores;
    multiply_qk(scores);
    mark(Activity::kMask, block);
    transform(scores, block);
    float maxima[2] = {tile::row_max(scores, 0) * scale_log2, tile::row_max(scores, 1) * scale_log2};
    tell(context.maxima(index), maxima);
    meet();  // the maxima are there, and P of the block before has been read
    mark(Activity::kSoftmax, block);
#pragma unroll
    for (int r = 0; r < 2; ++r) maxima[r] = ptx::max(maxima[r], told(context.maxima(1 - index), r));
    float rescale[2];
    softmax.update(scores, maxima, scale_log2, rescale);
    // The maxima of most blocks are those of blocks before.
    if (ptx::vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
      for (int b = 0; b < own_blocks(T); ++b) tile::scale_rows(acc_o[b], rescale);
    }
    Probabilities p;
    exchange(scores, p);
    multiply_pv(p);
  }

  // --- a tile -------------------------------------------------------------------------------------------------------
  // The blocks of the cluster's share of it.
  FC_DEVICE Share begin_tile(int number) {
    if constexpr (T.ragged) {
      const tile::SlotTile tile = context.tile_in(ring_tile.stage());
      if constexpr (has_score(T)) load_slopes(tile.batch, tile.head_q);
      if constexpr (has_expression(T)) set_head(tile.batch, tile.head_q);
      if constexpr (Context<T, C>::has_lists()) this->list = context.list_of(tile);
      return context.share_of(tile.blocks, tile.head_q);
    } else {
      const auto tile = context.whole_tile_at(number);
      first_position = tile.first_row;
      if constexpr (has_score(T)) load_slopes(tile.batch, tile.head_q);
      if constexpr (has_expression(T)) set_head(tile.batch, tile.head_q);
      if constexpr (Context<T, C>::has_lists()) this->list = tile.list;
      return context.share_of(tile.blocks, tile.head_q);
    }
  }
  FC_DEVICE void load_slopes(int batch, int head) {
    const tile::Score<T> score = {context.params.problem, context.score_params};
#pragma unroll
    for (int r = 0; r < 2; ++r) this->slopes[r] = score.slope(batch, context.first_head(head) + head_of(r));
  }
  FC_DEVICE void set_head(int batch, int head) {
    const ForwardParams& problem = context.params.problem;
    const int first = context.first_head(head);
    this->own_head = {batch, first, first / (problem.heads_q / problem.heads_kv)};
  }
  FC_DEVICE Finish<T, C> finish_of(int number) const {
    if constexpr (T.ragged) {
      const tile::SlotTile tile = context.tile_in(ring_tile.stage());
      return {context, tile.batch, tile.head_q, tile.first_row, tile.first_q, tile.len_q, index};
    } else {
      const auto tile = context.whole_tile_at(number);
      return {context, tile.batch, tile.head_q, tile.first_row, 0, context.params.problem.seqlen_q, index};
    }
  }
  // Sums of all keys.
  FC_DEVICE tile::RowState end_rows() {
    tile::RowState state = tile::RowState::of(softmax);
    tell(context.sums(index), state.total);
    meet();  // the sums are there, and Q has been read
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // In the order of keys, so that both consumers have the same sum.
      const float other = told(context.sums(1 - index), r);
      state.total[r] = index == 0 ? state.total[r] + other : other + state.total[r];
    }
    return state;
  }
  FC_DEVICE void end_tile(int number, const Share& share) {
    // Of a tile without keys nobody has read Q, and there is nothing to wait for.
    const tile::RowState state = share.blocks.count() > 0 ? end_rows() : tile::RowState::of(softmax);
    const Finish<T, C> finish = finish_of(number);
    context.release_tile(ring_tile);
    mark(Activity::kEpilogue);
    if constexpr (C.num_splits != 1) finish.tell_count(share);
    if (C.num_splits == 1 || share.parts == 1) finish.store(state, acc_o);
    else finish.write_part(state, acc_o, share);
  }

  FC_DEVICE int next_number() {
    mark(Activity::kWaitTile);
    return context.next_tile(ring_tile);
  }
  FC_DEVICE void run() {
    begin_role(tile::Role::kConsumer);
    for (int number = next_number(); number >= 0; number = next_number()) {
      mark(Activity::kSetUp);
      const Share share = begin_tile(number);
      softmax.reset();
#pragma unroll
      for (int b = 0; b < own_blocks(T); ++b) tile::set_zero(acc_o[b]);
      mark(Activity::kWaitQ);
      ptx::mbarrier_wait(context.q_full(), ring_q.parity());
#pragma unroll 1
      for (int block = share.blocks.end - 1; block >= share.blocks.begin; --block) attend(block);
      if (share.is_idle()) context.release_tile(ring_tile);
      else end_tile(number, share);
      mark(Activity::kWaitStore);
      tile::release_stored_rows(context.q_empty());
      ring_q.advance();
    }
    mark(Activity::kWaitStore);
    ptx::bulk_wait_read<0>();  // shared memory outlives what TMA still reads of it
    end_role();
  }
};

}  // namespace flashcore::sm90_wide_fwd
