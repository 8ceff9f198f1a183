#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "core/error.h"
#include "kernels/batch_invariant.h"
#include "kernels/gpu_family.h"
#include "kernels/sm90_wide_fwd/config.h"
#include "kernels/sm90_wide_fwd/params.h"
#include "kernels/tile_rounds.h"

namespace flashcore {
namespace {

using WideConfig = sm90_wide_fwd::Config;
using WideParams = sm90_wide_fwd::Params<EncodedMap>;
using tile::Scheduler;

constexpr std::int64_t kLeastBlocks = 2;  // of a part that is worth the merge
constexpr std::int64_t kMostParts = 16;   // for each cluster that runs at once: each takes 128 KB of a workspace

// 8 bytes of 128 keys at head dims 264 to 384.
int most_keys_of_a_block(const Problem& problem) {
  return problem.ragged() && mask_combines_elements_of_pairs(problem) ? 64 : std::numeric_limits<int>::max();
}

class Sm90WideForward final : public GpuFamily<WideConfig> {
 public:
  std::string name() const override { return "sm90_wide_fwd"; }
  std::string description() const override {
    return "Hopper, head dims from 264 to 576: two warpgroups share rows, split keys of S and columns of O";
  }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_hopper_tiles(problem, limits, sm90_wide_fwd::kMostHeadDim)) return reason;
    if (problem.head_dim_v > sm90_wide_fwd::kMostHeadDimV)
      return fmt::format("a head_dim_v of up to {} only, not {}: half of O is a warpgroup's",
                         sm90_wide_fwd::kMostHeadDimV, problem.head_dim_v);
    if (std::max(problem.head_dim, problem.head_dim_v) <= 256)
      return "the larger head dim is 264 at the least: up to 256 columns one warpgroup holds O";
    if (problem.seqlen_q * problem.heads_q * problem.batch > std::numeric_limits<int>::max())
      return "2^31 rows of all query heads or more, which are numbered in 32 bits";
    if (!first_valid(problem, limits)) return "Q, P and a ring of K and V do not fit an SM";
    return std::nullopt;
  }

  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    const auto config = config_from<WideConfig>(values);
    if (problem.group_size() % config.pack_heads != 0)
      return fmt::format("pack_heads must divide the {} query heads of a key head", problem.group_size());
    if (config.block_n > most_keys_of_a_block(problem))
      return "blocks of more than 64 keys leave too few registers in a ragged batch for a mask function that combines "
             "an element of each pair with anything else";
    return std::nullopt;
  }

  // Above sm80_wide_fwd, which takes 0.92 to 7.0 times as long (results/landscapes/hopper_wide_times.json).
  int preference(const Problem&, const DeviceLimits&) const override { return 15; }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    auto config = first_valid(problem, limits);
    if (!config) throw_internal("sm90_wide_fwd has no default config for {}", problem.id());
    // A kernel that knows takes 0.98 of the time (H200, a quick run of which nothing is kept).
    if (splits_of(*config, problem, clusters_at_once(*config, limits)) == 1) config->num_splits = 1;
    return values_of(*config);
  }

  std::optional<ListShape> list_shape(const WideConfig& config, const Problem& problem) const override {
    if (!sm90_wide_fwd::traits_of_tiles(config, traits_of(problem)).mask_expression) return std::nullopt;
    return ListShape{1, sm90_wide_fwd::kRows, config.block_n};
  }

  // All keys of a tile in one CTA: how many parts there are goes by the batch. The heads that share a tile decide none
  // of a row's bits.
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    auto config = first_valid(any_batch_of(problem), limits);
    if (!config) return std::nullopt;
    config->num_splits = 1;
    config->pack_heads = packed_heads(problem);
    return values_of(*config);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<WideConfig>(values);
    const std::int64_t clusters = clusters_at_once(config, limits);
    const std::int64_t splits = splits_of(config, problem, clusters);
    const Problem tiles_problem = with_heads_of_tiles(problem, config, splits);
    const int positions = cluster_positions(config);
    WideParams params{};
    params.problem = make_forward_params(problem, layouts);
    params.tiles = make_forward_params(tiles_problem, layouts);
    // Of a ragged batch the device counts and orders the tiles (tile/ragged_tiles.cuh).
    if (!problem.ragged()) params.order = tile_order_of(tiles_problem, positions, clusters);
    const std::int64_t tiles =
        problem.ragged() ? most_ragged_tiles(tiles_problem, layouts.total_q, positions) : params.order.tile_count;
    params.num_splits = static_cast<int>(splits);
    params.by_splits = tile::FastDivide::by(params.num_splits);
    params.row_tiles = static_cast<int>(row_tiles_of(problem, config));
    params.total_q = static_cast<int>(layouts.total_q);
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(takers_of(config.scheduler, tiles, clusters) * config.cluster);
    step.launch.cluster.x = static_cast<unsigned>(config.cluster);
    if (problem.paged()) set_pool_params(step, params, config.block_n / config.cluster, problem, layouts);
    else set_params_of(step, params, problem, layouts);
    relocate_forward(step, offsetof(WideParams, problem));
    add_maps(step, config, problem, layouts);
    Program program = one_step(std::move(step));
    add_tile_counter(program, config.scheduler, offsetof(WideParams, tile_counter));
    if (splits > 1) add_merge(program, tiles_of(problem, config) * config.cluster, splits, problem);
    else add_lists<WideParams>(program, config, problem, layouts);
    return program;
  }
  KernelSource source(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits) const override {
    KernelSource source = GpuFamily::source(values, problem, limits);
    const auto config = config_from<WideConfig>(values);
    if (splits_of(config, problem, clusters_at_once(config, limits)) > 1) {
      const Traits traits = traits_of(problem);
      source.more_kernels.push_back(
          {fmt::format("flashcore::sm90_wide_fwd::merge{}<{}, {}>", entry_suffix(problem), print_traits(traits),
                       initializer_of<WideConfig>("flashcore::sm90_wide_fwd::Config", values)),
           0, sm90_wide_fwd::merge_threads(traits)});
    }
    return source;
  }

 private:
  static std::int64_t clusters_at_once(const WideConfig& config, const DeviceLimits& limits) {
    return std::max(limits.multiprocessors / config.cluster, 1);
  }
  static std::int64_t row_tiles_of(const Problem& problem, const WideConfig& config) {
    const int positions = cluster_positions(config);
    return (problem.seqlen_q + positions - 1) / positions;
  }
  // Of clusters, before their keys are divided.
  static std::int64_t tiles_of(const Problem& problem, const WideConfig& config) {
    return row_tiles_of(problem, config) * problem.batch * (problem.heads_q / config.pack_heads);
  }
  static std::int64_t splits_of(const WideConfig& config, const Problem& problem, std::int64_t clusters) {
    const std::int64_t blocks = std::max<std::int64_t>((problem.seqlen_kv + config.block_n - 1) / config.block_n, 1);
    const std::int64_t tiles = std::max<std::int64_t>(tiles_of(problem, config), 1);
    if (config.num_splits != 0)
      return std::min(
          {std::int64_t{config.num_splits}, blocks, std::max<std::int64_t>(kMostParts * clusters / tiles, 1)});
    const std::int64_t at_most = std::clamp<std::int64_t>(blocks / kLeastBlocks, 1, sm90_wide_fwd::kMostSplits);
    return std::clamp<std::int64_t>(clusters / tiles, 1, at_most);
  }
  static Problem with_heads_of_tiles(Problem problem, const WideConfig& config, std::int64_t splits) {
    problem.heads_q = problem.heads_q / config.pack_heads * splits;
    return problem;
  }
  static void add_maps(Step& step, const WideConfig& config, const Problem& problem, const ProblemLayouts& layouts) {
    const auto add_map = [&](std::size_t offset, const TensorLayout& layout, std::int64_t bound, int rows, int heads,
                             Operand operand) {
      const std::array<int, 4> box = {64, rows, heads, 1};
      step.add_map(problem.ragged() ? ragged_map_of(offset, problem.dtype, layout, bound, box)
                                    : tensor_map_of(offset, problem.dtype, layout, box),
                   operand);
    };
    // Where no sequence has keys there may be no memory to point at, and nothing is loaded.
    const bool no_keys = problem.ragged() && layouts.total_kv == 0;
    add_map(offsetof(WideParams, q), layouts.q, problem.seqlen_q, own_positions(config), own_heads(config),
            Operand::kQ);
    const int keys = config.block_n / config.cluster;
    if (!problem.paged()) {
      add_map(offsetof(WideParams, k), layouts.k, problem.seqlen_kv, keys, 1, no_keys ? Operand::kQ : Operand::kK);
      add_map(offsetof(WideParams, v), layouts.v, problem.seqlen_kv, keys, 1, no_keys ? Operand::kQ : Operand::kV);
    }
    const int stored = stored_positions(config);
    add_map(offsetof(WideParams, o), layouts.o, problem.seqlen_q, stored, sm90_wide_fwd::kRowsPerStore / stored,
            Operand::kO);
  }
  // Of `tiles` CTAs' tiles at the most.
  static void add_merge(Program& program, std::int64_t tiles, std::int64_t splits, const Problem& problem) {
    const std::size_t first = program.workspaces.size();
    const Traits traits = traits_of(problem);
    Step& step = program.steps.front();
    step.relocate(offsetof(WideParams, parts), AddressOf::workspace(first));
    step.relocate(offsetof(WideParams, part_counts), AddressOf::workspace(first + 1));
    for (const std::int64_t bytes : {splits * sm90_wide_fwd::part_bytes(traits), std::int64_t{sizeof(unsigned)}})
      program.workspaces.push_back({static_cast<std::size_t>(tiles * bytes), Workspace::Contents::kScratch});
    Step merge = step;
    merge.launch.tensor_maps.clear(), merge.map_addresses.clear();
    merge.launch.kernel = 1;
    merge.launch.grid.x = static_cast<unsigned>(problem.batch * problem.heads_q * problem.seqlen_q);
    merge.launch.cluster.x = 1;
    merge.launch.block.x = static_cast<unsigned>(sm90_wide_fwd::merge_threads(traits));
    merge.launch.shared_bytes = 0;
    program.steps.push_back(std::move(merge));
  }

  // Where a head's rows would leave most of a tile empty.
  static int packed_heads(const Problem& problem) {
    int heads = 1;
    while (problem.seqlen_q * heads < sm90_wide_fwd::kRows && heads < sm90_wide_fwd::kRows &&
           problem.group_size() % (2 * heads) == 0)
      heads *= 2;
    return heads;
  }
  // Times on an H200. CTAs that go round dense causal tiles took 1.13 and 1.20 of the time of one CTA per tile
  // (results/landscapes/hopper_wide_times.json). Of quick runs nothing is kept: two CTAs that share what they load wait
  // for each other, 1.00 to 1.04 of the time, and 1.2 to 2.1 with pages; with nine slots 1.03 to 1.08 of the time of
  // eight at head dim 512, as many as a block has pieces of V.
  std::optional<WideConfig> first_valid(const Problem& problem, const DeviceLimits& limits) const {
    const int keys = problem.seqlen_kv <= 64 ? 64 : std::min(128, most_keys_of_a_block(problem));
    for (const int block_n : {keys, 64, 32}) {
      for (const int num_slots : {16, 12, 10, 8, 7, 6, 5, 4, 3}) {
        if (num_slots * block_n > 8 * 128) continue;
        const WideConfig config = {.block_n = block_n,
                                   .num_slots = num_slots,
                                   .scheduler = problem.ragged() ? Scheduler::kFixedStride : Scheduler::kOneTile,
                                   .cluster = 1,
                                   .pack_heads = packed_heads(problem),
                                   .num_splits = 0};
        if (!sm90_wide_fwd::why_invalid(config, traits_of(problem), limits_of(limits))) return config;
      }
    }
    return std::nullopt;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_wide_fwd, Sm90WideForward)
