#include "kernels/cpu_fwd/bf16.h"

#if defined(__x86_64__) && defined(__linux__)

// GCC 12 takes the undefined vectors in its own intrinsics for an error of the caller (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include "kernels/cpu_fwd/bf16_block-inl.h"
#include "kernels/cpu_fwd/bf16_dots-inl.h"
#include "kernels/cpu_fwd/bf16_tiles-inl.h"

namespace flashcore::cpu_fwd {
namespace {

// S = Q · Kᵀ: up to 32 rows by the keys begin .. end, multiples of 32.
template <class Unit>
FC_BF16_TARGET void compute_scores(const Bf16Block& block, const std::uint16_t* q, int rows, int begin, int end) {
  const std::int64_t of_16_keys = std::int64_t{block.depth} * kTile;
  for (int key = begin; key < end; key += kKeys) {
    const std::uint16_t* k = block.k + key / kTile * of_16_keys;
    Unit::template multiply<false>({q, block.depth, k, k + of_16_keys, kTileElements, block.depth / kDepth,
                                    block.scores + key, block.plan.scratch.score_stride},
                                   rows);
  }
}

// O += P · V over the keys begin .. end, multiples of 32.
template <class Unit>
FC_BF16_TARGET void add_output(const Bf16Block& block, float* o, int rows, int begin, int end) {
  const ScratchLayout& scratch = block.plan.scratch;
  const std::int64_t of_32_keys = std::int64_t{block.columns} * kDepth;
  for (int c = 0; c < block.columns; c += 2 * kTile) {
    const std::uint16_t* v = block.v + begin / kKeys * of_32_keys + c / kTile * kTileElements;
    Unit::template multiply<true>({block.p + begin, scratch.p16_stride, v, v + kTileElements, of_32_keys,
                                   (end - begin) / kKeys, o + c, scratch.o_stride},
                                  rows);
  }
}

// The packed keys key_begin .. key_begin + keys - 1 for the rows row .. row + rows - 1, at most 32.
template <class Unit>
FC_BF16_TARGET void attend_tile(const Bf16Block& block, int row, int rows, int key_begin, int keys) {
  const Plan& plan = block.plan;
  const ScratchLayout& scratch = plan.scratch;
  const auto within_block = [&](int first, int last) -> KeyRange<int> {
    const KeyRange<int> seen = plan.visible_keys(block.task.row_begin + first, block.task.row_begin + last);
    return {std::clamp(seen.begin - key_begin, 0, keys), std::clamp(seen.end - key_begin, 0, keys)};
  };
  const KeyRange<int> any = within_block(row, row + rows - 1);
  if (any.begin >= any.end) return;
  const int begin = any.begin / kKeys * kKeys, end = round_up(any.end, kKeys);
  compute_scores<Unit>(block, block.q + std::int64_t{row} * block.depth, rows, begin, end);
  float* o = block.o + std::int64_t{row} * scratch.o_stride;
  for (int r = 0; r < rows; ++r) {
    const float* scores = block.scores + r * scratch.score_stride;
    KeyRange<int> seen = within_block(row + r, row + r);
    if (seen.begin >= seen.end) seen = {end, end};
    float& row_max = block.row_max[row + r];
    const float new_max = std::max(row_max, largest_of(scores, seen));
    const float sum =
        weigh(scores, block.p + r * scratch.p16_stride, seen, begin, end, new_max, plan.params.scale_log2);
    if (new_max != row_max) {
      const float factor = exp2_of_one(row_max - new_max, plan.params.scale_log2);
      rescale_row(o + r * scratch.o_stride, block.columns, factor);
      block.row_sum[row + r] *= factor;
      row_max = new_max;
    }
    block.row_sum[row + r] += sum;
  }
  add_output<Unit>(block, o, rows, begin, end);
}

template <class Unit>
FC_BF16_TARGET bool attend_blocks(const Bf16Block& block) {
  const Plan& plan = block.plan;
  const Task& task = block.task;
  const ForwardParams& params = plan.params;
  [[maybe_unused]] const Unit in_use;
  load_q16(block);
  const int padded_rows = round_up(task.row_count, 2 * kTile);
  std::fill_n(block.o, std::int64_t{padded_rows} * plan.scratch.o_stride, 0.0f);
  std::fill_n(block.row_max, task.row_count, -std::numeric_limits<float>::infinity());
  std::fill_n(block.row_sum, task.row_count, 0.0f);
  const auto* k = static_cast<const std::uint16_t*>(params.k) + task.batch * params.k_stride.batch +
                  task.head_kv * params.k_stride.head;
  const auto* v = static_cast<const std::uint16_t*>(params.v) + task.batch * params.v_stride.batch +
                  task.head_kv * params.v_stride.head;
  const KeyRange<int> visible = plan.visible_keys(task.row_begin, task.row_begin + task.row_count - 1);
  const int last_key = std::min(task.key_end, visible.end);
  for (int key = std::max(task.key_begin, visible.begin); key < last_key; key += plan.config.block_n) {
    const int keys = std::min(plan.config.block_n, last_key - key);
    pack_k16(block, k + key * params.k_stride.row, keys);
    if (!pack_v16(block, v + key * params.v_stride.row, keys)) return false;
    for (int row = 0; row < task.row_count; row += 2 * kTile)
      attend_tile<Unit>(block, row, std::min(2 * kTile, task.row_count - row), key, keys);
  }
  return true;
}

}  // namespace

bool attend_bf16(Bf16Unit unit, const Plan& plan, const Task& task, float* scratch) {
  const Bf16Block block(plan, task, scratch);
  if (!(unit == Bf16Unit::kTiles ? attend_blocks<Tiles>(block) : attend_blocks<Dots>(block))) return false;
  finish(plan, task, scratch);
  return true;
}

}  // namespace flashcore::cpu_fwd

#pragma GCC diagnostic pop

#else

namespace flashcore::cpu_fwd {

bool attend_bf16(Bf16Unit, const Plan&, const Task&, float*) { return false; }

}  // namespace flashcore::cpu_fwd

#endif
