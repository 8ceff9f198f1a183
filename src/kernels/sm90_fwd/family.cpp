#include <cstddef>
#include <span>

#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/expected_time.h"
#include "kernels/sm90_fwd/params.h"

namespace flashcore {
namespace {

using sm90_fwd::Config;
using tile::Scheduler;

using Params = sm90_fwd::Params<EncodedMap>;

// K and V of the heads that causal tiles go round should stay in L2: 32 MB of an H200's 60 was best; more lowered the
// clock, less gained nothing.
constexpr std::int64_t kSectionBytes = 32 << 20;
// Longest tiles first, a section of more heads than an eighth of the SMs has them all read K and V of other heads at
// once, and wait for DRAM: 3-11% at up to 1024 keys. With fewer tiles to an SM than this, balance counts for more.
constexpr std::int64_t kSmsPerSectionHead = 8, kTilesPerSm = 8;

std::int64_t heads_per_section(const Problem& problem, std::int64_t heads, std::int64_t tiles, std::int64_t sms) {
  const std::int64_t group = problem.group_size();
  const std::int64_t head_bytes = problem.seqlen_kv * (problem.head_dim + problem.head_dim_v) * 2;
  std::int64_t groups = kSectionBytes / head_bytes;
  if (tiles >= kTilesPerSm * sms)
    groups = std::min(groups, std::max<std::int64_t>(sms / kSmsPerSectionHead / group, 1));
  return std::clamp<std::int64_t>(groups * group, 1, heads);
}

// Rows of an odd number of 16 bytes take TMA half as long again, and past 64 columns the tensor cores wait for it. Then
// a block that is loaded for more rows, by a third consumer or by a cluster, is worth up to a third of the time, if
// there are tiles enough for all SMs to load.
bool loads_are_scarce(const Problem& problem, const DeviceLimits& limits) {
  return std::max(problem.head_dim, problem.head_dim_v) > 64 &&
         (problem.head_dim % 16 != 0 || problem.head_dim_v % 16 != 0) &&
         2 * tiles_of_rows(problem, 128) >= limits.multiprocessors;
}

class Sm90Forward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm90_fwd"; }
  std::string description() const override { return "Hopper: TMA ring, warp-specialised wgmma, ping-pong consumers"; }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    return why_no_hopper_tiles(problem, limits);
  }

  int preference(const Problem&, const DeviceLimits&) const override { return 90; }

  std::optional<double> expected_us(const ConfigValues& values, const Problem& problem,
                                    const DeviceLimits& limits) const override {
    return sm90_fwd::expected_us(config_from<Config>(values), problem, limits);
  }

  // How well tiles of that many rows fill the SMs decides more than how fast each of them is.
  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    // Many partners of half the keys hide more of the exponentials; a wide block amortises the hand-over. Key groups
    // make tiles of half the rows, or of as many rows with twice the partners.
    constexpr Config kSmall[] = {{4, 64, 3, 2, 1, 8, 1},       {3, 128, 2, 2, 1, 8, 1},
                                 {2, 128, 2, 2, 1, 8, 1},      {2, 64, 3, 2, 1, 8, 1},
                                 {4, 64, 4, 2, 1, 8, 1, 1, 2}, {2, 128, 2, 2, 1, 8, 1, 1, 2},
                                 {2, 64, 4, 2, 1, 8, 1, 1, 2}};
    constexpr Config kMiddle[] = {{2, 128, 2, 2, 1, 8, 1}, {3, 80, 2, 2, 1, 8, 1},        {3, 96, 2, 2, 1, 8, 1},
                                  {2, 64, 3, 2, 1, 8, 1},  {2, 128, 2, 2, 1, 8, 1, 1, 2}, {2, 64, 4, 2, 1, 8, 1, 1, 2}};
    constexpr Config kLarge[] = {{2, 80, 2, 1, 1, 8, 1},       {2, 64, 2, 1, 1, 8, 1}, {1, 80, 2, 2, 0, 8, 1},
                                 {2, 64, 2, 1, 1, 8, 1, 1, 2}, {2, 32, 2, 1, 1, 8, 1}, {1, 64, 2, 1, 0, 8, 1},
                                 {1, 32, 2, 1, 0, 8, 1}};
    if (loads_are_scarce(problem, limits)) {
      if (auto values = sharing_loads(problem, limits)) return *values;
    }
    const std::span<const Config> some = widest <= 64    ? std::span<const Config>(kSmall)
                                         : widest <= 128 ? std::span<const Config>(kMiddle)
                                                         : std::span<const Config>(kLarge);
    Fastest<Config> best;
    for (Config config : some) {
      if (problem.band().bounded()) config.scheduler = static_cast<int>(Scheduler::kCounter);
      if (why_invalid(values_of(config), problem, limits)) continue;
      best.offer(config, sm90_fwd::expected_us(config, problem, limits).value_or(kNotMeasuredUs));
    }
    if (!best.config) throw_internal("sm90_fwd has no default config for {}", problem.id());
    return values_of(*best.config);
  }

  int ptxas_level(const Traits& traits) const override { return sm90_fwd::ptxas_level(traits); }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<Config>(values);
    Params params{};
    params.problem = make_forward_params(problem, layouts);
    const std::int64_t heads = problem.batch * problem.heads_q;
    const std::int64_t row_tiles = (problem.seqlen_q + cluster_m(config) - 1) / cluster_m(config);
    const std::int64_t tiles = row_tiles * heads;  // of a cluster each
    const std::int64_t resident = std::max(limits.multiprocessors / config.cluster, 1);
    const std::int64_t section = heads_per_section(problem, heads, tiles, resident);
    params.order =
        tile::TileOrder::of(static_cast<int>(row_tiles), static_cast<int>(heads), static_cast<int>(problem.heads_q),
                            static_cast<int>(problem.group_size()), static_cast<int>(section));
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(
        (scheduler_of(config) == Scheduler::kOneTile ? tiles : std::min(tiles, resident)) * config.cluster);
    step.launch.cluster.x = static_cast<unsigned>(config.cluster);
    step.set_params(params);
    relocate_forward(step, offsetof(Params, problem));
    step.add_map(tensor_map_of(offsetof(Params, q), problem.dtype, layouts.q, {64, sm90_fwd::kRowsPerConsumer, 1, 1}),
                 Operand::kQ);
    step.add_map(
        tensor_map_of(offsetof(Params, k), problem.dtype, layouts.k, {64, config.block_n / config.cluster, 1, 1}),
        Operand::kK);
    step.add_map(
        tensor_map_of(offsetof(Params, v), problem.dtype, layouts.v, {64, config.block_n / config.cluster, 1, 1}),
        Operand::kV);
    step.add_map(tensor_map_of(offsetof(Params, o), problem.dtype, layouts.o, {64, sm90_fwd::kRowsPerStore, 1, 1}),
                 Operand::kO);
    Program program = one_step(std::move(step));
    if (scheduler_of(config) == Scheduler::kCounter) {
      program.workspaces = {{sizeof(unsigned), Workspace::Contents::kLeftZero}};
      program.steps.front().relocate(offsetof(Params, tile_counter), AddressOf::workspace(0));
    }
    return program;
  }

 private:
  // Where loads are scarce: none if no such config is valid.
  std::optional<ConfigValues> sharing_loads(const Problem& problem, const DeviceLimits& limits) const {
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    const bool causal = problem.band().bounded(), long_keys = problem.seqlen_kv > 1024;
    constexpr Config kTall[] = {{3, 96, 2, 2, 1, 8, 1}, {3, 80, 2, 2, 1, 8, 1}};
    constexpr Config kShared[] = {{2, 128, 2, 2, 1, 8, 1}, {2, 80, 2, 1, 1, 8, 1}, {2, 64, 2, 1, 1, 8, 1}};
    std::vector<Config> order;
    if (widest <= 128 && causal && long_keys) order.assign(std::begin(kTall), std::end(kTall));
    order.insert(order.end(), std::begin(kShared), std::end(kShared));
    for (Config config : order) {
      if (causal) config.scheduler = static_cast<int>(Scheduler::kCounter);
      // A cluster takes its tiles in turn, which under a mask costs balance: one that is launched per tile less.
      if (config.num_consumers == 2 && (!causal || long_keys == (widest > 128))) {
        config.cluster = 2;
        config.scheduler = static_cast<int>(causal && long_keys ? Scheduler::kOneTile : Scheduler::kFixedStride);
        if (scheduler_of(config) == Scheduler::kOneTile) config.q_stages = 1;
      }
      if (!why_invalid(values_of(config), problem, limits)) return values_of(config);
    }
    return std::nullopt;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_fwd, Sm90Forward)
