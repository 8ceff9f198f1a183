#pragma once
// P·V of a warp in sm80_decode_fwd: the softmax and the O of its rows, and how O leaves at the end of a run. The loop
// is one, as that of the scores.

#include "kernels/sm80_decode_fwd/context.cuh"
#include "kernels/sm80_decode_fwd/keys_first.cuh"
#include "kernels/sm80_decode_fwd/merge.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C>
struct Output {
  using Context = sm80_decode_fwd::Context<T, C>;
  using Activity = tile::Activity;
  using TileV = typename Context::TileV;
  using Scores = typename Context::Scores;

  float acc_o[Context::kDimV / 8][Context::kWords];
  typename Choice<keys_first(C), SoftmaxOfEight, tile::OnlineSoftmax>::Type softmax;
  ValueUnit unit;  // where each value has a factor of its own

  FC_DEVICE void clear() {
    softmax.reset();
    if constexpr (T.token_factors) unit.reset();
    tile::set_zero(acc_o);
  }

  // O becomes what it is under the new maxima. Those of most blocks are those of blocks before.
  FC_DEVICE void rescale_to_new_max(const float (&rescale)[2]) {
    if (ptx::vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) {
      if constexpr (keys_first(C)) scale_eight_rows(acc_o, rescale);
      else tile::scale_rows(acc_o, rescale);
    }
  }
  // Weights become those of what V stores.
  FC_DEVICE void weigh_by_factors(const Context& context, Scores& acc_s, int number, float (&rescale)[2]) {
    multiply_by_factors(acc_s, context.own_factors(number) + 4 * C.block_n);
    if constexpr (weight_scale(T) != 1.0f) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rescale[r] *= unit.follow(largest_weight(acc_s, r), rescale[r], r);
        scale_row(acc_s, r, unit.to_weight(r));
      }
    }
  }
  FC_DEVICE void add(const Context& context, const Scores& acc_s, int number) {
    const typename TileV::Lane lane_v = TileV::lane_rows_first(
        context.address_v(number) + context.key_warp * Context::kKeys * TileV::kPitch, context.lane);
    constexpr int kSteps = code_steps(T);
#pragma unroll
    for (int n = 0; n < Context::kKeys / 16; ++n) {
      unsigned p[Context::kWords];
      pack_weights<T>(p, acc_s, n);
#pragma unroll
      for (int d = 0; d < Context::kDimV / 16; d += kSteps) {
        unsigned codes[4];
        ptx::ldmatrix_x4_trans(codes, context.template fragment<TileV>(lane_v, n, d / kSteps));
        multiply_sixteen_values<T>(acc_o, 2 * d, p, codes);
      }
    }
  }

  // --- the end of a run ---------------------------------------------------------------------------------------------
  FC_DEVICE void finish(Context& context, int number, const Step& step) {
    context.mark(Activity::kMerge, step.block);
    const Run run = context.read_run(step);
    if constexpr (keys_first(C)) finish_eight(context, number, run);
    else finish_sixteen(context, number, run);
  }
  FC_DEVICE Finish<T, C> rest_of(const Context& context, const Run& run) const {
    return {context.params,   context.score_params, run, context.lane, context.row_warp,
            context.key_warp, context.descales};
  }
  FC_DEVICE OverKeyWarps<T, C> over_key_warps(const Context& context, int number) const {
    return {context.address_q(number) + context.row_warp * exchange_bytes(C, T), context.key_warp};
  }
  FC_DEVICE void finish_sixteen(Context& context, int number, const Run& run) {
    tile::RowState state = tile::RowState::of(softmax);
    if constexpr (T.token_factors && weight_scale(T) != 1.0f) sort_columns<T>(acc_o, unit.undone(0), unit.undone(1));
    else if constexpr (has_quantised_cache(T)) sort_columns<T>(acc_o);
    if constexpr (C.key_warps == 1) {
      end_of_run(context, rest_of(context, run), state, acc_o);
    } else {
      ptx::bar_sync();  // all warps have read this stage
      float o[warp_chunks(C, T)][4];
      tile::exchange<C.key_warps, warp_chunks(C, T), all_chunks(T), false>(
          over_key_warps(context, number), context.key_warp, context.lane, [&](int c, int i) { return acc_o[c][i]; },
          state, o);
      end_of_run(context, rest_of(context, run), state, o);
    }
  }
  FC_DEVICE void finish_eight(Context& context, int number, const Run& run) {
    constexpr int kOwn = warp_chunks(C, T);
    tile::RowState state = softmax.state();
    float own[kOwn][2], o[kOwn][4];
    if constexpr (T.token_factors) scale_eight_rows(acc_o, {unit.undone(0), unit.undone(1)});  // each key warp's own
    if constexpr (C.key_warps == 1) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) own[c][0] = acc_o[c][0], own[c][1] = acc_o[c][1];
    } else {
      ptx::bar_sync();  // as above
      float pairs[kOwn / 2][4];
      tile::exchange<C.key_warps, kOwn / 2, all_chunks(T) / 2, false>(
          over_key_warps(context, number), context.key_warp, LaneOfEight{context.lane},
          [&](int c, int i) { return acc_o[2 * c + i % 2][i / 2]; }, state, pairs);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) own[c][0] = pairs[c / 2][c % 2], own[c][1] = pairs[c / 2][2 + c % 2];
    }
    transpose_eight_rows(o, own, context.lane);
    if constexpr (T.token_factors) sort_columns<T>(o, 1.0f, 1.0f);
    else if constexpr (has_quantised_cache(T)) sort_columns<T>(o);
    end_of_run(context, rest_of(context, run), transpose_state(state, context.lane), o);
  }
  template <class Chunks>
  FC_DEVICE void end_of_run(Context& context, const Finish<T, C>& rest, const tile::RowState& state, const Chunks& o) {
    const Run& run = rest.run;
    if (run.unit == run.tile_unit && run.next_unit == run.tile_unit + run.tile_units) {
      context.mark(Activity::kEpilogue);
      return rest.store(state, o);
    }
    const PartsOfTile all = PartsOfTile::of<C>(run, context.dealer.shares());
    rest.write_part(all.own_slot(), state, o);
    // Once, or of a group first: the code that merges is long, and exists once.
#pragma unroll 1
    for (Parts parts = all.has_groups() ? all.of_group() : all.of_tile();; parts = all.of_tile()) {
      context.mark(Activity::kWaitPartner);
      if (!rest.arrive(parts, context.address_flags() + 4)) return;
      context.mark(Activity::kEpilogue);
      rest.merge(parts);
      if (parts.are_tile) return;
    }
  }
};

}  // namespace flashcore::sm80_decode_fwd
