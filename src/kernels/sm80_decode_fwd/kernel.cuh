#pragma once
// Forward attention for few query rows on many keys, where time is what reading K and V takes: a wave of CTAs each of
// which reads an equal share of all keys, through a ring of blocks that goes on from tile to tile. Rows are queries of
// all heads of a key head. CTAs that share a tile leave parts in global memory, and the last one merges them.

#include "kernels/sm80_decode_fwd/loader.cuh"
#include "kernels/sm80_decode_fwd/scores.cuh"
#include "kernels/sm80_decode_fwd/values.cuh"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C>
struct Kernel {
  using Context = sm80_decode_fwd::Context<T, C>;
  using Activity = tile::Activity;

  // Handed to the others at each call. With a reference to it in them the compiler makes registers of members later,
  // and other code.
  Context context;
  int end;  // of this CTA's units
  Loader<T, C> loader;
  Queries<T, C> queries;
  Output<T, C> output;

  FC_DEVICE Kernel(const Params& params, const ScoreParams* score, const RaggedParams* ragged, const PagedParams* paged,
                   const Factored<T>* descales = nullptr, const ExpressionParams* expression = nullptr)
      : context(params, score, ragged, paged, descales, expression) {}

  // --- steps ------------------------------------------------------------------------------------------------------
  // Of one thread, of the warp that has the fewest pages to look up.
  FC_DEVICE static bool makes_steps() { return ptx::tid_x() == Context::kThreads - 32; }
  FC_DEVICE static int flag_of_whole(int block, int begin, int end) {
    return begin <= block && block < end ? Step::kWhole : 0;
  }
  FC_DEVICE void begin_run_at(int number, int slot, int unit) {
    const Run run = context.dealer.find(unit, end);
    context.write_run(slot, run);
    context.write_step(
        number, {run.begin, Step::kFirst | flag_of_whole(run.begin, run.whole_begin, run.whole_end), slot, run.end});
  }
  // The step after step `number - 1`.
  FC_DEVICE void make_step(int number) {
    Step step = context.read_step(number - 1);
    if (step.block >= 0) {
      if (++step.block >= step.run_end)
        return begin_run_at(number, (step.run + 1) & (Context::kSlots - 1),
                            int_of_bits(ptx::ld_shared_u32(context.address_next_unit(step.run))));
      const ptx::Vector4 words = ptx::ld_shared_v4(context.address_run(step.run) + 32);
      step.flags = flag_of_whole(step.block, int_of_bits(words.z), int_of_bits(words.w));
    }
    context.write_step(number, step);
  }

  // --- a block ----------------------------------------------------------------------------------------------------
  FC_DEVICE void compute(int number, const Step& step) {
    if (step.flags & Step::kFirst) queries.begin_run(context, number, context.read_run(step));
    const bool is_whole = step.flags & Step::kWhole;
    if (!is_whole && !queries.sees(context, context.read_run(step), step.block)) return;
    typename Context::Scores acc_s;
    context.mark(Activity::kQk, step.block);
    queries.multiply(context, acc_s, number);
    context.mark(Activity::kMask, step.block);
    if (transforms_scores(T) || has_expression(T) || !is_whole)
      queries.transform(context, acc_s, context.read_run(step), step.block);
    context.mark(Activity::kSoftmax, step.block);
    float rescale[2];  // of this function, not of one it calls: registers follow the order of locals
    float scale_log2 = context.problem().scale_log2;
    if constexpr (has_quantised_cache(T) && !changes_scores(T) && !scales_q(T) && !T.token_factors)
      scale_log2 *= queries.factor_k;
    output.softmax.update(acc_s, scale_log2, rescale);
    if constexpr (T.token_factors) output.weigh_by_factors(context, acc_s, number, rescale);
    output.rescale_to_new_max(rescale);
    context.mark(Activity::kPv, step.block);
    output.add(context, acc_s, number);
  }
  // Before a run and after its end, when the compiler need not keep what was there.
  FC_DEVICE void clear() {
    queries.clear();
    output.clear();
  }

  FC_DEVICE void run() {
    context.begin_role(tile::Role::kWarp);
    context.dealer.make();
    ptx::bar_sync();
    context.dealer.write_bad();
    const Shares shares = context.dealer.shares();
    if (ptx::ctaid_x() >= shares.ctas) return context.end_role();
    end = shares.begin_of(ptx::ctaid_x() + 1);
    if (makes_steps()) {
      // As if a run had ended before.
      context.write_step(-1, {0, 0, Context::kSlots - 1, 0});
      ptx::st_shared_u32(context.address_next_unit(Context::kSlots - 1), shares.begin_of(ptx::ctaid_x()));
    }
    clear();
    // The code that makes a step is long: once, it is in the instruction cache sooner.
#pragma unroll 1
    for (int number = -1 - Context::kStages;; ++number) {
      const int ahead = number + Context::kStages - 1;  // what is loaded now
      context.mark(Activity::kWaitK, number);
      ptx::cp_async_wait<Context::kStages - 2>();
      if (ahead >= 0) loader.store_pages(context, ahead);
      if constexpr (T.token_factors) {
        if (ahead >= 1) loader.store_factors(context, ahead - 1);
      }
      // Everybody's copies are visible, and the pages and steps; everybody has left the stage that is loaded next.
      ptx::bar_sync();
      if (ahead >= 0) loader.load(context, ahead);
      if (ahead >= -1) loader.look_up(context, ahead + 1);
      if (makes_steps()) make_step(ahead + 2);
      if (number < 0) continue;
      const Step step = context.read_step(number);
      if (step.block < 0) break;
      compute(number, step);
      if (step.block + 1 < step.run_end) continue;
      output.finish(context, number, step);
      clear();
    }
    context.end_role();
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward(const __grid_constant__ Params params) {
  Kernel<T, C>(params, nullptr, nullptr, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_scored(const __grid_constant__ Scored<Params> params) {
  Kernel<T, C>(params.plain, &params.score, nullptr, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged(const __grid_constant__ Ragged<Params> params) {
  Kernel<T, C>(params.plain, &params.score, &params.ragged, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged(const __grid_constant__ Paged<Params> params) {
  Kernel<T, C>(params.plain, &params.score, &params.ragged, &params.paged).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised(const __grid_constant__ Quantised<Params> params) {
  Kernel<T, C>(params.plain, nullptr, nullptr, nullptr, &params).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_scored(const __grid_constant__ Scored<Quantised<Params>> params) {
  Kernel<T, C>(params.plain.plain, &params.score, nullptr, nullptr, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_ragged(const __grid_constant__ Ragged<Quantised<Params>> params) {
  Kernel<T, C>(params.plain.plain, &params.score, &params.ragged, nullptr, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_paged(const __grid_constant__ Paged<Quantised<Params>> params) {
  Kernel<T, C>(params.plain.plain, &params.score, &params.ragged, &params.paged, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8(const __grid_constant__ Fp8Params params) {
  Kernel<with_cache_of_q(T), C>(params.plain, nullptr, nullptr, nullptr, &params).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_scored(const __grid_constant__ Scored<Fp8Params> params) {
  Kernel<with_cache_of_q(T), C>(params.plain.plain, &params.score, nullptr, nullptr, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_ragged(const __grid_constant__ Ragged<Fp8Params> params) {
  Kernel<with_cache_of_q(T), C>(params.plain.plain, &params.score, &params.ragged, nullptr, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_paged(const __grid_constant__ Paged<Fp8Params> params) {
  Kernel<with_cache_of_q(T), C>(params.plain.plain, &params.score, &params.ragged, &params.paged, &params.plain).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_expressed(const __grid_constant__ Expressed<Params> params) {
  Kernel<T, C>(params.plain, &params.score, nullptr, nullptr, nullptr, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params>> params) {
  const Ragged<Params>& all = params.all;
  Kernel<T, C>(all.plain, &all.score, &all.ragged, nullptr, nullptr, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Params>> params) {
  const Paged<Params>& all = params.all;
  Kernel<T, C>(all.plain, &all.score, &all.ragged, &all.paged, nullptr, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_expressed(const __grid_constant__ Expressed<Quantised<Params>> params) {
  const Quantised<Params>& own = params.plain;
  Kernel<T, C>(own.plain, &params.score, nullptr, nullptr, &own, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Quantised<Params>>> params) {
  const Ragged<Quantised<Params>>& all = params.all;
  Kernel<T, C>(all.plain.plain, &all.score, &all.ragged, nullptr, &all.plain, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Quantised<Params>>> params) {
  const Paged<Quantised<Params>>& all = params.all;
  Kernel<T, C>(all.plain.plain, &all.score, &all.ragged, &all.paged, &all.plain, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_expressed(const __grid_constant__ Expressed<Fp8Params> params) {
  const Fp8Params& own = params.plain;
  Kernel<with_cache_of_q(T), C>(own.plain, &params.score, nullptr, nullptr, &own, &params.expression).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Fp8Params>> params) {
  const Ragged<Fp8Params>& all = params.all;
  Kernel<with_cache_of_q(T), C>(all.plain.plain, &all.score, &all.ragged, nullptr, &all.plain, &params.expression)
      .run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_fp8_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Fp8Params>> params) {
  const Paged<Fp8Params>& all = params.all;
  Kernel<with_cache_of_q(T), C>(all.plain.plain, &all.score, &all.ragged, &all.paged, &all.plain, &params.expression)
      .run();
}

}  // namespace flashcore::sm80_decode_fwd
