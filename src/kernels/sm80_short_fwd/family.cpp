#include <algorithm>
#include <limits>

#include "core/error.h"
#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"
#include "kernels/sm80_short_fwd/config.h"
#include "kernels/sm80_short_fwd/expected_time.h"
#include "kernels/sm80_short_fwd/params.h"

namespace flashcore {
namespace {

using sm80_short_fwd::Config;
using sm80_short_fwd::Params;

constexpr std::int64_t kMaxGrid = 65535;
constexpr std::int64_t kShortReads = 200 * 128;  // of an SM: keys times columns, for all tiles

sm80_short_fwd::Tensor tensor_of(Operand operand, const TensorLayout& layout) {
  constexpr std::int64_t kUnit = 8;  // elements
  if (layout.span() / kUnit > std::numeric_limits<std::uint32_t>::max())
    throw_bad_input("sm80_short_fwd reaches 64 GB of a tensor, and {} spans {} bytes; use another family",
                    to_string(operand), 2 * layout.span());
  const auto units = [](std::int64_t elements, std::int64_t extent) {
    return static_cast<unsigned>(extent <= 1 ? 0 : elements / kUnit);  // whose stride may be anything
  };
  return {nullptr, units(layout.stride_batch, layout.batch), units(layout.stride_head, layout.heads),
          units(layout.stride_row, layout.rows)};
}

class Sm80ShortForward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm80_short_fwd"; }
  std::string description() const override {
    return "few rows and keys: loads straight into mma.sync fragments, keys split over warps";
  }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_expression(problem)) return reason;
    if (auto reason = why_no_ampere(problem, limits)) return reason;
    if (auto reason = why_no_quantised_cache(problem)) return reason;
    if (auto reason = why_not_paged(problem)) return reason;
    if (auto reason = why_not_ragged(problem)) return reason;
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % 8 != 0 || dim > sm80_short_fwd::kMaxDim) {
        return fmt::format("head dims that are multiples of 8 up to {} only, not {}: K and V are held in registers",
                           sm80_short_fwd::kMaxDim, dim);
      }
    }
    // Batch and row tiles are the grid's second and third dimension.
    if (problem.batch > kMaxGrid || problem.seqlen_q > kMaxGrid)
      return fmt::format("at most {} sequences of {} rows", kMaxGrid, kMaxGrid);
    return why_indices_overflow(problem);
  }

  // On Hopper the models decide. Elsewhere against sm80_fwd, which reads K and V less often and loses time at the
  // start: by where the two met on an H200.
  int preference(const Problem& problem, const DeviceLimits& limits) const override {
    if (limits.arch == 90) return 90;
    const std::int64_t reads = tiles_of_rows(problem, 16) * problem.seqlen_kv * (problem.head_dim + problem.head_dim_v);
    const bool is_short = problem.seqlen_q <= 16 || reads <= kShortReads * limits.multiprocessors;
    return is_short ? 81 : 79;
  }
  std::optional<double> expected_us(const ConfigValues& values, const Problem& problem,
                                    const DeviceLimits& limits) const override {
    if (limits.arch != 90) return std::nullopt;
    return sm80_short_fwd::expected_us(config_from<Config>(values), problem, limits);
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    Fastest<Config> best;
    Config config;
    for (config.row_blocks = 1; config.row_blocks <= 2; ++config.row_blocks) {
      config.pack_heads = 1;
      while (config.pack_heads < std::min<std::int64_t>(16, problem.group_size()) &&
             sm80_short_fwd::positions(config) / 2 >= problem.seqlen_q)
        config.pack_heads *= 2;
      for (config.block_n = 16; config.block_n <= 32; config.block_n += 16) {
        const std::int64_t blocks = blocks_of_tiles(problem, sm80_short_fwd::positions(config), config.block_n).longest;
        for (config.key_warps = 1; config.key_warps <= 8; config.key_warps *= 2) {
          if (config.key_warps > 1 && config.key_warps - 1 >= blocks) continue;
          if (why_invalid(values_of(config), problem, limits)) continue;
          // Many keys to a warp: as few steps as can be.
          const double steps = static_cast<double>(blocks) / config.key_warps;
          best.offer(config, sm80_short_fwd::expected_us(config, problem, limits).value_or(kNotMeasuredUs + steps));
        }
      }
    }
    if (!best.config) throw_internal("sm80_short_fwd has no default config for {}", problem.id());
    return values_of(*best.config);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits&,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<Config>(values);
    const std::int64_t positions = sm80_short_fwd::positions(config);
    const std::int64_t row_tiles = (problem.seqlen_q + positions - 1) / positions;
    Params params{};
    const ForwardParams forward = make_forward_params(problem, layouts);
    params.q = tensor_of(Operand::kQ, layouts.q), params.k = tensor_of(Operand::kK, layouts.k);
    params.v = tensor_of(Operand::kV, layouts.v), params.o = tensor_of(Operand::kO, layouts.o);
    params.heads_q = forward.heads_q, params.seqlen_q = forward.seqlen_q, params.seqlen_kv = forward.seqlen_kv;
    params.right_offset = forward.right_offset, params.left_offset = forward.left_offset;
    params.scale_log2 = forward.scale_log2;
    params.group_size = static_cast<int>(problem.group_size());
    params.head_tiles = static_cast<int>((problem.group_size() + config.pack_heads - 1) / config.pack_heads);
    params.by_head_tiles = tile::FastDivide::by(params.head_tiles);
    Step step = step_of(config, problem);
    step.launch.grid = {static_cast<unsigned>(problem.heads_kv * params.head_tiles),
                        static_cast<unsigned>(problem.batch), static_cast<unsigned>(row_tiles)};
    step.launch.programmatic = config.early_launch != 0;
    set_params_of(step, params, problem, layouts);
    using sm80_short_fwd::Tensor;
    step.relocate(offsetof(Params, q) + offsetof(Tensor, address), Operand::kQ);
    step.relocate(offsetof(Params, k) + offsetof(Tensor, address), Operand::kK);
    step.relocate(offsetof(Params, v) + offsetof(Tensor, address), Operand::kV);
    step.relocate(offsetof(Params, o) + offsetof(Tensor, address), Operand::kO);
    step.relocate(offsetof(Params, lse), Operand::kLse);
    return one_step(std::move(step));
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm80_short_fwd, Sm80ShortForward)
