// One task: a block of query rows over a range of keys.
#if defined(FLASHCORE_CPU_FWD_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHCORE_CPU_FWD_ATTEND_INL_H_
#undef FLASHCORE_CPU_FWD_ATTEND_INL_H_
#else
#define FLASHCORE_CPU_FWD_ATTEND_INL_H_
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu_fwd/direct-inl.h"
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
  float* scores;     // [kTileRows][score_stride]
  float* functions;  // of plan.functions

  RowBlock(const Plan& plan_in, const Task& task_in, float* scratch)
      : plan(plan_in),
        task(task_in),
        q(scratch + plan.scratch.q),
        o(scratch + plan.scratch.o),
        row_max(scratch + plan.scratch.row_max),
        row_sum(scratch + plan.scratch.row_sum),
        k_panels(scratch + plan.scratch.k),
        v_panels(scratch + plan.scratch.v),
        scores(scratch + plan.scratch.scores),
        functions(scratch + plan.scratch.floats) {}

  KeyRange<int> visible_keys(int first, int last) const {
    return plan.visible_keys(task.row_begin + first, task.row_begin + last);
  }
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

// The two products over one block of keys, from packed panels.
struct PackedKeys {
  const RowBlock& block;
  int keys_in_block;

  // S = Q · Kᵀ for `rows` rows from `row` on, over the panels that hold `keys` of the block.
  void compute_scores(int row, int rows, const KeyRange<int>& keys) const {
    const ScratchLayout& scratch = block.plan.scratch;
    const int head_dim = block.plan.traits.head_dim;
    const std::int64_t panel_floats = std::int64_t{round_up(head_dim, kLanes)} * kPanel;
    const int first = keys.begin / kPanel;
    const float* panel = block.k_panels + first * panel_floats;
    for (int key = first * kPanel; key < keys.end; key += kPanel, panel += panel_floats) {
      multiply_panel<false>(rows, keys.end - key, block.q + row * scratch.q_stride, scratch.q_stride, panel, head_dim,
                            nullptr, block.scores + key, scratch.score_stride);
    }
  }

  // O = diag(rescale) · O + P · V for `rows` rows of o, with P's row r at p + r · score_stride, over `keys`.
  void add_values(int rows, const float* p, const KeyRange<int>& keys, const float* rescale, float* o) const {
    const ScratchLayout& scratch = block.plan.scratch;
    const float* panel = block.v_panels;
    for (int column = 0; column < block.plan.traits.head_dim_v;
         column += kPanel, panel += std::int64_t{keys_in_block} * kPanel) {
      multiply_panel<true>(rows, block.plan.traits.head_dim_v - column, p + keys.begin, scratch.score_stride,
                           panel + keys.begin * kPanel, keys.size(), rescale, o + column, scratch.o_stride);
    }
  }
};

// The same from K and V in place, for a few rows.
template <Element kElement>
struct KeysInPlace {
  const RowBlock& block;
  const Storage<kElement>* k;  // of the block's first key
  const Storage<kElement>* v;

  void compute_scores(int row, int rows, const KeyRange<int>& keys) const {
    const ScratchLayout& scratch = block.plan.scratch;
    const std::int64_t stride = block.plan.params.k_stride.row;
    for (int key = keys.begin; key < keys.end; key += kDirectKeys) {
      const Storage<kElement>* four[kDirectKeys];
      for (int i = 0; i < kDirectKeys; ++i) four[i] = k + std::min(key + i, keys.end - 1) * stride;
      dot_rows<kElement>(rows, block.q + row * scratch.q_stride, scratch.q_stride, four, block.plan.traits.head_dim,
                         block.scores + key, scratch.score_stride);
    }
  }

  void add_values(int rows, const float* p, const KeyRange<int>& keys, const float* rescale, float* o) const {
    const ScratchLayout& scratch = block.plan.scratch;
    const std::int64_t stride = block.plan.params.v_stride.row;
    weigh_rows<kElement>(rows, p + keys.begin, scratch.score_stride, v + keys.begin * stride, stride, keys.size(),
                         block.plan.traits.head_dim_v, rescale, o, scratch.o_stride);
  }
};

// O = diag(rescale) · O + P · V, where row r of the tile weighs its own keys[r] only. Keys that all rows of the tile
// see go through the full tile; the edges of the mask leave each row a few more of its own on either side. Weighing a
// masked key with 0 instead would be wrong where its V is NaN or infinite.
template <class Products>
void accumulate_output(const RowBlock& block, int row, int rows, const KeyRange<int>* keys, const Products& products,
                       const float* rescale) {
  const ScratchLayout& scratch = block.plan.scratch;
  KeyRange<int> common = keys[0];
  for (int r = 1; r < rows; ++r) {
    common.begin = std::max(common.begin, keys[r].begin);
    common.end = std::min(common.end, keys[r].end);
  }
  // Rows too far apart to share a key: each takes all of its own after the empty product, which rescales.
  if (common.begin > common.end) common.end = common.begin;
  float* o = block.o + row * scratch.o_stride;
  products.add_values(rows, block.scores, common, rescale, o);
  const auto add_own = [&](int r, int begin, int end) {
    if (begin >= end) return;
    constexpr float kKeep = 1.0f;
    products.add_values(1, block.scores + r * scratch.score_stride, {begin, end}, &kKeep, o + r * scratch.o_stride);
  };
  for (int r = 0; r < rows; ++r) {
    add_own(r, keys[r].begin, std::min(common.begin, keys[r].end));
    add_own(r, std::max(common.end, keys[r].begin), keys[r].end);
  }
}

// Where row `row` of the task and a key are.
inline ExpressionPoint point_of(const RowBlock& block, int row, int key) {
  const Plan& plan = block.plan;
  const std::int64_t at = block.task.row_begin + row;
  ExpressionPoint point;
  point.b = block.task.batch, point.h = plan.head_of(block.task.head_kv, at), point.hk = block.task.head_kv;
  point.i = plan.query_of(at), point.j = key;
  point.seqlen_q = plan.params.seqlen_q, point.seqlen_kv = plan.params.seqlen_kv;
  return point;
}

// The user's own score function of scores [begin, end).
inline void apply_function(const RowBlock& block, int row, int key_begin, int begin, int end) {
  const Plan& plan = block.plan;
  float* scores = block.scores + row % kTileRows * plan.scratch.score_stride;
  for (int i = begin; i < end; ++i) scores[i] *= plan.unit;
  plan.functions->scores(point_of(block, row, key_begin + begin), scores + begin, end - begin, block.functions);
}

// As below, of the keys that a mask function shows, one by one.
template <class Products>
void accumulate_seen(const RowBlock& block, int row, int rows, int key_begin, const KeyRange<int>* keys,
                     const Products& products, const float* rescale) {
  const ScratchLayout& scratch = block.plan.scratch;
  constexpr float kKeep = 1.0f;
  float* o = block.o + row * scratch.o_stride;
  products.add_values(rows, block.scores, {keys[0].begin, keys[0].begin}, rescale, o);
  for (int r = 0; r < rows; ++r) {
    const float* p = block.scores + r * scratch.score_stride;
    for (int i = keys[r].begin; i < keys[r].end; ++i)
      if (block.plan.functions->shows(point_of(block, row + r, key_begin + i), block.functions))
        products.add_values(1, p, {i, i + 1}, &kKeep, o + r * scratch.o_stride);
  }
}

// Scores [begin, end) of the block that begins with key `key_begin`, of row `row` of the task: softcap, then ALiBi.
// What they are multiplied with afterwards is plan.softmax_scale.
inline void transform_scores(const RowBlock& block, int row, int key_begin, int begin, int end) {
  const Plan& plan = block.plan;
  const FloatTag d;
  const std::int64_t at = block.task.row_begin + row;
  float* scores = block.scores + row % kTileRows * plan.scratch.score_stride;
  const FloatVec tanh_scale = hn::Set(d, plan.score.tanh_scale);
  const FloatVec slope = hn::Set(d, plan.slope_of(block.task.batch, plan.head_of(block.task.head_kv, at)));
  const std::int64_t own = plan.query_of(at) + plan.params.seqlen_kv - plan.params.seqlen_q - key_begin;
  for (int i = begin; i < end; i += kLanes) {
    FloatVec s = hn::Load(d, scores + i);
    if (plan.traits.softcap) s = tanh_of(hn::Mul(s, tanh_scale));
    if (plan.traits.alibi != 0) {
      const FloatVec distance = hn::Sub(hn::Set(d, static_cast<float>(own - i)), hn::Iota(d, 0));
      s = hn::NegMulAdd(slope, hn::Abs(distance), s);
    }
    hn::Store(s, d, scores + i);
  }
}

// Tasks of several threads raise it; numbers that are not negative compare as their bits do.
inline void raise(float* largest, float value) {
  std::atomic_ref<std::uint32_t> bits(*reinterpret_cast<std::uint32_t*>(largest));
  const auto wanted = std::bit_cast<std::uint32_t>(value);
  for (std::uint32_t there = bits.load(std::memory_order_relaxed);
       there < wanted && !bits.compare_exchange_weak(there, wanted, std::memory_order_relaxed);) {
  }
}

// Into the largest magnitudes: the scores of row `row` of the task at keys of the block, without hidden ones and NaN.
inline void note_scores(const RowBlock& block, int row, const KeyRange<int>& keys) {
  const Plan& plan = block.plan;
  const float* scores = block.scores + row % kTileRows * plan.scratch.score_stride;
  float largest = 0;
  for (int i = keys.begin; i < keys.end; ++i)
    if (scores[i] != kMinusInfinity) largest = std::max(largest, std::abs(scores[i]));
  raise(plan.amax + plan.head_of(block.task.head_kv, block.task.row_begin + row), largest * plan.softmax_scale);
}

// The keys key_begin .. key_begin + keys_in_block - 1 for every row of the task that sees any of them.
// `is_cut`: the mask function is asked for each pair. `is_v_finite`: a hidden key may be weighed with 0.
template <Fault kFault, class Products>
void attend_block(const RowBlock& block, int key_begin, int keys_in_block, const Products& products, bool is_cut,
                  bool is_v_finite) {
  const float scale_log2 = block.plan.params.scale_log2;
  for (int row = 0; row < block.task.row_count; row += kTileRows) {
    const int rows = std::min(kTileRows, block.task.row_count - row);
    const auto within_block = [&](int first, int last) -> KeyRange<int> {
      if (kFault == Fault::kMissingMask) return {0, keys_in_block};
      const KeyRange<int> visible = block.visible_keys(first, last);
      return {std::clamp(visible.begin - key_begin, 0, keys_in_block),
              std::clamp(visible.end - key_begin, 0, keys_in_block)};
    };
    const KeyRange<int> any = within_block(row, row + rows - 1);
    if (any.empty()) continue;
    KeyRange<int> keys[kTileRows];
    int aligned[kTileRows];  // where the vector that holds the row's first key begins
    for (int r = 0; r < rows; ++r) {
      keys[r] = within_block(row + r, row + r);
      aligned[r] = keys[r].begin / kLanes * kLanes;
    }
    products.compute_scores(row, rows, any);
    for (int r = 0; r < rows && block.plan.transforms_scores(); ++r)
      transform_scores(block, row + r, key_begin, aligned[r], keys[r].end);
    if (block.plan.functions != nullptr && block.plan.functions->has_score())
      for (int r = 0; r < rows; ++r) apply_function(block, row + r, key_begin, keys[r].begin, keys[r].end);
    if (is_cut)
      for (int r = 0; r < rows; ++r)
        block.plan.functions->hide(point_of(block, row + r, key_begin + keys[r].begin),
                                   block.scores + r * block.plan.scratch.score_stride + keys[r].begin, keys[r].size(),
                                   block.functions);
    if (block.plan.amax != nullptr)
      for (int r = 0; r < rows; ++r) note_scores(block, row + r, keys[r]);
    HWY_ALIGN float new_max[kPaddedTileRows] = {};
    HWY_ALIGN float rescale[kPaddedTileRows];
    float* row_max = block.row_max + row;
    const auto scores_of = [&](int r) { return block.scores + r * block.plan.scratch.score_stride + aligned[r]; };
    for (int r = 0; r < rows; ++r) {
      std::fill_n(scores_of(r), keys[r].begin - aligned[r], kMinusInfinity);
      new_max[r] = std::max(row_max[r], max_of(scores_of(r), keys[r].end - aligned[r]));
    }
    rescale_factors(row_max, new_max, rows, scale_log2, rescale);
    if constexpr (kFault == Fault::kMissingRescale) std::fill_n(rescale, rows, 1.0f);
    for (int r = 0; r < rows; ++r) {
      const float sum = exponentiate(scores_of(r), keys[r].end - aligned[r], new_max[r], scale_log2);
      block.row_sum[row + r] = block.row_sum[row + r] * rescale[r] + sum;
      row_max[r] = new_max[r];
    }
    if (is_v_finite) accumulate_output(block, row, rows, keys, products, rescale);
    else accumulate_seen(block, row, rows, key_begin, keys, products, rescale);
  }
}

template <Element kElement>
bool is_finite(const Storage<kElement>* rows, std::int64_t stride, int count, int dim) {
  const FloatTag d;
  FloatVec sum = hn::Zero(d);  // NaN from the first that is infinite or NaN
  for (int row = 0; row < count; ++row)
    for_each_vector<kElement>(rows + row * stride, dim,
                              [&](int, FloatVec x) HWY_ATTR { sum = hn::MulAdd(x, hn::Zero(d), sum); });
  return hn::GetLane(hn::SumOfLanes(d, sum)) == 0;
}

// What a row's o is divided by, and its log-sum-exp; 1 and -inf for a row that saw nothing but -inf.
struct RowEnd {
  float divisor, lse;
};
inline RowEnd end_of_row(const Plan& plan, int head, float row_max, float row_sum) {
  const float maximum = row_max * plan.softmax_scale;
  const float sink = plan.traits.sink ? plan.score.sink[head] : kMinusInfinity;
  if (sink == kMinusInfinity) {
    if (row_sum == 0.0f) return {1.0f, kMinusInfinity};
    return {row_sum, maximum + std::log(row_sum)};
  }
  if (sink == -kMinusInfinity) return {sink - sink, sink - sink};  // as a key's score, it makes NaN of the row
  // The exponent is of the larger one, so that neither overflows.
  const float ahead = sink - maximum;
  if (!(ahead > 0)) {
    const float all = row_sum + std::exp(ahead);
    return {all, maximum + std::log(all)};
  }
  const float of_keys = std::exp(-ahead), all = row_sum * of_keys + 1.0f;
  return {all / of_keys, sink + std::log(all)};  // infinite where the keys count for nothing, and o is 0
}

// o / row_sum and the log-sum-exp into the output tensors.
template <Element kElement>
void store_output(const RowBlock& block) {
  const Plan& plan = block.plan;
  const ForwardParams& params = plan.params;
  const FloatTag d;
  for (int row = 0; row < block.task.row_count; ++row) {
    const std::int64_t at = block.task.row_begin + row;
    const int head = plan.head_of(block.task.head_kv, at);
    const int query = plan.query_of(at);
    const RowEnd end = end_of_row(plan, head, block.row_max[row], block.row_sum[row]);
    const FloatVec divisor = hn::Set(d, end.divisor);
    float* o = block.o + row * plan.scratch.o_stride;
    for (int column = 0; column < plan.traits.head_dim_v; column += kLanes) {
      hn::Store(hn::Div(hn::Load(d, o + column), divisor), d, o + column);
    }
    if (plan.amax != nullptr) {
      float largest = 0;
      for (int column = 0; column < plan.traits.head_dim_v; ++column) largest = std::max(largest, std::abs(o[column]));
      raise(plan.amax + params.heads_q + head, largest);
    }
    auto* out = static_cast<Storage<kElement>*>(params.o) + block.task.batch * params.o_stride.batch +
                head * params.o_stride.head + query * params.o_stride.row;
    store_row<kElement>(o, plan.traits.head_dim_v, out);
    if (params.lse != nullptr) {
      params.lse[(std::int64_t{block.task.batch} * params.heads_q + head) * params.seqlen_q + query] = end.lse;
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

template <Element kElement>
void finish_rows(const RowBlock& block) {
  if (block.plan.config.kv_split > 1) {
    store_partials(block);
  } else {
    store_output<kElement>(block);
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
  // Keys that no row of the task sees are not visited.
  const KeyRange<int> visible = block.visible_keys(0, task.row_count - 1);
  int first_key = std::max(task.key_begin, visible.begin), last_key = std::min(task.key_end, visible.end);
  if constexpr (kFault == Fault::kWrongTail) last_key = last_key / plan.config.block_n * plan.config.block_n;
  if constexpr (kFault == Fault::kMissingMask) first_key = task.key_begin, last_key = task.key_end;
  for (int key = first_key; key < last_key; key += plan.config.block_n) {
    const int keys = std::min(plan.config.block_n, last_key - key);
    const auto* k_block = k + key * params.k_stride.row;
    const auto* v_block = v + key * params.v_stride.row;
    const BlockUse use =
        plan.functions == nullptr
            ? BlockUse::kFull
            : plan.functions->use_of(plan.query_of(task.row_begin), plan.query_of(task.row_begin + task.row_count - 1),
                                     key, key + keys);
    if (use == BlockUse::kSkip) continue;
    const bool is_cut = use == BlockUse::kCut;
    const bool is_v_finite = !is_cut || is_finite<kElement>(v_block, params.v_stride.row, keys, plan.traits.head_dim_v);
    if (task.row_count <= kMostDirectRows) {
      attend_block<kFault>(block, key, keys, KeysInPlace<kElement>{block, k_block, v_block}, is_cut, is_v_finite);
      continue;
    }
    pack_k<kElement>(k_block, params.k_stride.row, keys, plan.traits.head_dim, block.k_panels);
    pack_v<kElement>(v_block, params.v_stride.row, keys, plan.traits.head_dim_v, block.v_panels);
    attend_block<kFault>(block, key, keys, PackedKeys{block, keys}, is_cut, is_v_finite);
  }
  finish_rows<kElement>(block);
}

template <Fault kFault>
void attend_any(const Plan& plan, const Task& task, float* scratch) {
  switch (plan.traits.element) {
    case Element::kF32: return attend_task<Element::kF32, kFault>(plan, task, scratch);
    case Element::kF16: return attend_task<Element::kF16, kFault>(plan, task, scratch);
    case Element::kBF16: return attend_task<Element::kBF16, kFault>(plan, task, scratch);
    default: return;  // 8 bits are converted before (forward_widened.h)
  }
}

// Of a task whose rows somebody else computed (bf16.cpp), for its bf16 alone.
inline void finish_any(const Plan& plan, const Task& task, float* scratch) {
  finish_rows<Element::kBF16>(RowBlock(plan, task, scratch));
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
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
