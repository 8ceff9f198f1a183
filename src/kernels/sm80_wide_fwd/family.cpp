#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "core/error.h"
#include "kernels/batch_invariant.h"
#include "kernels/gpu_family.h"
#include "kernels/sm80_wide_fwd/config.h"
#include "kernels/sm80_wide_fwd/params.h"

namespace flashcore {
namespace {

using WideConfig = sm80_wide_fwd::Config;
using WideParams = sm80_wide_fwd::Params;

constexpr std::int64_t kMaxSplits = 32;   // one CTA merges all parts of a tile
constexpr std::int64_t kLeastBlocks = 2;  // of a part that is worth the merge
constexpr std::int64_t kMaxGrid = std::numeric_limits<int>::max();

std::int64_t row_tiles_of(const Problem& problem, int rows) {
  return (problem.seqlen_q * problem.group_size() + rows - 1) / rows;
}
std::int64_t tiles_of(const Problem& problem, int rows) {
  return row_tiles_of(problem, rows) * problem.batch * problem.heads_kv;
}
// CTAs of a tile.
std::int64_t splits_of(const WideConfig& config, const Problem& problem, const DeviceLimits& limits) {
  const std::int64_t tiles = tiles_of(problem, sm80_wide_fwd::tile_rows(config));
  if (tiles == 0) return 1;
  const std::int64_t blocks = (problem.seqlen_kv + config.block_n - 1) / config.block_n;
  const std::int64_t at_most = config.num_splits == 0 ? blocks / kLeastBlocks : blocks;
  const std::int64_t wanted =
      config.num_splits == 0
          ? std::min(static_cast<std::int64_t>(limits.multiprocessors) * config.ctas_per_sm / tiles, kMaxSplits)
          : config.num_splits;
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(at_most, 1));
}

class Sm80WideForward final : public GpuFamily<WideConfig> {
 public:
  std::string name() const override { return "sm80_wide_fwd"; }
  std::string description() const override {
    return "head dims up to 576, packed query heads: warps share rows and split O's columns";
  }

  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    // 8 and 12 bytes at head dims 136 and 160. Defaults have no more than 64.
    if (config_from<WideConfig>(values).block_n > 64 && mask_combines_elements_of_pairs(problem))
      return "blocks of more than 64 keys leave too few registers for a mask function that combines an element of each "
             "pair with anything else";
    return std::nullopt;
  }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_ampere(problem, limits)) return reason;
    const std::int64_t multiple = problem.has_quantised_cache() ? 128 / bits_of(problem.cache_dtype()) : 8;
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % multiple != 0 || dim > sm80_wide_fwd::kMaxHeadDim)
        return fmt::format("{} that are multiples of {} up to {} only, not {}: rows are copied in 16-byte pieces",
                           problem.has_quantised_cache()
                               ? fmt::format("a cache of {} with head dims", to_string(problem.cache_dtype()))
                               : "head dims",
                           multiple, sm80_wide_fwd::kMaxHeadDim, dim);
    }
    if (const std::int64_t dim = std::max(problem.head_dim, problem.head_dim_v); dim < sm80_wide_fwd::kMinHeadDim)
      return fmt::format("the larger head dim is {} at the least, not {}: narrow O fits one warp",
                         sm80_wide_fwd::kMinHeadDim, dim);
    if (auto reason = why_indices_overflow(problem)) return reason;
    if (problem.seqlen_q * problem.group_size() > kMaxGrid / 2)
      return fmt::format("more than {} query rows of a sequence and key head", kMaxGrid / 2);
    if (tiles_of(problem, 16) > kMaxGrid / kMaxSplits)
      return fmt::format("more than {} tiles of 16 query rows", kMaxGrid / kMaxSplits);
    if (!first_valid(problem, limits)) return "a Q tile and a ring of K and V do not fit an SM";
    return std::nullopt;
  }

  // Of what other families than the naive one support, theirs: their times have been taken.
  int preference(const Problem&, const DeviceLimits&) const override { return 10; }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    const auto config = first_valid(problem, limits);
    if (!config) throw_internal("sm80_wide_fwd has no default config for {}", problem.id());
    return values_of(*config);
  }

  // All keys of a tile in one CTA: how many parts there are goes by the batch.
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    auto config = first_valid(any_batch_of(problem), limits);
    if (!config) return std::nullopt;
    config->num_splits = 1;
    return values_of(*config);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<WideConfig>(values);
    const int rows = sm80_wide_fwd::tile_rows(config);
    const std::int64_t tiles = tiles_of(problem, rows), splits = splits_of(config, problem, limits);
    WideParams params{};
    params.problem = make_forward_params(problem, layouts);
    params.group_size = static_cast<int>(problem.group_size());
    params.total_q = static_cast<int>(layouts.total_q);
    params.row_tiles = static_cast<int>(row_tiles_of(problem, rows));
    params.num_splits = static_cast<int>(splits);
    params.by_group_size = tile::FastDivide::by(params.group_size);
    params.by_page_size = tile::FastDivide::by(static_cast<int>(std::max<std::int64_t>(problem.page_size, 1)));
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(tiles * splits);
    if (problem.has_quantised_cache()) {
      set_params_of(step, with_descales(params, problem), problem, layouts);
      relocate_descales<WideParams>(step, problem);
    } else {
      set_params_of(step, params, problem, layouts);
    }
    relocate_forward(step, offsetof(WideParams, problem));
    if (splits == 1) return one_step(std::move(step));
    step.relocate(offsetof(WideParams, parts), AddressOf::workspace(0));
    step.relocate(offsetof(WideParams, counters), AddressOf::workspace(1));
    Program program = one_step(std::move(step));
    program.workspaces = {
        {static_cast<std::size_t>(tiles * splits * sm80_wide_fwd::part_bytes(config, traits_of(problem))),
         Workspace::Contents::kScratch},
        {static_cast<std::size_t>(tiles) * sizeof(unsigned), Workspace::Contents::kLeftZero}};
    return program;
  }

 private:
  // Tiles of rows that read the keys as seldom as can be; then long steps, which have fewer barriers.
  std::optional<WideConfig> first_valid(const Problem& problem, const DeviceLimits& limits) const {
    struct Shape {
      int column_warps, block_n, num_stages;
    };
    constexpr Shape kWide[] = {{2, 64, 2}, {2, 32, 4}, {4, 64, 2}, {4, 32, 2}, {2, 32, 2}, {2, 16, 3}, {2, 16, 2}};
    constexpr Shape kFewRows[] = {{4, 64, 3}, {4, 64, 2}, {4, 32, 3}, {4, 32, 2}, {2, 32, 2}, {2, 16, 3}, {2, 16, 2}};
    // Stages of codes have half of the bytes, or a quarter, and beside them lies a tile of 16 bits.
    constexpr Shape kWideCodes[] = {{2, 64, 4}, {2, 64, 3}, {2, 64, 2}, {2, 32, 4}, {2, 32, 2},
                                    {4, 64, 4}, {4, 64, 2}, {4, 32, 2}, {2, 16, 4}, {2, 16, 2}};
    constexpr Shape kFewRowsOfCodes[] = {{4, 64, 6}, {4, 64, 4}, {4, 64, 3}, {4, 64, 2}, {4, 32, 4},
                                         {4, 32, 2}, {2, 32, 2}, {2, 16, 4}, {2, 16, 2}};
    const auto shapes_of = [&](int row_warps) -> std::span<const Shape> {
      if (problem.has_quantised_cache()) return row_warps == 1 ? std::span<const Shape>(kFewRowsOfCodes) : kWideCodes;
      return row_warps == 1 ? std::span<const Shape>(kFewRows) : kWide;
    };
    const std::int64_t rows = problem.seqlen_q * problem.group_size();
    for (int row_warps = rows <= 16 ? 1 : rows <= 32 ? 2 : 4; row_warps >= 1; row_warps /= 2) {
      for (const Shape& shape : shapes_of(row_warps)) {
        const WideConfig config = {.row_warps = row_warps,
                                   .column_warps = shape.column_warps,
                                   .block_n = shape.block_n,
                                   .num_stages = shape.num_stages};
        if (!sm80_wide_fwd::why_invalid(config, traits_of(problem), limits_of(limits))) return config;
      }
    }
    return std::nullopt;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm80_wide_fwd, Sm80WideForward)
