#pragma once
// Q·Kᵀ of a warp in sm80_decode_fwd: its rows of Q, their scores against a block's keys, and what becomes of scores
// before the softmax. Of 16 rows and of eight, of 16-bit keys and of codes the loop is one; what differs has one name
// in quantised.cuh and keys_first.cuh.

#include "kernels/sm80_decode_fwd/context.cuh"
#include "kernels/sm80_decode_fwd/expressed.cuh"
#include "kernels/sm80_decode_fwd/keys_first.cuh"
#include "kernels/tile/score.cuh"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C>
struct Queries {
  using Context = sm80_decode_fwd::Context<T, C>;
  using TileQ = typename Context::TileQ;
  using TileK = typename Context::TileK;
  using Scores = typename Context::Scores;

  unsigned q[q_steps(T)][Context::kWords];
  float slopes[2];
  float factor_k;    // of a quantised cache; of 8-bit q times q's
  float factors[2];  // of the rows' scores, where Q is scaled: K's among them

  FC_DEVICE void clear() {
#pragma unroll
    for (int d = 0; d < q_steps(T); ++d)
#pragma unroll
      for (int i = 0; i < Context::kWords; ++i) q[d][i] = 0;
  }
  FC_DEVICE static typename TileQ::Lane lane_of(ptx::SharedAddress rows, int lane) {
    return TileQ::lane_rows_first(rows, lane);
  }
  FC_DEVICE void begin_run(const Context& context, int number, const Run& run) {
    if constexpr (T.token_factors) factor_k = 1.0f;
    else if constexpr (has_quantised_cache(T))
      factor_k = tile::descale(context.descales->descale_k, run.batch, run.head_kv);
    if constexpr (has_8bit_q(T)) factor_k *= tile::descale(context.descales->descale_q, run.batch, run.head_kv);
    if constexpr (keeps_q(T)) {
      load_q(context, context.address_q(number));
      if constexpr (scales_q(T)) scale_q(context);
    } else {
      for (int at = 16 * ptx::tid_x(); at < q_bytes(C, T); at += 16 * Context::kThreads) {
        const ptx::Vector4 words = ptx::ld_shared_v4(context.address_q(number) + at);
        ptx::st_shared_v4(context.address_own_q() + at, ptx::float_of_bits(words.x), ptx::float_of_bits(words.y),
                          ptx::float_of_bits(words.z), ptx::float_of_bits(words.w));
      }
      ptx::bar_sync();
    }
    if constexpr (T.alibi != 0) {
      const Params& params = context.params;
      const Extent extent = context.dealer.extent(run.len_q, run.len_kv);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = context.own_row(run, r), position = params.by_group_size.quotient(row);
        slopes[r] = tile::Score<T, Extent>{extent, context.score_params}.slope(
            run.batch, run.head_kv * params.group_size + row - position * params.group_size);
      }
    }
  }
  FC_DEVICE void load_q(const Context& context, ptx::SharedAddress tile) {
    typename TileQ::Lane lane_q;
    if constexpr (!keys_first(C)) lane_q = lane_of(context.own_q_rows(tile), context.lane);
#pragma unroll
    for (int d = 0; d < Context::kDim / 16; ++d) {
      if constexpr (has_quantised_cache(T)) load_q_of_codes<T, TileQ>(q[d], context.own_q_rows(tile), context.lane, d);
      else if constexpr (keys_first(C)) load_q_of_eight<TileQ>(q[d], context.own_q_rows(tile), context.lane, d);
      else ptx::ldmatrix_x4(q[d], context.template fragment<TileQ>(lane_q, 0, d));
    }
  }
  FC_DEVICE void scale_q(const Context& context) {
    if constexpr (keys_first(C)) {
      float own[1] = {factor_k};
      scale_rows_to_f16(q, own);
      spread_rows(factors, own[0], context.lane);
    } else {
      factors[0] = factors[1] = factor_k;
      scale_rows_to_f16(q, factors);
    }
  }
  // Fragments of the columns at hand, of a Q too wide for registers. Its rows begin at any address, which fragment()
  // does not take.
  FC_DEVICE void load_own_q(const Context& context, const typename TileQ::Lane& lane_q, int d) {
    if constexpr (has_quantised_cache(T)) {
#pragma unroll
      for (int i = 0; i < code_steps(T); ++i)
        load_q_of_codes<T, TileQ>(q[i], context.own_q_rows(context.address_own_q()), context.lane, d + i);
    } else {
      ptx::ldmatrix_x4(q[0], lane_q.at(0, d));
    }
  }

  // The scores of a block's keys: of what K stands for where each key has a factor of its own, else of what it stores.
  FC_DEVICE void multiply(const Context& context, Scores& acc_s, int number) {
    typename TileQ::Lane lane_q;  // set where ldmatrix may read Q: elsewhere it would give registers another order
    if constexpr (!keys_first(C) && !has_quantised_cache(T))
      lane_q = lane_of(context.own_q_rows(context.address_own_q()), context.lane);
    const typename TileK::Lane lane_k = TileK::lane_columns_first(
        context.address_k(number) + context.key_warp * Context::kKeys * TileK::kPitch, context.lane);
    tile::set_zero(acc_s);
    constexpr int kSteps = code_steps(T);
#pragma unroll
    for (int d = 0; d < Context::kDim / 16; d += kSteps) {
      const int at = keeps_q(T) ? d : 0;
      if constexpr (!keeps_q(T)) load_own_q(context, lane_q, d);
#pragma unroll
      for (int n = 0; n < Context::kKeys / 16; ++n) {
        unsigned codes[4];
        ptx::ldmatrix_x4(codes, context.template fragment<TileK>(lane_k, n, d / kSteps));
        multiply_sixteen_keys<T>(acc_s, n, q, at, codes);
      }
    }
    if constexpr (scales_q(T) && keys_first(C)) scale_eight_rows(acc_s, factors);
    else if constexpr (scales_q(T)) tile::scale_rows(acc_s, factors);
    if constexpr (T.token_factors) multiply_by_factors(acc_s, context.own_factors(number));
    if constexpr (marks_missing(T))
      spoil_missing(acc_s,
                    context.address_missing(number) + 4 * (context.key_warp * Context::kKeys + context.own_key()));
  }
  // Functions of scores, and the mask.
  FC_DEVICE void transform(const Context& context, Scores& acc_s, const Run& run, int of_block) const {
    const Extent extent = context.dealer.extent(run.len_q, run.len_kv);
    const tile::Mask<T, Extent> mask{extent};
    const int block = of_block * C.key_warps + context.key_warp;  // of the warp's keys
    const int first_key = block * Context::kKeys + context.own_key();
    const Params& params = context.params;
    const int first_row = run.first_row + C.warp_rows * context.row_warp;
    const int first = params.by_group_size.quotient(first_row);
    const int last = tile::min_int(params.by_group_size.quotient(first_row + C.warp_rows - 1), run.len_q - 1);
    const auto position = [&](int r) { return params.by_group_size.quotient(context.own_row(run, r)); };
    // Functions of scores take what k stands for.
    if constexpr (changes_scores(T) && has_quantised_cache(T) && !scales_q(T) && !T.token_factors) {
#pragma unroll
      for (int n = 0; n < Context::kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_s[n][i] *= factor_k;
    }
    if constexpr (transforms_scores(T)) {
      const tile::Score<T, Extent> score{extent, context.score_params};
      score.apply(acc_s, slopes, score.template side<Context::kKeys>(block, first, last), first_key,
                  {position(0), position(1)});
    }
    if constexpr (T.score_expression)
      express<false>(acc_s, params, context.expression_params, extent, run,
                     {context.own_row(run, 0), context.own_row(run, 1)}, first_key);
    if (const tile::Cut cut = mask.template cut<Context::kKeys>(block, first, last); cut.any()) {
      if constexpr (keys_first(C)) mask_eight_rows(mask, acc_s, first_key, {position(0), position(1)});
      else mask.apply(acc_s, cut, first_key, {position(0), position(1)});
    }
    if constexpr (T.mask_expression)
      express<true>(acc_s, params, context.expression_params, extent, run,
                    {context.own_row(run, 0), context.own_row(run, 1)}, first_key);
  }
  // Whether a row of the warp sees a key of its part of the block.
  FC_DEVICE bool sees(const Context& context, const Run& run, int block) const {
    const Extent extent = context.dealer.extent(run.len_q, run.len_kv);
    const tile::Mask<T, Extent> mask{extent};
    const int first_row = run.first_row + C.warp_rows * context.row_warp;
    const int first_key = block * C.block_n + context.key_warp * Context::kKeys;
    const tile::FastDivide& by_group_size = context.params.by_group_size;
    const int first = by_group_size.quotient(first_row);
    const int last = tile::min_int(by_group_size.quotient(first_row + C.warp_rows - 1), run.len_q - 1);
    return first_key < mask.end_of(last) && first_key + Context::kKeys > mask.begin_of(first);
  }
};

}  // namespace flashcore::sm80_decode_fwd
