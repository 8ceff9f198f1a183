#pragma once
// The naive kernel: one warp per query row, plain loads, fp32 throughout. It is the start of the lineage and the oracle
// that large problems are compared with on the device, so it is kept simple enough to be seen to be right.

#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ref_fwd/config.h"
#include "kernels/tile/amax.cuh"
#include "kernels/tile/element_fp8.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/sequence.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::ref_fwd {

FC_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += ptx::shfl_bfly(value, mask);
  return value;
}

// Whose factors: a row of q.
struct Row {
  int batch, head_q, head_kv, row;
};
// Factors of what q, k and v store.
struct NoDescales {
  FC_DEVICE float scores(const Row&) const { return 1.0f; }
  FC_DEVICE float values(int, int) const { return 1.0f; }
};
struct Descales {
  const Fp8ForwardParams& params;
  FC_DEVICE float scores(const Row& of) const {
    return tile::descale(params.descale_q, of.batch, of.head_kv) *
           tile::descale(params.descale_k, of.batch, of.head_kv);
  }
  FC_DEVICE float values(int batch, int head_kv) const { return tile::descale(params.descale_v, batch, head_kv); }
};
// Of 8 bits with a factor for each row of q and each key.
struct RowDescales : Descales {
  FC_DEVICE float scores(const Row& of) const { return tile::descale(params.descale_q, of.batch, of.head_q, of.row); }
  FC_DEVICE float of_key(int batch, int head_kv, int key) const {
    return tile::descale(params.descale_k, batch, head_kv, key);
  }
  FC_DEVICE float of_value(int, int, int) const { return 1.0f; }
};
template <Traits T>
FC_DEVICE auto descales_of(const Fp8ForwardParams& params) {
  if constexpr (T.token_factors) return RowDescales{{params}};
  else return Descales{params};
}

struct CacheDescales {
  const Descale &k, &v;
  FC_DEVICE float scores(const Row& of) const { return tile::descale(k, of.batch, of.head_kv); }
  FC_DEVICE float values(int batch, int head_kv) const { return tile::descale(v, batch, head_kv); }
};

// Of a cache with a factor for each key, which scores and weights are multiplied with one by one; `batch`: of k and v.
struct TokenDescales {
  const Descale &k, &v;
  FC_DEVICE float scores(const Row&) const { return 1.0f; }
  FC_DEVICE float values(int, int) const { return 1.0f; }
  FC_DEVICE float of_key(int batch, int head_kv, int key) const { return tile::descale(k, batch, head_kv, key); }
  FC_DEVICE float of_value(int batch, int head_kv, int key) const { return tile::descale(v, batch, head_kv, key); }
};
template <Traits T, class Params>
FC_DEVICE auto descales_of_cache(const Params& params) {
  if constexpr (T.token_factors) return TokenDescales{params.descale_k, params.descale_v};
  else return CacheDescales{params.descale_k, params.descale_v};
}

// P may be as large as 2^8 then, which costs fp32 nothing.
constexpr float kRiseLog2 = 8.0f;

// The row of this warp.
struct Item {
  long long index;  // of all rows
  int batch, head_q, row;
};

// False where there is none.
template <Config C>
FC_DEVICE bool find_item(const ForwardParams& params, Item& item) {
  item.index = static_cast<long long>(ptx::ctaid_x()) * C.num_warps + ptx::tid_x() / 32;
  if (item.index >= static_cast<long long>(params.batch) * params.heads_q * params.seqlen_q) return false;
  item.row = static_cast<int>(item.index % params.seqlen_q);
  const long long head_index = item.index / params.seqlen_q;
  item.head_q = static_cast<int>(head_index % params.heads_q);
  item.batch = static_cast<int>(head_index / params.heads_q);
  return true;
}

// `batch` is that of the tensors, item.batch that of slopes and factors: a ragged batch's sequences are one by one at
// 0. kTransposedV: v is [batch, heads_kv, head_dim_v, seqlen_kv], and v_stride.row leads from column to column.
template <Traits T, Config C, bool kTransposedV = false, class Factors>
FC_DEVICE void attend_row(const ForwardParams& params, const ScoreParams* of_scores, const Factors& factors, int batch,
                          const Item& item, const ExpressionParams* of_expressions = nullptr,
                          const PagedParams* of_pages = nullptr, float* amax = nullptr) {
  const int head_q = item.head_q, row = item.row;
  constexpr int kPerLane = (T.head_dim + 31) / 32;
  constexpr int kPerLaneV = (T.head_dim_v + 31) / 32;
  const int lane = ptx::tid_x() % 32;
  const int head_kv = head_q / (params.heads_q / params.heads_kv);
  // Functions of scores take what q and k stand for.
  const tile::Score<T> score{params, of_scores};
  float factor = 1.0f, scale_log2 = params.scale_log2;
  const Row of_factors = {item.batch, head_q, head_kv, row};
  if constexpr (transforms_scores(T) || T.score_expression) factor = factors.scores(of_factors);
  else scale_log2 = params.scale_log2 * factors.scores(of_factors);
  const float slope = score.slope(item.batch, head_q);
  const tile::Expressions<> expressions{params, of_expressions};
  const tile::Head head = {item.batch, head_q, head_kv};

  const long long q_row = batch * params.q_stride.batch + head_q * params.q_stride.head + row * params.q_stride.row;
  const long long k_head = batch * params.k_stride.batch + head_kv * params.k_stride.head;
  const long long v_head = batch * params.v_stride.batch + head_kv * params.v_stride.head;

  // Lane l holds columns l, l + 32, ...
  float q[kPerLane], o[kPerLaneV];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int column = lane + 32 * i;
    q[i] = column < T.head_dim ? tile::load_any<T.element>(params.q, q_row + column) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kPerLaneV; ++i) o[i] = 0.0f;

  const KeyRange<int> keys = tile::Mask<T, ForwardParams>{params}.keys_of_row(row);

  float max_scaled = ptx::negative_infinity(), sum = 0.0f;
  float largest_score = 0.0f, largest_o = 0.0f;
  for (int key = keys.begin; key < keys.end; ++key) {
    if constexpr (T.mask_expression) {
      float one[1] = {0.0f};
      expressions.mask(one, head, key, {row, row});
      if (one[0] != 0.0f) continue;
    }
    int page = 0, in_page = key;
    bool is_missing = false;
    if constexpr (T.paged) {
      page = tile::page_of_key(*of_pages, item.batch, key), in_page = key % of_pages->page_size;
      is_missing = page < 0;
    }
    const long long k_row = k_head + page * params.k_stride.batch + in_page * params.k_stride.row;
    const long long v_row = v_head + page * params.v_stride.batch + in_page * params.v_stride.row;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = lane + 32 * i;
      if (column < T.head_dim && !is_missing)
        dot = ptx::fma(q[i], tile::load_any<element_of_cache(T)>(params.k, k_row + column), dot);
    }
    dot = warp_sum(dot);
    if constexpr (T.token_factors)
      if (!is_missing) dot *= factors.of_key(T.paged ? page : item.batch, head_kv, in_page);
    if (is_missing) dot = ptx::float_of_bits(0x7fffffffu);
    if constexpr (transforms_scores(T)) {
      float one[1] = {dot * factor};
      score.apply(one, slope, tile::Side::kBoth, key, {row, row});
      dot = one[0];
    }
    if constexpr (T.score_expression) {
      float one[1] = {transforms_scores(T) ? dot : dot * factor};
      expressions.score(one, head, key, {row, row});
      dot = one[0];
    }
    if constexpr (T.amax)
      if (dot != ptx::negative_infinity()) largest_score = tile::larger(largest_score, dot);
    // Online softmax in base 2; a NaN score is skipped by the maximum and reaches o and sum through exp2.
    float new_max = ptx::max(max_scaled, dot * scale_log2);
    // Scores that rise from key to key, as ALiBi makes them, would rescale at each: errors of exp2, all in one
    // direction, once more for every key (LSE off by 2.7e-5 at 4096 keys on an H200). So the reference point rises in
    // steps.
    if constexpr (T.alibi != 0 || T.score_expression)
      if (new_max <= max_scaled + kRiseLog2) new_max = max_scaled;
    const float rescale = tile::weight(max_scaled, new_max);
    const float p = ptx::ex2(ptx::fma(dot, scale_log2, -tile::finite_max(new_max)));
    max_scaled = new_max;
    sum = ptx::fma(sum, rescale, p);
    float weight = p;
    if constexpr (T.token_factors)
      if (!is_missing) weight *= factors.of_value(T.paged ? page : item.batch, head_kv, in_page);
#pragma unroll
    for (int i = 0; i < kPerLaneV; ++i) {
      const int column = lane + 32 * i;
      if (column < T.head_dim_v) {
        const float value = is_missing ? 0.0f
                            : kTransposedV
                                ? tile::load_any<T.element>(params.v, v_head + column * params.v_stride.row + key)
                                : tile::load_any<element_of_cache(T)>(params.v, v_row + column);
        o[i] = ptx::fma(weight, value, o[i] * rescale);
      }
    }
  }

  float lse = 0.0f, weight;
  if constexpr (T.sink) weight = tile::add_sink(max_scaled, sum, score.sink_log2(head_q), lse);
  else weight = tile::inverse_sum(sum);
  const float scale = weight * factors.values(item.batch, head_kv);
  const long long o_row = batch * params.o_stride.batch + head_q * params.o_stride.head + row * params.o_stride.row;
#pragma unroll
  for (int i = 0; i < kPerLaneV; ++i) {
    const int column = lane + 32 * i;
    if (column < T.head_dim_v) tile::store_any<T.output>(params.o, o_row + column, o[i] * scale);
    if constexpr (T.amax)
      if (column < T.head_dim_v) largest_o = tile::larger(largest_o, o[i]);
  }
  if constexpr (T.amax) tile::raise_amax(amax, params.heads_q, head_q, largest_score * scale_log2, largest_o * scale);
  if (params.lse && lane == 0)
    ptx::st_global_f32(params.lse + item.index, T.sink ? lse : tile::log_sum_exp(max_scaled, sum));
}

template <Traits T, Config C, bool kTransposedV = false, class Factors>
FC_DEVICE void attend(const ForwardParams& params, const ScoreParams* of_scores, const Factors& factors,
                      const ExpressionParams* of_expressions = nullptr, float* amax = nullptr) {
  Item item;
  if (!find_item<C>(params, item)) return;
  attend_row<T, C, kTransposedV>(params, of_scores, factors, item.batch, item, of_expressions, nullptr, amax);
}

// The grid is that of sequences as long as the bounds.
template <Traits T, Config C, class Factors>
FC_DEVICE void attend_ragged(const ForwardParams& bounds, const ScoreParams& of_scores, const RaggedParams& ragged,
                             const Factors& factors, const PagedParams* of_pages = nullptr,
                             const ExpressionParams* of_expressions = nullptr, float* amax = nullptr) {
  Item item;
  if (!find_item<C>(bounds, item)) return;
  tile::Sequence sequence;
  if constexpr (T.paged) sequence = tile::paged_sequence_at(ragged, *of_pages, bounds, item.batch);
  else sequence = tile::sequence_at(ragged, bounds, item.batch);
  const ForwardParams one = tile::params_of<T>(bounds, ragged, sequence, item.head_q);
  if (sequence.bad)
    return tile::write_bad_rows<T>(one, item.head_q, item.row, 1, bounds.seqlen_q, ptx::tid_x() % 32, 32);
  if (item.row >= sequence.len_q) return;
  item.index = static_cast<long long>(item.head_q) * one.seqlen_q + item.row;
  attend_row<T, C>(one, &of_scores, factors, 0, item, of_expressions, of_pages, amax);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ ForwardParams params) {
  attend<T, C>(params, nullptr, NoDescales{});
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8(const __grid_constant__ tile::Fp8Params<T> params) {
  const Fp8ForwardParams& own = tile::plain_of(params);
  attend<T, C>(own.problem, nullptr, descales_of<T>(own), nullptr, tile::amax_of(params));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_scored(const __grid_constant__ Scored<ForwardParams> params) {
  attend<T, C>(params.plain, &params.score, NoDescales{});
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_scored(const __grid_constant__ Scored<tile::Fp8Params<T>> params) {
  const Fp8ForwardParams& own = tile::plain_of(params.plain);
  attend<T, C>(own.problem, &params.score, descales_of<T>(own), nullptr, tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_vdn(const __grid_constant__ tile::Fp8Params<T> params) {
  const Fp8ForwardParams& own = tile::plain_of(params);
  attend<T, C, true>(own.problem, nullptr, descales_of<T>(own), nullptr, tile::amax_of(params));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_vdn_scored(const __grid_constant__ Scored<tile::Fp8Params<T>> params) {
  const Fp8ForwardParams& own = tile::plain_of(params.plain);
  attend<T, C, true>(own.problem, &params.score, descales_of<T>(own), nullptr, tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_expressed(const __grid_constant__ Expressed<ForwardParams> params) {
  attend<T, C>(params.plain, &params.score, NoDescales{}, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_ragged(const __grid_constant__ Ragged<ForwardParams> params) {
  attend_ragged<T, C>(params.plain, params.score, params.ragged, NoDescales{});
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<ForwardParams>> params) {
  const Ragged<ForwardParams>& all = params.all;
  attend_ragged<T, C>(all.plain, all.score, all.ragged, NoDescales{}, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<ForwardParams>> params) {
  const Paged<ForwardParams>& all = params.all;
  attend_ragged<T, C>(all.plain, all.score, all.ragged, NoDescales{}, &all.paged, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_ragged(const __grid_constant__ Ragged<tile::Fp8Params<T>> params) {
  const Fp8ForwardParams& own = tile::plain_of(params.plain);
  attend_ragged<T, C>(own.problem, params.score, params.ragged, Descales{own}, nullptr, nullptr,
                      tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_paged(const __grid_constant__ Paged<ForwardParams> params) {
  attend_ragged<T, C>(params.plain, params.score, params.ragged, NoDescales{}, &params.paged);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_paged(const __grid_constant__ Paged<tile::Fp8Params<T>> params) {
  const Fp8ForwardParams& own = tile::plain_of(params.plain);
  attend_ragged<T, C>(own.problem, params.score, params.ragged, Descales{own}, &params.paged, nullptr,
                      tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_expressed(const __grid_constant__ Expressed<tile::Fp8Params<T>> params) {
  const Fp8ForwardParams& own = tile::plain_of(params.plain);
  attend<T, C>(own.problem, &params.score, descales_of<T>(own), &params.expression, tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_vdn_expressed(const __grid_constant__ Expressed<tile::Fp8Params<T>> params) {
  const Fp8ForwardParams& own = tile::plain_of(params.plain);
  attend<T, C, true>(own.problem, &params.score, descales_of<T>(own), &params.expression, tile::amax_of(params.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<tile::Fp8Params<T>>> params) {
  const Ragged<tile::Fp8Params<T>>& all = params.all;
  const Fp8ForwardParams& own = tile::plain_of(all.plain);
  attend_ragged<T, C>(own.problem, all.score, all.ragged, Descales{own}, nullptr, &params.expression,
                      tile::amax_of(all.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_fp8_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<tile::Fp8Params<T>>> params) {
  const Paged<tile::Fp8Params<T>>& all = params.all;
  const Fp8ForwardParams& own = tile::plain_of(all.plain);
  attend_ragged<T, C>(own.problem, all.score, all.ragged, Descales{own}, &all.paged, &params.expression,
                      tile::amax_of(all.plain));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised(const __grid_constant__ Quantised<ForwardParams> params) {
  attend<T, C>(params.plain, nullptr, descales_of_cache<T>(params));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised_scored(const __grid_constant__ Scored<Quantised<ForwardParams>> params) {
  const Quantised<ForwardParams>& own = params.plain;
  attend<T, C>(own.plain, &params.score, descales_of_cache<T>(own));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised_ragged(const __grid_constant__ Ragged<Quantised<ForwardParams>> params) {
  const Quantised<ForwardParams>& own = params.plain;
  attend_ragged<T, C>(own.plain, params.score, params.ragged, descales_of_cache<T>(own));
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised_paged(const __grid_constant__ Paged<Quantised<ForwardParams>> params) {
  const Quantised<ForwardParams>& own = params.plain;
  attend_ragged<T, C>(own.plain, params.score, params.ragged, descales_of_cache<T>(own), &params.paged);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised_expressed(const __grid_constant__ Expressed<Quantised<ForwardParams>> params) {
  const Quantised<ForwardParams>& own = params.plain;
  attend<T, C>(own.plain, &params.score, descales_of_cache<T>(own), &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Quantised<ForwardParams>>> params) {
  const Ragged<Quantised<ForwardParams>>& all = params.all;
  attend_ragged<T, C>(all.plain.plain, all.score, all.ragged, descales_of_cache<T>(all.plain), nullptr,
                      &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_quantised_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Quantised<ForwardParams>>> params) {
  const Paged<Quantised<ForwardParams>>& all = params.all;
  attend_ragged<T, C>(all.plain.plain, all.score, all.ragged, descales_of_cache<T>(all.plain), &all.paged,
                      &params.expression);
}

}  // namespace flashcore::ref_fwd
