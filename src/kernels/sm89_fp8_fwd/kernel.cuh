#pragma once
// Forward attention on 8-bit operands with cp.async, ldmatrix and mma.sync m16n8k32: sm80_fwd's schedule. V becomes the
// operand b in registers: ldmatrix transposes pairs of bytes, prmt takes the pairs apart.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/prmt.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm89_fp8_fwd/config.h"
#include "kernels/tile/amax.cuh"
#include "kernels/tile/byte_softmax.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/epilogue.cuh"
#include "kernels/tile/list_blocks.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/row_factors.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/sequence.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/store_fragment.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm89_fp8_fwd {

template <Traits T, Config C>
struct SharedStorage {
  unsigned char q[q_tile_bytes(C, T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.num_stages][v_tile_bytes(C, T)];
};

template <Traits T, Config C>
struct Forward : tile::KernelExpressions<has_expression(T)>,
                 tile::ListOfTile<T.mask_expression>,
                 tile::EntryOfTile<has_expression(T) && T.ragged>,
                 tile::AmaxOfFragments<T.amax, rows_per_warp(C) / 16>,
                 tile::Marks {
  using Activity = tile::Activity;
  static constexpr int kDim = padded_k(T.head_dim), kDimV = T.head_dim_v;
  static constexpr int kThreads = threads_per_block(C);
  static constexpr int kFragments = rows_per_warp(C) / 16;  // 16-row pieces of a warp's rows
  static constexpr int kStages = C.num_stages;
  static constexpr int kSteps = C.block_n / 32;  // of P·V
  static constexpr bool kPromotes = C.promote_keys > 0;
  static constexpr int kStepsOfSum = kPromotes ? C.promote_keys / 32 : kSteps;
  // Two bytes are one of their elements.
  using TileQk = tile::SharedTile<kDim / 2, kLayout>;
  using TileV = tile::SharedTile<kDimV / 2, kLayout>;
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));
  using Scores = float[C.block_n / 8][4];
  using Probabilities = unsigned[kSteps][4];

  const ForwardParams& params;
  const Fp8ForwardParams& factors;
  const tile::Score<T> score;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  // The tile at hand.
  tile::TileIndex tile;
  const unsigned short *q, *k, *v;
  tile::BlockRange blocks;  // of block_n keys, of those that some row of the tile sees
  int last_row;             // of the tile
  float slope;              // ALiBi's, of its head
  float factor_of_scores;   // that functions of scores take scores by
  float scale_log2;         // of its scores, or of what functions leave
  // With token_factors: those of its head's rows and keys.
  tile::RowFactors row_factors, key_factors;

  // State of this warp's rows. Of each 16 columns acc_o holds the even ones, then the odd ones.
  float acc_o[kFragments][kDimV / 8][4];
  tile::ByteSoftmax<C.p_exponent> softmax[kFragments];
  unsigned q_fragments[C.q_in_registers ? kFragments : 1][C.q_in_registers ? kDim / 32 : 1][4];

  FC_DEVICE Forward(const ForwardParams& p, const Fp8ForwardParams& f, const ScoreParams* of_scores,
                    const ExpressionParams* of_expressions)
      : tile::KernelExpressions<has_expression(T)>(of_expressions), params(p), factors(f), score{p, of_scores} {}

  FC_DEVICE static int lane_index() { return ptx::tid_x() % 32; }
  FC_DEVICE static int warp_first_row() { return ptx::tid_x() / 32 * rows_per_warp(C); }  // within the tile

  FC_DEVICE ptx::SharedAddress address_q() const { return shared + FC_OFFSET_OF(Storage, q); }
  FC_DEVICE ptx::SharedAddress address_k(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k) + stage * k_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress address_v(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v) + stage * v_tile_bytes(C, T);
  }

  FC_DEVICE int first_block() const { return T.bounded_left && !T.mask_expression ? blocks.begin : 0; }

  // The keys of a block, which may be the place of one in a list.
  FC_DEVICE int key_block(int block) const {
    if constexpr (T.mask_expression) return tile::BlockList::block_of(this->list.entry(this->expression_params, block));
    else return block;
  }

  // --- load -------------------------------------------------------------------------------------------------------
  // Strides are multiples of 16 bytes.
  FC_DEVICE static const unsigned short* head_of(const void* tensor, const Strides& strides, int batch, int head) {
    return reinterpret_cast<const unsigned short*>(static_cast<const unsigned char*>(tensor) + batch * strides.batch +
                                                   head * strides.head);
  }
  FC_DEVICE void load_q() {
    mark(Activity::kLoadQ);
    TileQk::template copy_async<C.block_m, T.head_dim / 2, kThreads>(address_q(), q, params.q_stride.row / 2,
                                                                     tile.first_row, params.seqlen_q, ptx::tid_x());
  }
  // K and V of a block, one copy group.
  FC_DEVICE void load(int block) {
    if (block >= first_block()) {
      mark(Activity::kLoadK, block);
      const int first_key = key_block(block) * C.block_n;
      TileQk::template copy_async<C.block_n, T.head_dim / 2, kThreads>(
          address_k(block % kStages), k, params.k_stride.row / 2, first_key, params.seqlen_kv, ptx::tid_x());
      mark(Activity::kLoadV, block);
      TileV::template copy_async<C.block_n, T.head_dim_v / 2, kThreads>(
          address_v(block % kStages), v, params.v_stride.row / 2, first_key, params.seqlen_kv, ptx::tid_x());
    }
    ptx::cp_async_commit();
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE typename TileQk::Lane lane_of_q() const {
    return TileQk::lane_rows_first(address_q() + warp_first_row() * TileQk::kPitch, lane_index());
  }
  FC_DEVICE void keep_q() {
    const typename TileQk::Lane lane_q = lane_of_q();
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int d = 0; d < kDim / 32; ++d) ptx::ldmatrix_x4(q_fragments[m][d], lane_q.at(m, d));
    }
  }

  FC_DEVICE void scores(Scores (&acc_s)[kFragments], int block) {
    const typename TileQk::Lane lane_q = lane_of_q();
    const typename TileQk::Lane lane_k = TileQk::lane_columns_first(address_k(block % kStages), lane_index());
#pragma unroll
    for (int m = 0; m < kFragments; ++m) tile::set_zero(acc_s[m]);
#pragma unroll
    for (int d = 0; d < kDim / 32; ++d) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if constexpr (C.q_in_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = q_fragments[m][d][i];
        } else {
          ptx::ldmatrix_x4(a[m], lane_q.at(m, d));
        }
      }
#pragma unroll
      for (int n = 0; n < C.block_n / 16; ++n) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, lane_k.at(n, d));
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          tile::mma<T.element>(acc_s[m][2 * n], a[m], b[0], b[1]);
          tile::mma<T.element>(acc_s[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  FC_DEVICE tile::Mask<T, ForwardParams> mask() const { return {params}; }
  FC_DEVICE int row_of_fragment(int m) const {
    return tile.first_row + warp_first_row() + 16 * m + tile::row_of_lane(lane_index(), 0);
  }
  FC_DEVICE void multiply_by_keys(Scores (&acc_s)[kFragments], int block) {
#pragma unroll
    for (int m = 0; m < kFragments; ++m)
      tile::multiply_by_keys<tile::KeysInOrder, C.block_n>(acc_s[m], key_factors, block,
                                                           tile::column_of_lane(lane_index()));
  }
  // Of a fragment's scores: those that functions have made have the factors of their rows.
  FC_DEVICE auto scale_of_fragment(int m) const {
    if constexpr (T.token_factors && !changes_scores(T)) {
      const int row = row_of_fragment(m);
      return row_factors.scales(scale_log2, {row, row + 8});
    } else {
      return scale_log2;
    }
  }
  FC_DEVICE void transform_scores(Scores (&acc_s)[kFragments], int block) {
    const int first_key = block * C.block_n + tile::column_of_lane(lane_index());
    const tile::Side side = score.template side<C.block_n>(block, tile.first_row, tile.first_row + C.block_m - 1);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = row_of_fragment(m);
      multiply_by_rows(acc_s[m], row);
      score.apply(acc_s[m], slope, side, first_key, {row, row + 8});
    }
  }
  FC_DEVICE void multiply_by_rows(Scores& acc_s, int row) const {
    if constexpr (T.token_factors) tile::scale_rows(acc_s, row_factors.scales(1.0f, {row, row + 8}).of);
    else tile::scale_rows(acc_s, {factor_of_scores, factor_of_scores});
  }

  // For functions.
  FC_DEVICE int batch_entry_of_tile() const {
    if constexpr (has_expression(T) && T.ragged) return this->batch_entry;
    else return tile.batch;
  }
  // The user's score function on a block of scores, or the mask function.
  template <bool kMask>
  FC_DEVICE void express(Scores (&acc_s)[kFragments], int block) {
    const int first_key = block * C.block_n + tile::column_of_lane(lane_index());
    const tile::Expressions<> functions = {params, this->expression_params};
    const tile::Head head = {batch_entry_of_tile(), tile.head_q, tile.head_kv};
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = row_of_fragment(m);
      if constexpr (kMask) {
        functions.mask(acc_s[m], head, first_key, {row, row + 8});
      } else {
        if constexpr (!transforms_scores(T)) multiply_by_rows(acc_s[m], row);
        functions.score(acc_s[m], head, first_key, {row, row + 8});
      }
    }
  }
  FC_DEVICE void mask_scores(Scores (&acc_s)[kFragments], int block, tile::Cut cut) {
    const int first_key = block * C.block_n + tile::column_of_lane(lane_index());
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = row_of_fragment(m);
      mask().apply(acc_s[m], cut, first_key, {row, row + 8});
    }
  }

  // 32 keys of 16 columns of V as two operands b: of the even columns, and of the odd ones.
  // ldmatrix.trans of 8 keys × 16 bytes gives lane (g, t) keys 2t and 2t + 1 of columns 2g and 2g + 1. Two of those, of
  // keys 0 to 7 and 8 to 15, are four keys of two columns, in the order in which ByteSoftmax packs P.
  FC_DEVICE static void load_values(unsigned (&even)[2], unsigned (&odd)[2], unsigned address) {
    unsigned pairs[4];
    ptx::ldmatrix_x4_trans(pairs, address);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      even[pair] = ptx::prmt(pairs[2 * pair], pairs[2 * pair + 1], 0x6420u);
      odd[pair] = ptx::prmt(pairs[2 * pair], pairs[2 * pair + 1], 0x7531u);
    }
  }
  // acc_o += P·V, of 16 columns at a time, whose tensor-core sums are promoted before the next ones are begun. P is
  // e4m3 whatever V is: e5m2 has a bit of mantissa less.
  FC_DEVICE void accumulate(const Probabilities (&p)[kFragments], int block) {
    const typename TileV::Lane lane_v = TileV::lane_rows(address_v(block % kStages), lane_index());
#pragma unroll
    for (int d = 0; d < kDimV / 16; ++d) {
#pragma unroll
      for (int first = 0; first < kSteps; first += kStepsOfSum) {
        float part[kFragments][2][4];
#pragma unroll
        for (int m = 0; m < kFragments; ++m) tile::set_zero(part[m]);
#pragma unroll
        for (int n = first; n < first + kStepsOfSum; ++n) {
          unsigned even[2], odd[2];
          load_values(even, odd, lane_v.at_chunk(2 * n, d));
#pragma unroll
          for (int m = 0; m < kFragments; ++m) {
            tile::mma<Element::kE4M3, T.element>(kPromotes ? part[m][0] : acc_o[m][2 * d], p[m][n], even[0], even[1]);
            tile::mma<Element::kE4M3, T.element>(kPromotes ? part[m][1] : acc_o[m][2 * d + 1], p[m][n], odd[0], odd[1]);
          }
        }
        if constexpr (kPromotes) {
#pragma unroll
          for (int m = 0; m < kFragments; ++m) {
#pragma unroll
            for (int i = 0; i < 8; ++i) acc_o[m][2 * d + i / 4][i % 4] += part[m][i / 4][i % 4];
          }
          // For ptxas alone, which else begins the sums of many columns before it adds the first, and spills.
          ptx::bar_warp_sync();
        }
      }
    }
  }

  // One step over block_n keys. On entry the copies of this block and of the kStages - 2 before it are in flight.
  FC_DEVICE void step(int block, bool first) {
    mark(Activity::kWaitK, block);
    ptx::cp_async_wait<kStages - 2>();
    ptx::bar_sync();  // everybody's copies are visible, and everybody has left the stage that is loaded next
    load(block - (kStages - 1));
    mark(Activity::kQk, block);
    if constexpr (C.q_in_registers) {
      if (first) keep_q();
    }
    Probabilities p[kFragments];
    {
      Scores acc_s[kFragments];
      if constexpr (T.mask_expression) this->entry = this->list.entry(this->expression_params, block);
      scores(acc_s, block);
      mark(Activity::kMask, block);
      int keys = block;
      if constexpr (T.mask_expression) keys = tile::BlockList::block_of(this->entry);
      if constexpr (T.token_factors) multiply_by_keys(acc_s, keys);
      if constexpr (transforms_scores(T)) transform_scores(acc_s, keys);
      if constexpr (T.score_expression) express<false>(acc_s, keys);
      if (const tile::Cut cut = mask().template cut<C.block_n>(keys, tile.first_row, last_row); cut.any())
        mask_scores(acc_s, keys, cut);
      if constexpr (T.mask_expression)
        if (tile::BlockList::use_of(this->entry, 0) != tile::ListedUse::kFull) express<true>(acc_s, keys);
      if constexpr (T.amax) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m) this->largest[m].note(acc_s[m]);
      }
      mark(Activity::kSoftmax, block);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        // Else the first block is always computed twice: no maximum is known.
        const auto scale = scale_of_fragment(m);
        if (first) softmax[m].begin(acc_s[m], scale);
        softmax[m].update(acc_s[m], scale, p[m], [&](const float(&factor)[2]) { tile::scale_rows(acc_o[m], factor); });
      }
    }
    mark(Activity::kPv, block);
    accumulate(p, block);
  }

  // Keys from right to left: the masked blocks, if any, come first.
  FC_DEVICE void main_loop() {
    int block = blocks.end - 1;
    load_q();
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) load(block - s);  // the first group holds Q as well
    bool first = true;
    for (; block >= first_block(); --block, first = false) step(block, first);
    mark(Activity::kWaitPartner);
    ptx::cp_async_wait<0>();
    ptx::bar_sync();  // Q, K and V are no longer read: the next tile may write there
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  FC_DEVICE float finish(int m, int r, float& lse) const {
    if constexpr (T.sink) return softmax[m].finish_with_sink(r, lse, score.sink_log2(tile.head_q));
    else return softmax[m].finish(r, lse);
  }

  // Rows past the end do not count.
  FC_DEVICE void raise_amax(float descale_v) const {
    float scores = 0.0f, o = 0.0f;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const auto scale = scale_of_fragment(m);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float lse;
        const float by = finish(m, r, lse) * descale_v;
        if (row_of_fragment(m) + 8 * r >= params.seqlen_q) continue;
        scores = ptx::max(scores, this->largest[m].of[r] * tile::scale_of(scale, r));
        o = ptx::max(o, tile::largest_of_row(acc_o[m], r) * by);
      }
    }
    tile::raise_amax(this->amax, params.heads_q, tile.head_q, scores, o);
  }

  // `entry`: of the batch, whose factor V has.
  FC_DEVICE void epilogue(int entry) {
    mark(Activity::kEpilogue);
    const float descale_v = tile::descale(factors.descale_v, entry, tile.head_kv);
    if constexpr (T.amax) raise_amax(descale_v);
    unsigned char* o =
        static_cast<unsigned char*>(params.o) +
        tile::bytes_of(T.output) * (tile.batch * params.o_stride.batch + tile.head_q * params.o_stride.head);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = row_of_fragment(m);
      float lse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float scale = finish(m, r, lse[r]) * descale_v;
        tile::store_even_odd<T.output>(o + (row + 8 * r) * params.o_stride.row * tile::bytes_of(T.output), acc_o[m], r,
                                       scale, lane_index(), row + 8 * r < params.seqlen_q);
      }
      tile::store_lse(params, tile.batch, tile.head_q, {row, row + 8}, lane_index(), lse);
    }
  }

  // `first_entry`: what batch entry 0 of the tensors is in the batch.
  FC_DEVICE void run(int tile_number, int first_entry) {
    mark(Activity::kSetUp);
    tile = tile::tile_at(params, tile_number, C.block_m);
    q = head_of(params.q, params.q_stride, tile.batch, tile.head_q);
    k = head_of(params.k, params.k_stride, tile.batch, tile.head_kv);
    v = head_of(params.v, params.v_stride, tile.batch, tile.head_kv);
    slope = score.slope(tile.batch, tile.head_q);
    const int entry = first_entry + tile.batch;
    if constexpr (T.token_factors) {
      row_factors = tile::RowFactors::of(factors.descale_q, entry, tile.head_q, params.seqlen_q);
      key_factors = tile::RowFactors::of(factors.descale_k, entry, tile.head_kv, params.seqlen_kv);
      scale_log2 = params.scale_log2;
    } else {
      const float factor =
          tile::descale(factors.descale_q, entry, tile.head_kv) * tile::descale(factors.descale_k, entry, tile.head_kv);
      factor_of_scores = factor;
      scale_log2 = changes_scores(T) ? params.scale_log2 : params.scale_log2 * factor;
    }
    last_row = tile::min_int(tile.first_row + C.block_m, params.seqlen_q) - 1;
    if constexpr (T.mask_expression) {
      this->list =
          tile::BlockList::of(*this->expression_params, batch_entry_of_tile(), tile.head_q, tile.first_row / C.block_m);
      blocks = {0, this->list.count(this->expression_params)};
    } else {
      blocks = mask().template blocks<C.block_n>(tile.first_row, last_row);
    }
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      softmax[m].reset();
      if constexpr (T.amax) this->largest[m].reset_amax();
      tile::set_zero(acc_o[m]);
    }
    main_loop();
    epilogue(first_entry + tile.batch);
  }
};

template <Traits T, Config C>
FC_DEVICE void attend(const Fp8ForwardParams& params, float* amax, const ScoreParams* of_scores,
                      const ExpressionParams* of_expressions = nullptr) {
  Forward<T, C> cta(params.problem, params, of_scores, of_expressions);
  if constexpr (T.amax) cta.amax = amax;
  cta.begin_role(tile::Role::kWarp);
  const int count = C.persistent ? tile::tile_count(params.problem, C.block_m) : ptx::ctaid_x() + 1;
  for (int index = ptx::ctaid_x(); index < count; index += ptx::nctaid_x()) cta.run(index, 0);
  cta.end_role();
}

// Tiles are those of sequences as long as the bounds: past the end of a shorter one there is nothing to do. A tile's
// sequence is a batch of one.
template <Traits T, Config C>
FC_DEVICE void attend_ragged(const Fp8ForwardParams& params, const ScoreParams& of_scores, const RaggedParams& ragged,
                             float* amax, const ExpressionParams* of_expressions = nullptr) {
  const ForwardParams& bounds = params.problem;
  ForwardParams one = bounds;
  ScoreParams score = of_scores;
  Forward<T, C> cta(one, params, &score, of_expressions);
  if constexpr (T.amax) cta.amax = amax;
  cta.begin_role(tile::Role::kWarp);
  const int count = C.persistent ? tile::tile_count(bounds, C.block_m) : ptx::ctaid_x() + 1;
  for (int index = ptx::ctaid_x(); index < count; index += ptx::nctaid_x()) {
    cta.mark(tile::Activity::kSetUp);
    const tile::TileIndex at = tile::tile_at(bounds, index, C.block_m);
    const tile::Sequence sequence = tile::sequence_at(ragged, bounds, at.batch);
    if constexpr (has_expression(T)) cta.batch_entry = at.batch;
    one = tile::params_of<T>(bounds, ragged, sequence, at.head_q);
    score = tile::score_params_of<T>(of_scores, bounds.heads_q, at.batch);
    if (sequence.bad) {
      tile::write_bad_rows<T>(one, at.head_q, at.first_row, C.block_m, bounds.seqlen_q, ptx::tid_x(),
                              threads_per_block(C));
    } else if (at.first_row < sequence.len_q) {
      const int row_tiles = (sequence.len_q + C.block_m - 1) / C.block_m;
      cta.run(at.head_q * row_tiles + row_tiles - 1 - at.first_row / C.block_m, at.batch);
    }
  }
  cta.end_role();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8(const __grid_constant__ tile::Fp8Params<T> params) {
  attend<T, C>(tile::plain_of(params), tile::amax_of(params), nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_scored(const __grid_constant__ Scored<tile::Fp8Params<T>> params) {
  attend<T, C>(tile::plain_of(params.plain), tile::amax_of(params.plain), &params.score);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_ragged(const __grid_constant__ Ragged<tile::Fp8Params<T>> params) {
  attend_ragged<T, C>(tile::plain_of(params.plain), params.score, params.ragged, tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_expressed(const __grid_constant__ Expressed<tile::Fp8Params<T>> params) {
  attend<T, C>(tile::plain_of(params.plain), tile::amax_of(params.plain), &params.score, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<tile::Fp8Params<T>>> params) {
  const Ragged<tile::Fp8Params<T>>& all = params.all;
  attend_ragged<T, C>(tile::plain_of(all.plain), all.score, all.ragged, tile::amax_of(all.plain), &params.expression);
}

}  // namespace flashcore::sm89_fp8_fwd
