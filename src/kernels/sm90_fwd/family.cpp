#include <array>
#include <cstddef>
#include <span>

#include "kernels/batch_invariant.h"
#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/expected_time.h"
#include "kernels/sm90_fwd/params.h"
#include "kernels/tile_rounds.h"

namespace flashcore {
namespace {

using sm90_fwd::Config;
using tile::Scheduler;

using Params = sm90_fwd::Params<EncodedMap>;

// Rows of an odd number of 16 bytes take TMA half as long again, and past 64 columns the tensor cores wait for it. Then
// a block that is loaded for more rows, by a third consumer or by a cluster, is worth up to a third of the time, if
// there are tiles enough for all SMs to load.
bool loads_are_scarce(const Problem& problem, const DeviceLimits& limits) {
  return std::max(problem.head_dim, problem.head_dim_v) > 64 &&
         (problem.head_dim % 16 != 0 || problem.head_dim_v % 16 != 0) &&
         2 * tiles_of_rows(problem, 128) >= limits.multiprocessors;
}

// The elements of a score function's tensors are on their way for many keys at once: fitted to biases, which spilled.
// Beside three consumers those of pairs spilled 16 to 40 bytes, in 13 of 26 configs with blocks of more than 64 keys
// and fewer than 16 registers left; those of rows or keys alone never, nor pairs' of 64 keys.
int most_keys_of_a_block(const Problem& problem, const Config& config) {
  if (config.num_consumers == 3 && problem.has_score_expression() &&
      reads_elements_of_pairs(problem.score_expression()) &&
      registers_needed(config, traits_of(problem)) + 16 > consumer_registers(config))
    return 64;
  const bool reads_tensors = problem.has_score_expression() && !problem.score_expression().tensors().empty();
  const bool is_wide = std::max(problem.head_dim, problem.head_dim_v) > 64;
  return reads_tensors && is_wide && config.num_consumers == 2 ? 112 : std::numeric_limits<int>::max();
}

// The same of a mask's elements. Alone they spilled 60 bytes of 112 keys beside one consumer's 192 columns, 4 beside
// three consumers, and 8 to 24 of 128 keys beside 112 columns. Combined with anything else (allowed[i, j] || i == j)
// 16 of 28 configs with 96 keys and more spilled 4 to 24, and 16 of 80 keys beside one consumer's 192 columns.
int most_keys_beside_mask_elements(const Problem& problem, const Config& config) {
  if (!problem.has_mask_expression() || !reads_elements_of_pairs(problem.mask_expression()))
    return std::numeric_limits<int>::max();
  const bool is_full = config.num_consumers == 1 && problem.head_dim_v > 176;
  if (mask_combines_elements_of_pairs(problem)) return config.num_consumers > 2 ? 48 : is_full ? 64 : 80;
  if (config.num_consumers == 3) return 48;
  return is_full ? 96 : problem.head_dim_v > 96 && problem.head_dim_v <= 112 ? 112 : std::numeric_limits<int>::max();
}

class Sm90Forward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm90_fwd"; }
  std::string description() const override { return "Hopper: TMA ring, warp-specialised wgmma, ping-pong consumers"; }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (problem.paged() && problem.has_expression())
      return "functions of the user's own on paged caches: its loader of pages does not know lists of blocks";
    return why_no_hopper_tiles(problem, limits);
  }

  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    const auto config = config_from<Config>(values);
    if (const int most = most_keys_of_a_block(problem, config); config.block_n > most)
      return fmt::format("blocks of more than {} keys leave too few registers for a score function that reads tensors",
                         most);
    if (const int most = most_keys_beside_mask_elements(problem, config); config.block_n > most)
      return fmt::format(
          "blocks of more than {} keys leave too few registers for a mask function that reads an element "
          "of each pair",
          most);
    // 4 bytes, with a softcap and without.
    if (config.num_consumers > 2 && config.q_stages > 1 && config.ping_pong == 4 && problem.paged())
      return "the producer beside three consumers has too few registers for a second Q stage and turns of the softmax "
             "of a paged cache";
    return std::nullopt;
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
    constexpr Config kSmall[] = {
        {.num_consumers = 4, .block_n = 64, .num_stages = 3, .q_stages = 2},
        {.num_consumers = 3, .block_n = 128, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 2, .block_n = 128, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 2, .block_n = 64, .num_stages = 3, .q_stages = 2},
        {.num_consumers = 4, .block_n = 64, .num_stages = 4, .q_stages = 2, .key_groups = 2},
        {.num_consumers = 2, .block_n = 128, .num_stages = 2, .q_stages = 2, .key_groups = 2},
        {.num_consumers = 2, .block_n = 64, .num_stages = 4, .q_stages = 2, .key_groups = 2},
    };
    constexpr Config kMiddle[] = {
        {.num_consumers = 2, .block_n = 128, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 3, .block_n = 80, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 3, .block_n = 96, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 2, .block_n = 64, .num_stages = 3, .q_stages = 2},
        {.num_consumers = 2, .block_n = 128, .num_stages = 2, .q_stages = 2, .key_groups = 2},
        {.num_consumers = 2, .block_n = 64, .num_stages = 4, .q_stages = 2, .key_groups = 2},
    };
    constexpr Config kLarge[] = {
        {.num_consumers = 2, .block_n = 80, .num_stages = 2, .q_stages = 1},
        {.num_consumers = 2, .block_n = 64, .num_stages = 2, .q_stages = 1},
        {.num_consumers = 1, .block_n = 80, .num_stages = 2, .q_stages = 2, .ping_pong = 0},
        {.num_consumers = 2, .block_n = 64, .num_stages = 2, .q_stages = 1, .key_groups = 2},
        {.num_consumers = 2, .block_n = 32, .num_stages = 2, .q_stages = 1},
        {.num_consumers = 1, .block_n = 64, .num_stages = 2, .q_stages = 1, .ping_pong = 0},
        {.num_consumers = 1, .block_n = 32, .num_stages = 2, .q_stages = 1, .ping_pong = 0},
    };
    if (!problem.paged() && loads_are_scarce(problem, limits)) {
      if (auto values = sharing_loads(problem, limits)) return *values;
    }
    const std::span<const Config> some = widest <= 64    ? std::span<const Config>(kSmall)
                                         : widest <= 128 ? std::span<const Config>(kMiddle)
                                                         : std::span<const Config>(kLarge);
    Fastest<Config> best;
    for (Config config : some) {
      // Boxes of a page are gcd(page_size, block_n) rows, and a single warp loads them beside three consumers: prompts
      // in pages of 128 keys ran at 690 TFLOP/s with two consumers of 128 keys and at 504 with three of 80 (H200).
      if (problem.paged() && config.num_consumers > 2) continue;
      // A function's instructions take longer than the multiplies: two consumers have registers for many keys, and
      // turns of the softmax keep them apart. Under a causal mask, against the fastest config whose turns end with the
      // issue: 1.02 times as fast for ten operations at head dim 128, 1.03 at 64, 1.02 for a tanh, 1.01 for slopes and
      // a bias. What the model chose before took 1.02 to 1.13 times as long (H100, quick runs of which nothing is
      // kept). Ragged batches were not measured.
      if (problem.has_score_expression() && widest <= 128) {
        if (config.num_consumers > 2) continue;
        if (config.key_groups == 1 && !problem.ragged()) config.ping_pong = 4;
      }
      if (problem.band().bounded()) config.scheduler = Scheduler::kCounter;
      config.block_n = std::min(
          {config.block_n, most_keys_of_a_block(problem, config), most_keys_beside_mask_elements(problem, config)});
      if (why_invalid(values_of(config), problem, limits)) continue;
      best.offer(config, sm90_fwd::expected_us(config, problem, limits).value_or(kNotMeasuredUs));
    }
    if (!best.config) throw_internal("sm90_fwd has no default config for {}", problem.id());
    return values_of(*best.config);
  }

  int ptxas_level(const Traits& traits) const override { return sm90_fwd::ptxas_level(traits); }
  std::optional<ListShape> list_shape(const Config& config, const Problem&) const override {
    return ListShape{sm90_fwd::row_groups(config), sm90_fwd::kRowsPerConsumer, config.block_n};
  }

  // A CTA computes a tile of rows of one sequence, over all of its keys.
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    return default_config(any_batch_of(problem), limits);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<Config>(values);
    Params params{};
    params.problem = make_forward_params(problem, layouts);
    const std::int64_t clusters = std::max(limits.multiprocessors / config.cluster, 1);  // that run at once
    // Of a ragged batch the device counts and orders the tiles (tile/ragged_tiles.cuh).
    if (!problem.ragged()) params.order = tile_order_of(problem, cluster_m(config), clusters);
    const std::int64_t tiles =
        problem.ragged() ? most_ragged_tiles(problem, layouts.total_q, cluster_m(config)) : params.order.tile_count;
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(takers_of(config.scheduler, tiles, clusters) * config.cluster);
    step.launch.cluster.x = static_cast<unsigned>(config.cluster);
    if (problem.paged()) set_pool_params(step, params, config.block_n, problem, layouts);
    else set_params_of(step, params, problem, layouts);
    relocate_forward(step, offsetof(Params, problem));
    const auto add_map = [&](std::size_t offset, const TensorLayout& layout, std::int64_t bound, int rows,
                             Operand operand) {
      const std::array<int, 4> box = {64, rows, 1, 1};
      step.add_map(problem.ragged() ? ragged_map_of(offset, problem.dtype, layout, bound, box)
                                    : tensor_map_of(offset, problem.dtype, layout, box),
                   operand);
    };
    const int keys = config.block_n / config.cluster;
    // Where no sequence has keys there may be no memory to point at, and nothing is loaded.
    const bool no_keys = problem.ragged() && layouts.total_kv == 0;
    add_map(offsetof(Params, q), layouts.q, problem.seqlen_q, sm90_fwd::kRowsPerConsumer, Operand::kQ);
    if (!problem.paged()) {
      add_map(offsetof(Params, k), layouts.k, problem.seqlen_kv, keys, no_keys ? Operand::kQ : Operand::kK);
      add_map(offsetof(Params, v), layouts.v, problem.seqlen_kv, keys, no_keys ? Operand::kQ : Operand::kV);
    }
    add_map(offsetof(Params, o), layouts.o, problem.seqlen_q, sm90_fwd::kRowsPerStore, Operand::kO);
    Program program = one_step(std::move(step));
    add_tile_counter(program, config.scheduler, offsetof(Params, tile_counter));
    add_lists<Params>(program, config, problem, layouts);
    return program;
  }

 private:
  // Where loads are scarce: none if no such config is valid.
  std::optional<ConfigValues> sharing_loads(const Problem& problem, const DeviceLimits& limits) const {
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    const bool causal = problem.band().bounded(), long_keys = problem.seqlen_kv > 1024;
    constexpr Config kTall[] = {
        {.num_consumers = 3, .block_n = 96, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 3, .block_n = 80, .num_stages = 2, .q_stages = 2},
    };
    constexpr Config kShared[] = {
        {.num_consumers = 2, .block_n = 128, .num_stages = 2, .q_stages = 2},
        {.num_consumers = 2, .block_n = 80, .num_stages = 2, .q_stages = 1},
        {.num_consumers = 2, .block_n = 64, .num_stages = 2, .q_stages = 1},
    };
    std::vector<Config> order;
    if (widest <= 128 && causal && long_keys) order.assign(std::begin(kTall), std::end(kTall));
    order.insert(order.end(), std::begin(kShared), std::end(kShared));
    for (Config config : order) {
      if (causal) config.scheduler = Scheduler::kCounter;
      // A cluster takes its tiles in turn, which under a mask costs balance: one that is launched per tile less.
      if (config.num_consumers == 2 && (!causal || long_keys == (widest > 128))) {
        config.cluster = 2;
        const bool launched = causal && long_keys && !problem.ragged();
        config.scheduler = launched ? Scheduler::kOneTile : Scheduler::kFixedStride;
        if (config.scheduler == Scheduler::kOneTile) config.q_stages = 1;
      }
      if (!why_invalid(values_of(config), problem, limits)) return values_of(config);
    }
    return std::nullopt;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_fwd, Sm90Forward)
