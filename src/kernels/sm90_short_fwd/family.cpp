#include <cstddef>

#include "kernels/gpu_family.h"
#include "kernels/sm90_short_fwd/config.h"
#include "kernels/sm90_short_fwd/params.h"

namespace flashcore {
namespace {

using sm90_short_fwd::Config;
using Params = sm90_short_fwd::Params<EncodedMap>;

constexpr std::int64_t kMaxGrid = 65535;

struct Tiles {
  std::int64_t rows;      // tiles of query positions
  std::int64_t heads;     // tiles of query heads of one key head
  std::int64_t clusters;  // each works on one tile
};
Tiles tiles_of(const Config& config, const Problem& problem) {
  const std::int64_t tile_positions = sm90_short_fwd::positions(config) * config.row_groups;
  Tiles tiles;
  tiles.rows = (problem.seqlen_q + tile_positions - 1) / tile_positions;
  tiles.heads = (problem.group_size() + config.pack_heads - 1) / config.pack_heads;
  tiles.clusters = tiles.rows * tiles.heads * problem.heads_kv * problem.batch;
  return tiles;
}

class Sm90ShortForward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm90_short_fwd"; }
  std::string description() const override {
    return "Hopper, short or few rows: keys split over warpgroups and a cluster, merged in shared memory";
  }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_hopper_tiles(problem, limits)) return reason;
    // Batch and row tiles are the grid's second and third dimension.
    if (problem.batch > kMaxGrid || problem.seqlen_q > kMaxGrid)
      return fmt::format("at most {} sequences of {} rows", kMaxGrid, kMaxGrid);
    return std::nullopt;
  }

  // Few rows, as in decoding, leave most of sm90_fwd's tile empty, and few tiles leave multiprocessors idle. How few,
  // as a share of them, was measured: more where tiles are cheap and, under a mask, unequal.
  int preference(const Problem& problem, const DeviceLimits& limits) const override {
    const bool few_rows = problem.seqlen_q * problem.group_size() <= sm90_short_fwd::kTileRows;
    const bool causal = problem.causal != Causal::kNone;
    const double share =
        std::max(problem.head_dim, problem.head_dim_v) <= 64 ? (causal ? 1.0 : 0.6) : (causal ? 0.5 : 0.33);
    return few_rows || static_cast<double>(tiles_of_rows(problem, 128)) < share * limits.multiprocessors ? 91 : 89;
  }

  // Splits the keys until the CTAs fill the device, or a part is down to one block.
  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    Config config;
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    config.block_n = widest <= 64 ? 128 : widest <= 128 ? 64 : 32;
    if (problem.seqlen_kv <= 64) config.block_n = std::min(config.block_n, problem.seqlen_kv <= 32 ? 32 : 64);
    // Rows that exist in as few warps as can be: the others have nothing to merge.
    while (sm90_short_fwd::positions(config) / 2 >= problem.seqlen_q) config.pack_heads *= 2;
    const std::int64_t tiles = tiles_of(config, problem).clusters;
    const auto can_split = [&] {
      return tiles * config.cluster < limits.multiprocessors &&
             problem.seqlen_kv >= 2 * sm90_short_fwd::parts(config) * config.block_n;
    };
    if (can_split()) config.cluster = 2;
    if (config.cluster == 2 && problem.seqlen_kv >= 4 * config.block_n) config.key_groups = 2;
    while (config.cluster < 8 && can_split()) config.cluster *= 2;
    if (!why_invalid(values_of(config), problem, limits)) return values_of(config);
    config.key_groups = 1;
    for (int stages = config.num_stages; stages > 0; --stages) {
      config.num_stages = stages;
      if (!why_invalid(values_of(config), problem, limits)) return values_of(config);
    }
    throw_internal("sm90_short_fwd has no default config for {}", problem.id());
  }

  LaunchSpec launch_spec(const ConfigValues& values, const Problem& problem, const DeviceLimits&,
                         const AttentionArgs& args) const override {
    const auto config = config_from<Config>(values);
    Params params{};
    params.problem = make_forward_params(problem, args);
    const Tiles tiles = tiles_of(config, problem);
    params.group_size = static_cast<int>(problem.group_size());
    params.head_tiles = static_cast<int>(tiles.heads);
    LaunchSpec spec;
    spec.grid = {static_cast<unsigned>(problem.heads_kv * tiles.heads * config.cluster),
                 static_cast<unsigned>(problem.batch), static_cast<unsigned>(tiles.rows)};
    spec.block.x = static_cast<unsigned>(threads_per_block(config));
    spec.cluster.x = static_cast<unsigned>(config.cluster);
    spec.shared_bytes = static_cast<unsigned>(smem_bytes(config, traits_of(problem)));
    spec.programmatic = config.early_launch != 0;
    spec.params = params_bytes(params);
    const ProblemLayouts& layouts = args.layouts;
    spec.tensor_maps = {
        tensor_map_of(offsetof(Params, q), args.q, problem.dtype, layouts.q,
                      {64, sm90_short_fwd::positions(config), config.pack_heads, 1}),
        tensor_map_of(offsetof(Params, k), args.k, problem.dtype, layouts.k, {64, config.block_n, 1, 1}),
        tensor_map_of(offsetof(Params, v), args.v, problem.dtype, layouts.v, {64, config.block_n, 1, 1})};
    return spec;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_short_fwd, Sm90ShortForward)
