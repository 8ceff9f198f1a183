#include <algorithm>
#include <cstddef>

#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"
#include "kernels/sm90_decode_fwd/config.h"
#include "kernels/sm90_decode_fwd/params.h"

namespace flashcore {
namespace {

using sm90_decode_fwd::Config;
using Params = sm90_decode_fwd::Params<EncodedMap>;

// Fitted to results/landscapes/hopper_times.json: of a launch, and of a part to merge.
constexpr double kStartUs = 8, kPartUs = 0.26;

// The work, before it is dealt out.
struct Work {
  std::int64_t head_tiles, tiles, tile_blocks;
  int warps;  // of 16 rows, that have any
  std::int64_t blocks() const { return tiles * tile_blocks; }
};
Work work_of(const Config& config, const Problem& problem) {
  Work work;
  work.head_tiles = (problem.group_size() + config.pack_heads - 1) / config.pack_heads;
  work.tiles = work.head_tiles * problem.heads_kv * problem.batch;
  // Of the keys that the last row sees. A tile that sees none still has a block, all of it masked.
  const std::int64_t end =
      std::min(problem.seqlen_kv, make_forward_params(problem, {}).causal_offset + problem.seqlen_q);
  const std::int64_t keys = problem.causal == Causal::kNone ? problem.seqlen_kv : end;
  work.tile_blocks = std::max<std::int64_t>((keys + config.block_n - 1) / config.block_n, 1);
  const std::int64_t heads = std::min<std::int64_t>(config.pack_heads, problem.group_size());
  const std::int64_t last_row = (heads - 1) * sm90_decode_fwd::positions(config) + problem.seqlen_q - 1;
  work.warps = static_cast<int>(last_row / 16 + 1);
  return work;
}
std::int64_t ctas_of(const Config& config, const Work& work, const DeviceLimits& limits) {
  return std::min({static_cast<std::int64_t>(limits.multiprocessors) * config.ctas_per_sm,
                   std::int64_t{sm90_decode_fwd::kMaxCtas}, work.blocks()});
}
std::size_t counter_bytes(const Work& work) {
  return (static_cast<std::size_t>(work.tiles) * sizeof(unsigned) + 255) / 256 * 256;
}

class Sm90DecodeForward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm90_decode_fwd"; }
  std::string description() const override {
    return "Hopper, few query rows: the keys of all heads dealt out evenly to resident CTAs";
  }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_hopper_tiles(problem, limits)) return reason;
    if (problem.seqlen_q > sm90_decode_fwd::kTileRows)
      return fmt::format("at most {} query rows", sm90_decode_fwd::kTileRows);
    const std::int64_t blocks = problem.batch * problem.heads_q * (problem.seqlen_kv / 32 + 1);
    if (blocks > std::int64_t{1} << 28) return "more blocks of keys than a 32-bit index holds";
    return std::nullopt;
  }
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    if (sm90_decode_fwd::positions(config_from<Config>(values)) < problem.seqlen_q)
      return "so many packed heads leave a tile too few query rows";
    return std::nullopt;
  }

  int preference(const Problem&, const DeviceLimits&) const override { return 90; }
  // With head dims up to 128 sm90_short_fwd was faster everywhere, by 2% to half.
  std::optional<double> expected_us(const ConfigValues& values, const Problem& problem,
                                    const DeviceLimits& limits) const override {
    if (std::max(problem.head_dim, problem.head_dim_v) <= 128) return std::nullopt;
    const auto config = config_from<Config>(values);
    const Work work = work_of(config, problem);
    const auto parts = static_cast<double>(ctas_of(config, work, limits)) / static_cast<double>(work.tiles);
    return kStartUs + kPartUs * parts + dram_us(problem);
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    constexpr Config kOrder[] = {{64, 4, 2, 64}, {64, 3, 2, 64}, {64, 2, 2, 64}, {32, 3, 2, 64},
                                 {64, 4, 1, 64}, {64, 2, 1, 64}, {32, 3, 1, 64}, {32, 2, 1, 64}};
    for (Config config : kOrder) {
      if (widest > 128 && config.ctas_per_sm > 1) continue;
      while (sm90_decode_fwd::positions(config) < problem.seqlen_q) config.pack_heads /= 2;
      if (!why_invalid(values_of(config), problem, limits)) return values_of(config);
    }
    throw_internal("sm90_decode_fwd has no default config for {}", problem.id());
  }

  std::size_t workspace_bytes(const ConfigValues& values, const Problem& problem) const {
    const Work work = work_of(config_from<Config>(values), problem);
    const std::int64_t ctas = std::min<std::int64_t>(work.blocks(), sm90_decode_fwd::kMaxCtas);
    return counter_bytes(work) + static_cast<std::size_t>(2 * ctas * work.warps) *
                                     static_cast<std::size_t>(sm90_decode_fwd::part_bytes(traits_of(problem)));
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<Config>(values);
    const Work work = work_of(config, problem);
    const std::int64_t ctas = ctas_of(config, work, limits);
    Params params{};
    params.problem = make_forward_params(problem, layouts);
    params.group_size = static_cast<int>(problem.group_size());
    params.head_tiles = static_cast<int>(work.head_tiles);
    params.tiles = static_cast<int>(work.tiles);
    params.tile_blocks = static_cast<int>(work.tile_blocks);
    params.share = static_cast<int>(work.blocks() / ctas);
    params.rest = static_cast<int>(work.blocks() % ctas);
    params.warps = work.warps;
    params.parts_offset = static_cast<int>(counter_bytes(work));
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(ctas);
    step.set_params(params);
    relocate_forward(step, offsetof(Params, problem));
    step.add_map(tensor_map_of(offsetof(Params, q), problem.dtype, layouts.q,
                               {64, sm90_decode_fwd::positions(config), config.pack_heads, 1}),
                 Operand::kQ);
    step.add_map(tensor_map_of(offsetof(Params, k), problem.dtype, layouts.k, {64, config.block_n, 1, 1}), Operand::kK);
    step.add_map(tensor_map_of(offsetof(Params, v), problem.dtype, layouts.v, {64, config.block_n, 1, 1}), Operand::kV);
    step.relocate(offsetof(Params, counters), AddressOf::workspace(0));
    Program program = one_step(std::move(step));
    program.workspaces = {{workspace_bytes(values, problem), Workspace::Contents::kLeftZero}};
    return program;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_decode_fwd, Sm90DecodeForward)
