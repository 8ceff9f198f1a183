// One task: a block of query rows over a range of keys.
#if defined(FLASHCORE_CPU_FWD_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_ATTEND_INL_H_
#undef FLASHCORE_CPU_FWD_ATTEND_INL_H_
#else
#define FLASHCORE_CPU_FWD_ATTEND_INL_H_
#endif

#include <cmath>

#include "kernels/cpu_fwd/pack-inl.h"
#include "kernels/cpu_fwd/plan.h"
#include "kernels/cpu_fwd/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashcore::cpu_fwd {
namespace HWY_NAMESPACE {

// The rows of one task and where they stand, in the calling thread's scratch.
struct RowBlock {
  const Plan& plan;
  const Task& task;
  float* q;        // [row_count][q_stride], fp32
  float* o;        // [row_count][o_stride], not yet divided by row_sum
  float* row_max;  // of q · k, not scaled
  float* row_sum;
  float* k_panels;
  float* v_panels;
  float* scores;  // [kTileRows][score_stride]

  RowBlock(const Plan& plan_in, const Task& task_in, float* scratch)
      : plan(plan_in),
        task(task_in),
        q(scratch + plan.scratch.q),
        o(scratch + plan.scratch.o),
        row_max(scratch + plan.scratch.row_max),
        row_sum(scratch + plan.scratch.row_sum),
        k_panels(scratch + plan.scratch.k),
        v_panels(scratch + plan.scratch.v),
        scores(scratch + plan.scratch.scores) {}

  int visible_keys(int row) const { return plan.visible_keys(task.row_begin + row); }
};

template <Element kElement>
const Storage<kElement>* head_start(const void* base, const Strides& stride, int b, int head) {
  return static_cast<const Storage<kElement>*>(base) + b * stride.batch + head * stride.head;
}

template <Element kElement>
void load_q(const RowBlock& block) {
  const Plan& plan = block.plan;
  const FloatTag d;
  for (int row = 0; row < block.task.row_count; ++row) {
    const std::int64_t at = block.task.row_begin + row;
    const auto* head = head_start<kElement>(plan.params.q, plan.params.q_stride, block.task.batch,
                                            plan.head_of(block.task.head_kv, at));
    float* out = block.q + row * plan.scratch.q_stride;
    for_each_vector<kElement>(head + plan.query_of(at) * plan.params.q_stride.row, plan.traits.head_dim,
                              [&](int column, FloatVec x) { hn::Store(x, d, out + column); });
  }
}

inline void clear_state(const RowBlock& block) {
  const int rows = block.task.row_count;
  std::fill_n(block.o, static_cast<std::int64_t>(rows) * block.plan.scratch.o_stride, 0.0f);
  std::fill_n(block.row_max, rows, kMinusInfinity);
  std::fill_n(block.row_sum, rows, 0.0f);
}

// S = Q · Kᵀ for `rows` rows from `row` on, over the panels that hold the first `keys` keys of the block.
inline void compute_scores(const RowBlock& block, int row, int rows, int keys) {
  const ScratchLayout& scratch = block.plan.scratch;
  const int head_dim = block.plan.traits.head_dim;
  const std::int64_t panel_floats = std::int64_t{round_up(head_dim, kLanes)} * kPanel;
  const float* panel = block.k_panels;
  for (int key = 0; key < keys; key += kPanel, panel += panel_floats) {
    multiply_panel<false>(rows, keys - key, block.q + row * scratch.q_stride, scratch.q_stride, panel, head_dim,
                          nullptr, block.scores + key, scratch.score_stride);
  }
}

// O = diag(rescale) · O + P · V, where row r of the tile weighs its first keys[r] keys only. Keys that all rows of the
// tile see go through the full tile; a causal edge leaves each row a few more of its own. Weighing a masked key with 0
// instead would be wrong where its V is NaN or infinite.
inline void accumulate_output(const RowBlock& block, int row, int rows, const int* keys, int keys_in_block,
                              const float* rescale) {
  const ScratchLayout& scratch = block.plan.scratch;
  const int common = *std::min_element(keys, keys + rows);
  const float* panel = block.v_panels;
  for (int column = 0; column < block.plan.traits.head_dim_v;
       column += kPanel, panel += std::int64_t{keys_in_block} * kPanel) {
    const int columns = block.plan.traits.head_dim_v - column;
    float* o = block.o + row * scratch.o_stride + column;
    multiply_panel<true>(rows, columns, block.scores, scratch.score_stride, panel, common, rescale, o,
                         scratch.o_stride);
    for (int r = 0; r < rows; ++r) {
      if (keys[r] == common) continue;
      constexpr float kKeep = 1.0f;
      multiply_panel<true>(1, columns, block.scores + r * scratch.score_stride + common, 0, panel + common * kPanel,
                           keys[r] - common, &kKeep, o + r * scratch.o_stride, 0);
    }
  }
}

// The keys key_begin .. key_begin + keys_in_block - 1, already packed, for every row of the task that sees any of them.
template <Fault kFault>
void attend_block(const RowBlock& block, int key_begin, int keys_in_block) {
  const float scale_log2 = block.plan.params.scale_log2;
  for (int row = 0; row < block.task.row_count; row += kTileRows) {
    const int rows = std::min(kTileRows, block.task.row_count - row);
    int keys[kTileRows];
    for (int r = 0; r < rows; ++r) {
      const int visible = kFault == Fault::kMissingMask ? block.plan.params.seqlen_kv : block.visible_keys(row + r);
      keys[r] = std::clamp(visible - key_begin, 0, keys_in_block);
    }
    const int most = *std::max_element(keys, keys + rows);
    if (most == 0) continue;
    compute_scores(block, row, rows, most);
    HWY_ALIGN float new_max[kPaddedTileRows] = {};
    HWY_ALIGN float rescale[kPaddedTileRows];
    float* row_max = block.row_max + row;
    const auto scores_of = [&](int r) { return block.scores + r * block.plan.scratch.score_stride; };
    for (int r = 0; r < rows; ++r) new_max[r] = std::max(row_max[r], max_of(scores_of(r), keys[r]));
    rescale_factors(row_max, new_max, rows, scale_log2, rescale);
    if constexpr (kFault == Fault::kMissingRescale) std::fill_n(rescale, rows, 1.0f);
    for (int r = 0; r < rows; ++r) {
      const float sum = exponentiate(scores_of(r), keys[r], new_max[r], scale_log2);
      block.row_sum[row + r] = block.row_sum[row + r] * rescale[r] + sum;
      row_max[r] = new_max[r];
    }
    accumulate_output(block, row, rows, keys, keys_in_block, rescale);
  }
}

// o / row_sum and the log-sum-exp into the output tensors; 0 and -inf for a row that saw nothing but -inf.
template <Element kElement>
void store_output(const RowBlock& block) {
  const Plan& plan = block.plan;
  const ForwardParams& params = plan.params;
  const FloatTag d;
  for (int row = 0; row < block.task.row_count; ++row) {
    const std::int64_t at = block.task.row_begin + row;
    const int head = plan.head_of(block.task.head_kv, at);
    const int query = plan.query_of(at);
    const float sum = block.row_sum[row];
    const FloatVec divisor = hn::Set(d, sum == 0.0f ? 1.0f : sum);
    float* o = block.o + row * plan.scratch.o_stride;
    for (int column = 0; column < plan.traits.head_dim_v; column += kLanes) {
      hn::Store(hn::Div(hn::Load(d, o + column), divisor), d, o + column);
    }
    auto* out = static_cast<Storage<kElement>*>(params.o) + block.task.batch * params.o_stride.batch +
                head * params.o_stride.head + query * params.o_stride.row;
    store_row<kElement>(o, plan.traits.head_dim_v, out);
    if (params.lse != nullptr) {
      const float lse = sum == 0.0f ? kMinusInfinity : block.row_max[row] * params.scale + std::log(sum);
      params.lse[(std::int64_t{block.task.batch} * params.heads_q + head) * params.seqlen_q + query] = lse;
    }
  }
}

inline void store_partials(const RowBlock& block) {
  const Plan& plan = block.plan;
  for (int row = 0; row < block.task.row_count; ++row) {
    float* out = plan.partial(block.task.batch, block.task.head_kv, block.task.split, block.task.row_begin + row);
    std::copy_n(block.o + row * plan.scratch.o_stride, plan.scratch.o_stride, out);
    out[plan.scratch.o_stride] = block.row_max[row];
    out[plan.scratch.o_stride + 1] = block.row_sum[row];
  }
}

template <Element kElement, Fault kFault>
void attend_task(const Plan& plan, const Task& task, float* scratch) {
  const RowBlock block(plan, task, scratch);
  const ForwardParams& params = plan.params;
  load_q<kElement>(block);
  clear_state(block);
  const auto* k = head_start<kElement>(params.k, params.k_stride, task.batch, task.head_kv);
  const auto* v = head_start<kElement>(params.v, params.v_stride, task.batch, task.head_kv);
  // The task's last row sees the most; blocks beyond are masked for all.
  int last_key = std::min(task.key_end, block.visible_keys(task.row_count - 1));
  if constexpr (kFault == Fault::kWrongTail) last_key = last_key / plan.config.block_n * plan.config.block_n;
  if constexpr (kFault == Fault::kMissingMask) last_key = task.key_end;
  for (int key = task.key_begin; key < last_key; key += plan.config.block_n) {
    const int keys = std::min(plan.config.block_n, last_key - key);
    pack_k<kElement>(k + key * params.k_stride.row, params.k_stride.row, keys, plan.traits.head_dim, block.k_panels);
    pack_v<kElement>(v + key * params.v_stride.row, params.v_stride.row, keys, plan.traits.head_dim_v, block.v_panels);
    attend_block<kFault>(block, key, keys);
  }
  if (plan.config.kv_split > 1) {
    store_partials(block);
  } else {
    store_output<kElement>(block);
  }
}

template <Fault kFault>
void attend_any(const Plan& plan, const Task& task, float* scratch) {
  switch (plan.traits.element) {
    case Element::kF32: return attend_task<Element::kF32, kFault>(plan, task, scratch);
    case Element::kF16: return attend_task<Element::kF16, kFault>(plan, task, scratch);
    case Element::kBF16: return attend_task<Element::kBF16, kFault>(plan, task, scratch);
  }
}

// Adds up the splits in their order, so that the result does not depend on which thread finished first.
inline void merge_partials(const RowBlock& block) {
  const Plan& plan = block.plan;
  const Task& task = block.task;
  const FloatTag d;
  const int o_stride = plan.scratch.o_stride;
  clear_state(block);
  for (int row = 0; row < task.row_count; ++row) {
    float* o = block.o + row * o_stride;
    for (int split = 0; split < plan.config.kv_split; ++split) {
      const float* part = plan.partial(task.batch, task.head_kv, split, task.row_begin + row);
      const float part_max = part[o_stride], part_sum = part[o_stride + 1];
      if (part_sum == 0.0f) continue;
      const float new_max = std::max(block.row_max[row], part_max);
      HWY_ALIGN const float from[kPaddedTileRows] = {block.row_max[row], part_max};
      HWY_ALIGN const float to[kPaddedTileRows] = {new_max, new_max};
      HWY_ALIGN float factor[kPaddedTileRows];
      rescale_factors(from, to, 2, plan.params.scale_log2, factor);
      const float keep = factor[0], weight = factor[1];
      for (int column = 0; column < o_stride; column += kLanes) {
        const FloatVec scaled = hn::Mul(hn::Load(d, o + column), hn::Set(d, keep));
        hn::Store(hn::MulAdd(hn::LoadU(d, part + column), hn::Set(d, weight), scaled), d, o + column);
      }
      block.row_sum[row] = block.row_sum[row] * keep + part_sum * weight;
      block.row_max[row] = new_max;
    }
  }
}

inline void combine_any(const Plan& plan, const Task& task, float* scratch) {
  const RowBlock block(plan, task, scratch);
  merge_partials(block);
  switch (plan.traits.element) {
    case Element::kF32: return store_output<Element::kF32>(block);
    case Element::kF16: return store_output<Element::kF16>(block);
    case Element::kBF16: return store_output<Element::kBF16>(block);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
