#pragma once
// A consumer of sm90_fp8_fwd: one warpgroup that owns 64 query rows of a tile.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/fresh_accumulator.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_fp8_shapes.cuh"
#include "kernels/sm90_fp8_fwd/context.cuh"
#include "kernels/tile/amax.cuh"
#include "kernels/tile/byte_softmax.cuh"
#include "kernels/tile/consumer.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/epilogue.cuh"
#include "kernels/tile/even_keys_first.cuh"
#include "kernels/tile/producer.cuh"
#include "kernels/tile/row_factors.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm90_fp8_fwd {

constexpr Traits without_softcap(Traits traits) {
  traits.softcap = false;
  return traits;
}

// A base that keeps what functions of scores take scores by. One more member changes what ptxas makes of kernels
// without.
template <bool kHas, class Scale>
struct FactorOfScores {};
template <class Scale>
struct FactorOfScores<true, Scale> {
  Scale factor_of_scores;
};

template <Traits T, Config C>
struct Consumer : tile::Marks,
                  tile::SlopeOfTile<has_score(T)>,
                  tile::WholeKeys<T.ragged>,
                  tile::HeadOfTile<has_expression(T)>,
                  tile::ListOfTile<T.mask_expression>,
                  FactorOfScores<changes_scores(T), typename tile::ScoreScale<T.token_factors>::Type>,
                  tile::AmaxOfRows<T.amax> {
  using Activity = tile::Activity;
  static constexpr int kBlockN = C.block_n;
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kSteps = kBlockN / 32;  // multiplies of 32 keys
  static constexpr int kScores = kBlockN / 2;  // of a lane
  static constexpr bool kPromotes = C.promote_every > 0;
  static constexpr bool kPartOutlivesBlock = C.promote_every > 1;
  static constexpr int kChunks = pv_chunks(C, T), kPartCount = pv_columns(C, T) / 2;
  static constexpr int kParts = pv_parts(C, T);
  static constexpr bool kShared = shares_registers(C, T);
  static constexpr bool kBounded = tile::Mask<T, ForwardParams>::kBounded;
  // Whether a tile may have blocks that none of the consumer's rows sees, before those that some see and after them.
  FC_DEVICE static constexpr bool skips() { return kBounded || T.mask_expression; }
  FC_DEVICE static constexpr bool skips_after() { return T.bounded_left || T.mask_expression; }

  using DescriptorQ = tile::ByteDescriptor<kWidthQ>;
  using DescriptorK = tile::ByteDescriptor<width_of(T.head_dim)>;
  using DescriptorVt = tile::ByteDescriptor<width_of_keys(kBlockN)>;

  const Context<T, C>& context;
  const int index;  // of the consumer warpgroup
  const tile::PingPong<C.num_consumers, C.ping_pong> turns;
  Ring<C.num_stages> ring_k, ring_vt;
  Ring<C.q_stages> ring_q;
  Ring<kTileSlots> ring_tile;
  // Of stage 0.
  const DescriptorQ first_q;
  const DescriptorK first_k;
  const DescriptorVt first_vt;

  float acc_o[kDimV / 2];
  unsigned p[kSteps][4];
  tile::ByteSoftmax<C.p_exponent> softmax;
  // Scores and sums of P·V in turn, by promote-every-block without overlap. One array for both: of two, however short
  // their lives, ptxas gives each registers of its own, and spills.
  float shared_acc[kShared ? tile::max_int(kScores, kParts* kPartCount) : 1];
  // Sums of the tensor cores over blocks, not yet in acc_o, and of how many: if they outlive a block.
  float part_of_blocks[kPartOutlivesBlock ? kPartCount : 1];
  int part_blocks = 0;

  int first_row;                                                // of the tile at hand, that is this consumer's
  typename tile::ScoreScale<T.token_factors>::Type scale_log2;  // of its scores, or of what functions leave
  tile::RowFactors key_factors;                                 // with token_factors

  FC_DEVICE Consumer(const Context<T, C>& owner, int i)
      : context(owner),
        index(i),
        turns{i},
        first_q(DescriptorQ::of(owner.qo(0, i))),
        first_k(DescriptorK::of(owner.k(0))),
        first_vt(DescriptorVt::of(owner.vt(0))) {}

  // Whether much is done to scores before the softmax.
  FC_DEVICE static constexpr bool transforms() { return changes_scores(T) || T.token_factors; }

  FC_DEVICE static int warp() { return ptx::tid_x() % 128 / 32; }
  FC_DEVICE static int lane() { return ptx::tid_x() % 32; }
  // The lane's first key where even keys come first.
  FC_DEVICE static int first_even_key(int block) { return block * kBlockN + 4 * (lane() % 4); }
  FC_DEVICE static int row(int first, int r) { return first + 16 * warp() + tile::row_of_lane(lane(), r); }

  // --- rings and turns ----------------------------------------------------------------------------------------------
  FC_DEVICE void acquire_k() {
    mark(Activity::kWaitK);
    ptx::mbarrier_wait(context.k_full(ring_k.stage()), ring_k.parity());
  }
  FC_DEVICE void acquire_v() {
    mark(Activity::kWaitV);
    ptx::mbarrier_wait(context.vt_full(ring_vt.stage()), ring_vt.parity());
  }
  FC_DEVICE void release_k() {
    tile::arrive_for_warp(context.k_empty(ring_k.stage()));
    ring_k.advance();
  }
  FC_DEVICE void release_v() {
    tile::arrive_for_warp(context.vt_empty(ring_vt.stage()));
    ring_vt.advance();
  }

  FC_DEVICE void begin_issue() {
    if constexpr (C.ping_pong >= 1 && C.ping_pong <= 3) mark(Activity::kWaitTurn);
    turns.begin_turn();
  }
  FC_DEVICE void end_issue() { turns.issued(); }
  FC_DEVICE void begin_softmax() {
    if constexpr (C.ping_pong == 4) mark(Activity::kWaitTurn);
    turns.begin_softmax();
  }
  FC_DEVICE void skip_turn() {
    begin_issue(), end_issue(), turns.first_done(), turns.all_done();
    begin_softmax(), turns.end_softmax();
  }

  // --- multiplies ---------------------------------------------------------------------------------------------------
  // Starts S = Q·Kᵀ.
  FC_DEVICE void issue_qk(float (&scores)[kScores]) {
    const DescriptorQ q = first_q.advanced(ring_q.stage() * C.num_consumers * qo_slab_bytes(T));
    const DescriptorK k = first_k.advanced(ring_k.stage() * k_tile_bytes(C, T));
    if constexpr (kShared) ptx::warpgroup_fence_operand(scores);
    else ptx::fresh_accumulator(scores);
    ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < padded_k(T.head_dim) / 32; ++s) {
      ptx::wgmma_fp8_ss<T.element == Element::kE5M2>(scores, q.advanced(TileQ<T, C>::step_offset(s)).word(),
                                                     k.advanced(TileK<T, C>::step_offset(s)).word(), s > 0);
    }
    ptx::wgmma_commit();
  }
  // Starts acc += P·V; or acc = P·V. P is e4m3 whatever V is: e5m2 has a bit of mantissa less.
  template <int kCount>
  FC_DEVICE void issue_pv(float (&acc)[kCount], int first_column, bool accumulate) {
    const DescriptorVt vt =
        first_vt.advanced(ring_vt.stage() * vt_tile_bytes(C, T) + first_column * width_of_keys(kBlockN));
    ptx::warpgroup_fence_operand(acc);
    ptx::wgmma_fence();
#pragma unroll
    for (int n = 0; n < kSteps; ++n)
      ptx::wgmma_fp8_rs<false, T.element == Element::kE5M2>(acc, p[n], vt.advanced(TileVt<T, C>::step_offset(n)).word(),
                                                            accumulate || n > 0);
    ptx::wgmma_commit();
  }
  // O += a part, which is of the columns of that chunk.
  template <int kCount>
  FC_DEVICE void promote(const float (&part)[kCount], int chunk) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) acc_o[chunk * kCount + i] += part[i];
  }

  // The first elements of shared_acc as accumulators.
  template <int kCount>
  FC_DEVICE auto shared_as() -> float (&)[kCount] {
    return *reinterpret_cast<float(*)[kCount]>(shared_acc);
  }
  // The whole of O += P·V, nothing else in flight.
  FC_DEVICE void add_pv() {
    mark(Activity::kPv);
    if constexpr (!kPromotes) {
      issue_pv(acc_o, 0, true);
      wait_for<0>(acc_o);
    } else if constexpr (kPartOutlivesBlock) {
      issue_pv(part_of_blocks, 0, part_blocks > 0);
      wait_for<0>(part_of_blocks);
      count_block();
    } else if constexpr (kShared) {
      add_chunks(*reinterpret_cast<float(*)[kParts][kPartCount]>(shared_acc));
    } else {
      float parts[kParts][kPartCount];
      add_chunks(parts);
    }
  }
  FC_DEVICE void add_chunks(float (&parts)[kParts][kPartCount]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c >= kParts) take_chunk<kParts - 1>(parts, c - kParts);
      if constexpr (!kShared) ptx::fresh_accumulator(parts[c % kParts]);
      issue_pv(parts[c % kParts], c * kPartCount * 2, false);
    }
    if constexpr (kParts == 2) take_chunk<1>(parts, kChunks - 2);
    take_chunk<0>(parts, kChunks - 1);
  }
  template <int kPending>
  FC_DEVICE void take_chunk(float (&parts)[kParts][kPartCount], int chunk) {
    wait_for<kPending>(parts[chunk % kParts]);
    promote(parts[chunk % kParts], chunk);
  }
  // The part has a block more.
  FC_DEVICE void count_block() {
    if (++part_blocks == C.promote_every) promote_blocks();
  }
  FC_DEVICE void promote_blocks() {
    promote(part_of_blocks, 0);
    part_blocks = 0;
  }
  template <int kPending, int kCount>
  FC_DEVICE static void wait_for(float (&acc)[kCount]) {
    ptx::wgmma_wait<kPending>();
    ptx::warpgroup_fence_operand(acc);
  }

  // --- a block ------------------------------------------------------------------------------------------------------
  // From what was multiplied to what the softmax takes. `block` may be the place of one in a list.
  FC_DEVICE void finish_scores(int block, float (&scores)[kScores]) {
    mark(Activity::kMask, block);
    if constexpr (T.mask_expression) block = tile::BlockList::block_of(this->entry);
    if constexpr (T.token_factors) multiply_by_keys(block, scores);
    if constexpr (transforms_scores(T)) transform_scores(block, scores);
    if constexpr (T.score_expression) express_scores(block, scores);
    if (const tile::Cut cut = cut_of(block); cut.any()) mask_scores(block, cut, scores);
    if constexpr (T.mask_expression) {
      if (tile::BlockList::use_of(this->entry, index) != tile::ListedUse::kFull) express<true>(block, scores);
    }
    if constexpr (T.amax) this->note(scores);
  }
  FC_DEVICE void take_entry(int place) {
    if constexpr (T.mask_expression) this->entry = this->list.entry(context.expression_params, place);
  }
  FC_DEVICE tile::Cut cut_of(int block) const {
    if constexpr (T.ragged) {
      return {(block + 1) * kBlockN > this->whole_end, T.bounded_left && block * kBlockN < this->whole_begin};
    } else {
      return context.mask().template cut<kBlockN>(block, first_row, first_row + kRowsPerConsumer - 1);
    }
  }
  FC_DEVICE void mask_scores(int block, tile::Cut cut, float (&scores)[kScores]) {
    if constexpr (T.ragged) {
      const tile::SlotRows at = own_rows();
      tile::Mask<T, ForwardParams>{at.own}.apply(scores, cut, block * kBlockN + tile::column_of_lane(lane()),
                                                 {row(at.first_row, 0), row(at.first_row, 1)});
    } else if constexpr (takes_transposed_v(C)) {
      tile::mask_even_keys_first(context.mask(), scores, cut, first_even_key(block),
                                 {row(first_row, 0), row(first_row, 1)});
    } else {
      context.mask().apply(scores, cut, block * kBlockN + tile::column_of_lane(lane()),
                           {row(first_row, 0), row(first_row, 1)});
    }
  }
  FC_DEVICE void transform_scores(int block, float (&scores)[kScores]) {
    multiply_by_rows(scores);
    const int first_key = block * kBlockN + tile::column_of_lane(lane());
    if constexpr (takes_transposed_v(C)) {
      const int rows[2] = {row(first_row, 0), row(first_row, 1)};
      if constexpr (T.softcap) context.score().cap(scores, first_key, rows);
      if constexpr (T.alibi != 0) {
        const tile::Score<without_softcap(T)> score = {context.problem, context.score_params};
        const tile::Side side = score.template side<kBlockN>(block, first_row, first_row + kRowsPerConsumer - 1);
        tile::for_each_four(scores, first_even_key(block),
                            [&](auto& four, int key) { score.apply(four, this->slope, side, key, rows); });
      }
    } else if constexpr (T.ragged) {
      const tile::SlotRows at = own_rows();
      const tile::Score<T, ForwardParams, true> score = {at.own, context.score_params};  // TMA brings whole boxes
      score.apply(scores, this->slope,
                  score.template side<kBlockN>(block, at.first_row, at.first_row + kRowsPerConsumer - 1), first_key,
                  {row(at.first_row, 0), row(at.first_row, 1)});
    } else {
      const tile::Score<T> score = context.score();
      score.apply(scores, this->slope, score.template side<kBlockN>(block, first_row, first_row + kRowsPerConsumer - 1),
                  first_key, {row(first_row, 0), row(first_row, 1)});
    }
  }
  // The user's score function on scores, or the mask function.
  template <bool kMask>
  FC_DEVICE void express(const ForwardParams& problem, int first, int block, float (&scores)[kScores]) {
    // Of a score's and a mask's function elements of many keys would spill.
    const tile::Expressions<ForwardParams, has_both_functions(T) ? 8 : 0> functions = {problem,
                                                                                       context.expression_params};
    const int rows[2] = {row(first, 0), row(first, 1)};
    const auto apply = [&](auto& of, int first_key) {
      if constexpr (kMask) functions.mask(of, this->own_head, first_key, rows);
      else if constexpr (transforms_scores(T) || T.token_factors) functions.score(of, this->own_head, first_key, rows);
      else
        functions.score(of, this->own_head, first_key, rows,
                        [&] { return context.expression_params->unit * this->factor_of_scores; });
    };
    if constexpr (takes_transposed_v(C)) tile::for_each_four(scores, first_even_key(block), apply);
    else apply(scores, block * kBlockN + tile::column_of_lane(lane()));
  }
  template <bool kMask>
  FC_DEVICE void express(int block, float (&scores)[kScores]) {
    if constexpr (T.ragged) {
      const tile::SlotRows at = own_rows();
      express<kMask>(at.own, at.first_row, block, scores);
    } else {
      express<kMask>(context.problem, first_row, block, scores);
    }
  }
  // Where nothing else is made of scores, one multiplication brings the factors and the unit.
  FC_DEVICE void express_scores(int block, float (&scores)[kScores]) {
    if constexpr (T.token_factors && !transforms_scores(T)) multiply_by_rows(scores);
    express<false>(block, scores);
  }
  FC_DEVICE void multiply_by_rows(float (&scores)[kScores]) const {
    tile::scale_rows(scores, {tile::scale_of(this->factor_of_scores, 0), tile::scale_of(this->factor_of_scores, 1)});
  }
  // Of a ragged batch: read again rather than kept.
  FC_DEVICE tile::SlotRows own_rows() const { return context.rows_in(ring_tile.stage(), index * kRowsPerConsumer); }
  FC_DEVICE void multiply_by_keys(int block, float (&scores)[kScores]) const {
    if constexpr (takes_transposed_v(C))
      tile::multiply_by_keys<tile::EvenKeys, kBlockN>(scores, key_factors, block, first_even_key(0));
    else tile::multiply_by_keys<tile::KeysInOrder, kBlockN>(scores, key_factors, block, tile::column_of_lane(lane()));
  }
  // As the softmax takes them.
  FC_DEVICE decltype(auto) ordered(const float (&scores)[kScores]) const {
    if constexpr (takes_transposed_v(C)) return tile::EvenKeysFirst<float[kScores]>{scores};
    else return (scores);
  }
  FC_DEVICE void update_softmax(const float (&scores)[kScores]) {
    mark(Activity::kSoftmax);
    softmax.update(ordered(scores), scale_log2, p, [&](const float(&factor)[2]) {
      tile::scale_rows(acc_o, factor);
      if constexpr (kPartOutlivesBlock) {
        if (part_blocks > 0) tile::scale_rows(part_of_blocks, factor);
      }
    });
    turns.end_softmax();
  }
  FC_DEVICE void first_block(int block) {
    if constexpr (kShared) {
      first_block(block, shared_as<kScores>());
    } else {
      float scores[kScores];
      first_block(block, scores);
    }
  }
  FC_DEVICE void first_block(int block, float (&scores)[kScores]) {
    acquire_k();
    begin_issue();
    mark(Activity::kQk, block);
    issue_qk(scores);
    end_issue();
    wait_for<0>(scores);
    turns.first_done(), turns.all_done();
    release_k();
    begin_softmax();
    finish_scores(block, scores);
    mark(Activity::kSoftmax, block);
    softmax.start(ordered(scores), scale_log2, p);
    turns.end_softmax();
  }
  // P·V of the block before, and then this block's probabilities.
  FC_DEVICE void next_block(int block) {
    if constexpr (kShared) {
      next_block_apart(block, shared_as<kScores>());
    } else if constexpr (C.overlap == Overlap::kNone) {
      float scores[kScores];
      next_block_apart(block, scores);
    } else {
      next_block_overlapped(block);
    }
  }
  FC_DEVICE void next_block_apart(int block, float (&scores)[kScores]) {
    acquire_v();
    begin_issue();
    add_pv();
    release_v();
    acquire_k();
    mark(Activity::kQk, block);
    issue_qk(scores);
    turns.first_done();  // P·V was waited for
    end_issue();
    wait_for<0>(scores);
    turns.all_done();
    release_k();
    if constexpr (transforms()) begin_softmax();
    finish_scores(block, scores);
    if constexpr (!transforms()) begin_softmax();
    update_softmax(scores);
  }
  FC_DEVICE void next_block_overlapped(int block) {
    constexpr bool kScoresFirst = C.overlap == Overlap::kScoresFirst;
    float scores[kScores];
    float parts[kParts][kPromotes && !kPartOutlivesBlock ? kPartCount : 1];
    const auto issue_values = [&] {
      if constexpr (!kPromotes) {
        issue_pv(acc_o, 0, true);
      } else if constexpr (kPartOutlivesBlock) {
        issue_pv(part_of_blocks, 0, part_blocks > 0);
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          ptx::fresh_accumulator(parts[c]);
          issue_pv(parts[c], c * kPartCount * 2, false);
        }
      }
    };
    // Multiplies end in the order in which they were issued, a group for each chunk of P·V.
    const auto take_values = [&](auto pending) {
      mark(Activity::kPv, block);
      if constexpr (!kPromotes) {
        wait_for<pending.value>(acc_o);
      } else if constexpr (kPartOutlivesBlock) {
        wait_for<pending.value>(part_of_blocks);
      } else {
        wait_for<pending.value>(parts[0]);
        if constexpr (kChunks > 1) ptx::warpgroup_fence_operand(parts[1]);
      }
      if constexpr (kScoresFirst) turns.all_done();
      else turns.first_done();
      release_v();
      if constexpr (kPromotes && !kPartOutlivesBlock) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) promote(parts[c], c);
      }
      if constexpr (kPartOutlivesBlock) count_block();
    };
    if constexpr (kScoresFirst) {
      acquire_k();
      begin_issue();
      mark(Activity::kQk, block);
      issue_qk(scores);
      acquire_v();
      mark(Activity::kQk, block);
      issue_values();
      end_issue();
      wait_for<kChunks>(scores);
      turns.first_done();
      release_k();
      if constexpr (transforms()) begin_softmax();
      finish_scores(block, scores);
      take_values(Pending<0>{});
    } else {
      acquire_v();
      begin_issue();
      mark(Activity::kPv, block);
      issue_values();
      acquire_k();
      mark(Activity::kQk, block);
      issue_qk(scores);
      end_issue();
      take_values(Pending<1>{});
      mark(Activity::kQk, block);
      wait_for<0>(scores);
      turns.all_done();
      release_k();
      if constexpr (transforms()) begin_softmax();
      finish_scores(block, scores);
    }
    if constexpr (!transforms()) begin_softmax();
    update_softmax(scores);
  }
  template <int kPending>
  struct Pending {
    static constexpr int value = kPending;
  };

  // --- a tile -------------------------------------------------------------------------------------------------------
  FC_DEVICE tile::BlockShare begin_tile(int number) {
    if constexpr (T.ragged) {
      const tile::SlotRows at = own_rows();
      const tile::Mask<T, ForwardParams> mask = {at.own};
      this->whole_end = mask.end_of(at.first_row);
      this->whole_begin = mask.begin_of(at.first_row + kRowsPerConsumer - 1);
      set_scales(at.tile.batch, at.tile.head_q, at.tile.head_q / (context.problem.heads_q / context.problem.heads_kv));
      if constexpr (T.mask_expression) {
        this->list = context.list_of(at.tile);
        return tile::share_of_list(at.tile.blocks.end, this->list.of_group(context.expression_params, index));
      }
      const int last_row = min_int(at.first_row + kRowsPerConsumer, at.tile.len_q) - 1;
      return tile::share_of_blocks<T.bounded_left, 1>(at.tile.blocks,
                                                      mask.template blocks<kBlockN>(at.first_row, last_row), 0);
    } else {
      const auto tile = context.tile_at(number);
      first_row = tile.first_row + index * kRowsPerConsumer;
      set_scales(tile.batch, tile.head_q, tile.head_kv);
      if constexpr (T.mask_expression) {
        this->list = tile.list;
        return tile::share_of_list(tile.blocks.end, tile.list.of_group(context.expression_params, index));
      }
      const int last_row = min_int(first_row + kRowsPerConsumer, context.problem.seqlen_q) - 1;
      return tile::share_of_blocks<T.bounded_left, 1>(tile.blocks,
                                                      context.mask().template blocks<kBlockN>(first_row, last_row), 0);
    }
  }
  // By the factors of q and k; ALiBi's slope; and what functions go by.
  FC_DEVICE void set_scales(int batch, int head_q, int head_kv) {
    if constexpr (has_expression(T)) this->own_head = {batch, head_q, head_kv};
    const Fp8ForwardParams& factors = context.params.fp8;
    const float scale = context.problem.scale_log2;
    if constexpr (has_score(T)) this->slope = context.score().slope(batch, head_q);
    if constexpr (T.amax) this->reset_amax();
    if constexpr (T.token_factors) {
      const auto of_rows = tile::RowFactors::of(factors.descale_q, batch, head_q, context.problem.seqlen_q);
      const int rows[2] = {row(first_row, 0), row(first_row, 1)};
      if constexpr (changes_scores(T))
        this->factor_of_scores = of_rows.scales(1.0f, rows), scale_log2 = {{scale, scale}};
      else scale_log2 = of_rows.scales(scale, rows);
      key_factors = tile::RowFactors::of(factors.descale_k, batch, head_kv, context.problem.seqlen_kv);
    } else {
      const float factor =
          tile::descale(factors.descale_q, batch, head_kv) * tile::descale(factors.descale_k, batch, head_kv);
      if constexpr (changes_scores(T)) this->factor_of_scores = factor, scale_log2 = scale;
      else scale_log2 = scale * factor;
    }
  }

  // A warp's rows of Q's slab go back once its O has left them. With two slabs the next tile is begun first: waiting
  // for the store would hold up the warp for 500 clocks.
  FC_DEVICE void release_slab(int stage) {
    mark(Activity::kWaitStore);
    tile::release_stored_rows(context.q_empty(stage, index));
  }
  FC_DEVICE void release_last_slab() {
    if (C.q_stages == 2 && ring_q.count > 0) release_slab((ring_q.count - 1) % C.q_stages);
  }

  // Unnormalised O of the rows, all keys.
  FC_DEVICE void attend(const tile::BlockShare& work) {
    int block = work.first_block;
    take_entry(block);
    tile::set_zero(acc_o);
    first_block(block);
    release_last_slab();
#pragma unroll 1
    for (--block; ptx::opaque(block) >= work.last_block; --block) {
      take_entry(block);
      next_block(block);
    }
    acquire_v();
    add_pv();
    release_v();
    if constexpr (kPartOutlivesBlock) {
      if (part_blocks > 0) promote_blocks();
    }
  }
  FC_DEVICE void init_empty_row() {
    tile::set_zero(acc_o);
    softmax.reset();
    release_last_slab();
  }

  // What a tile's O leaves with.
  struct Place {
    int first_row, head, batch;  // of the consumer's; of a ragged batch as in the tensor map
    float descale_v;
  };
  FC_DEVICE float descale_v(int batch, int head_kv) const {
    return tile::descale(context.params.fp8.descale_v, batch, head_kv);
  }
  FC_DEVICE Place place_of_rows(int number) const {
    if constexpr (T.ragged) {
      const tile::SlotTile tile = context.tile_in(ring_tile.stage());
      const int head_kv = tile.head_q / (context.problem.heads_q / context.problem.heads_kv);
      return {tile.first_row + index * kRowsPerConsumer + context.problem.seqlen_q - tile.len_q, tile.head_q,
              tile.first_q + tile.len_q, descale_v(tile.batch, head_kv)};
    } else {
      const auto tile = context.place_of(ptx::opaque(number));  // found again rather than kept through the main loop
      return {first_row, tile.head_q, tile.batch, descale_v(tile.batch, tile.head_kv)};
    }
  }
  FC_DEVICE float finish_row(int r, float sink_log2, float& lse) const {
    if constexpr (T.sink) return softmax.finish_with_sink(r, lse, sink_log2);
    else return softmax.finish(r, lse);
  }

  // Rows past the end do not count.
  FC_DEVICE void raise_amax(int head, const int (&own_rows)[2], const float (&scale)[2]) const {
    float scores = 0.0f, o = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (own_rows[r] >= context.problem.seqlen_q) continue;
      scores = ptx::max(scores, this->of[r] * tile::scale_of(scale_log2, r));
      o = ptx::max(o, tile::largest_of_row(acc_o, r) * scale[r]);
    }
    tile::raise_amax(context.params.amax, context.problem.heads_q, head, scores, o);
  }

  // O through the consumer's own Q rows, which nobody reads any more, and out by TMA, each warp's rows by themselves.
  // The log-sum-exp after O, which whoever waits for the kernel waits for longer.
  FC_DEVICE void store(int number) {
    mark(Activity::kEpilogue);
    const Place place = place_of_rows(number);
    context.release_tile(ring_tile);
    float scale[2], lse[2], sink_log2 = 0.0f;
    if constexpr (T.sink) sink_log2 = context.score().sink_log2(place.head);
#pragma unroll
    for (int r = 0; r < 2; ++r) scale[r] = finish_row(r, sink_log2, lse[r]) * place.descale_v;
    if constexpr (T.amax) raise_amax(place.head, {row(place.first_row, 0), row(place.first_row, 1)}, scale);
    const int rows = kRowsPerStore * warp();
    // Boxes of a ragged batch have a row of the tensor, as those that are loaded (row_in_map).
    const bool exists = !T.ragged || place.first_row + rows < context.problem.seqlen_q;
    tile::store_o_tma<T.output, kRowsPerConsumer, T.head_dim_v>(
        acc_o, scale, context.qo(ring_q.stage(), index) + rows * 128, context.params.o, place.first_row + rows,
        place.head, place.batch, exists);
    const int own_rows[2] = {row(place.first_row, 0), row(place.first_row, 1)};
    if constexpr (T.ragged)
      tile::store_ragged_lse(context.problem, context.ragged_params->total_q, place.batch, place.head, own_rows, lane(),
                             lse);
    else tile::store_lse(context.problem, place.batch, place.head, own_rows, lane(), lse);
  }

  FC_DEVICE int next_number() {
    mark(Activity::kWaitTile);
    return context.next_tile(ring_tile);
  }
  FC_DEVICE void run() {
    begin_role(tile::Role::kConsumer);
    turns.start();
    for (int number = next_number(); number >= 0; number = next_number()) {
      mark(Activity::kSetUp);
      const tile::BlockShare work = begin_tile(number);
      if constexpr (skips()) tile::skip_blocks(*this, work.skipped);
      mark(Activity::kWaitQ);
      ptx::mbarrier_wait(context.q_full(ring_q.stage(), index), ring_q.parity());
      // Without a mask every row sees keys, but those of a sequence that has none.
      if ((!skips() && !T.ragged) || work.has_keys()) attend(work);
      else init_empty_row();
      if constexpr (skips_after()) tile::skip_blocks(*this, work.skipped_after);
      store(number);
      if constexpr (C.q_stages == 1) release_slab(0);
      ring_q.advance();
    }
    mark(Activity::kWaitStore);
    ptx::bulk_wait_read<0>();  // shared memory outlives what TMA still reads of it
    end_role();
  }
};

}  // namespace flashcore::sm90_fp8_fwd
