#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/batch_invariant.h"
#include "kernels/expected_time.h"
#include "kernels/gpu_family.h"
#include "kernels/sm90_short_fwd/config.h"
#include "kernels/sm90_short_fwd/expected_time.h"
#include "kernels/sm90_short_fwd/params.h"

namespace flashcore {
namespace {

using sm90_short_fwd::Config;
using Params = sm90_short_fwd::Params<EncodedMap>;

constexpr std::int64_t kMaxGrid = 65535;
constexpr std::int64_t kLeastPage = 8;  // keys
// Sequences from which on both cases below count. Of fewer the longest one is most of the work either way: four of
// 20,000 keys took 22% longer with the config that is best of spread lengths, and spread ones 19% longer with the one
// that is best of equal lengths (H100, a quick run of which nothing is kept).
constexpr std::int64_t kLeastSpread = 8;
// Of one long sequence among short ones, against keys that are dealt out evenly. Of more than 16 rows packed such
// dealing takes 1.15 to 1.25 of the time where lengths are alike.
constexpr double kMostLoss = 2, kMostLossOfManyRows = 6;
// How much longer a sequence of the bound is under way alone than when dealt out: as a share of the time of the whole
// batch at its bounds, and in us, which keeps it to bounds that are near what is used. With so little the others hide
// most of one long sequence, and CTAs without clusters are faster: 64 to 192 sequences of up to 1,000 to 8,192 keys
// took 0.95 to 1.01 of the time of keys dealt out with equal lengths, 0.93 to 1.01 with random ones, and 0.85 to 1.10
// where the longest was four to seven times the mean. 48 and 56 sequences, which these numbers leave out by a little,
// took 1.02 and 1.03 with equal lengths (H200, results/h200/decode_whole_tiles.json).
constexpr double kMostShare = 0.112, kMostLongerUs = 60;
constexpr double kMostOfDealtOut = 1.016;  // of the whole batch
// What such a config may lose against the best, of the two cases together: of 64 sequences of 4,096 keys two key groups
// took 1.01 and 1.04 times as long as one, and hide a long sequence.
constexpr double kMostForAShare = 0.08;
// Of a wave and little more, the keys dealt out evenly took 0.93 to 0.94 of the time on an H100 (17 sequences of 4,096
// or 16,384 keys, 136 tiles on 132 SMs), and 0.83 to 0.96 on an H200.
constexpr std::int64_t kFewRows = 8, kMostTimedRows = 16;
constexpr double kNoSooner = 1.01;  // models are no better
// What sm80_decode_fwd takes less since its parts merge by warps and its CTAs go by the number of tiles, by one to five
// sequences and eight key heads on an H200, with up to eight rows and with more. With one key head it is 27 us less,
// which nothing here knows.
constexpr double kMergesSoonerUs = 2.6, kManyRowsMergeSoonerUs = 7.2;
// Where two CTAs of each SM have a tile of their own nothing merges: 0.98 to 1.00 of the time at 1,000 keys, 1.00
// to 1.01 at 4,096 and 8,192 (the same H200). Of fewer keys no time was taken since.
constexpr std::int64_t kFewKeysOfATile = 1000, kManyKeysOfATile = 4096;

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

// Of a ragged batch, whose lengths the device alone knows: should all be the bound, and should they be spread evenly up
// to it.
struct Expected {
  Config config;
  double alike_us, spread_us;
};
bool loses_little(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  const bool many_rows = problem.seqlen_q * problem.group_size() > 16;
  return sm90_short_fwd::loss_of_one_long_sequence(config, problem, limits) <=
         (many_rows ? kMostLossOfManyRows : kMostLoss);
}
// Whether one long sequence is hidden under the others.
bool hides_a_long_sequence(const Config& config, const Problem& problem, const DeviceLimits& limits) {
  if (config.cluster > 1) return false;
  const double dealt_out = sm90_short_fwd::dealt_out_us(problem, limits);
  return sm90_short_fwd::one_long_sequence_longer_us(config, problem, limits) <=
             std::min(kMostLongerUs, kMostShare * dealt_out) &&
         *sm90_short_fwd::expected_us(config, problem, limits) <= kMostOfDealtOut * dealt_out;
}
// The config that loses least against the best of each case; one that hides a long sequence, if it loses little more.
const Config& best_of_both(const std::vector<Expected>& candidates, const Problem& problem,
                           const DeviceLimits& limits) {
  const auto least = [&](double Expected::*us) { return (*std::ranges::min_element(candidates, {}, us)).*us; };
  const double alike = least(&Expected::alike_us), spread = least(&Expected::spread_us);
  const auto loss = [&](const Expected& e) { return e.alike_us / alike + e.spread_us / spread; };
  const Expected* best = &*std::ranges::min_element(candidates, {}, loss);
  if (loses_little(best->config, problem, limits)) return best->config;
  const Expected* even = nullptr;
  for (const Expected& e : candidates) {
    if (loss(e) > loss(*best) + kMostForAShare || (even && loss(e) >= loss(*even))) continue;
    if (hides_a_long_sequence(e.config, problem, limits)) even = &e;
  }
  return even ? even->config : best->config;
}

class Sm90ShortForward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm90_short_fwd"; }
  std::string description() const override {
    return "Hopper, short or few rows: keys split over warpgroups and a cluster, merged in shared memory";
  }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_expression(problem)) return reason;
    if (auto reason = why_no_hopper_tiles(problem, limits)) return reason;
    if (problem.ragged() && !problem.paged()) return "packed keys: of ragged batches it reads paged caches only";
    if (problem.paged() && problem.page_size % kLeastPage != 0)
      return fmt::format("pages of multiples of {} keys only, not {}: a load of fewer keys is as long under way",
                         kLeastPage, problem.page_size);
    // Batch and row tiles are the grid's second and third dimension.
    if (problem.batch > kMaxGrid || problem.seqlen_q > kMaxGrid)
      return fmt::format("at most {} sequences of {} rows", kMaxGrid, kMaxGrid);
    return std::nullopt;
  }

  // Of config.h, and what ptxas spills though config.h counts enough registers (a fuzzer drew these).
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    const auto config = config_from<Config>(values);
    // 16 bytes of 128 registers.
    if (config.key_groups > 2 && config.block_n > 96 && problem.paged() && problem.band().bounded())
      return "four key groups have too few registers for blocks of more than 96 keys of a paged cache under a mask";
    return std::nullopt;
  }

  // Of paged caches: decoding. With equal lengths it was 2 to 56% faster than sm80_decode_fwd (H100, quick runs of 15
  // problems). But a sequence has the CTAs that the bounds give it, whatever the others leave idle, and sm80_decode_fwd
  // deals out any mix of lengths alike: so where one long sequence would take too long, that comes before. Longer rows
  // are for sm90_fwd.
  int preference(const Problem& problem, const DeviceLimits& limits) const override {
    if (!problem.paged()) return 90;
    if (problem.seqlen_q > kFewInvariantRows) return 60;
    const auto config = config_from<Config>(default_config(problem, limits));
    if (idles(config, problem, limits)) return 94;
    if (problem.batch == 1) return 97;
    return loses_little(config, problem, limits) || hides_a_long_sequence(config, problem, limits) ? 97 : 94;
  }

  // Whether a sequence's own CTAs, a cluster at the most, leave so much of the SMs or of DRAM's rate unused that keys
  // dealt out evenly are sooner done. Of eight key heads that is one sequence of 65,536 keys on an H200 (0.81 to 0.88
  // of the time), and with up to eight rows one and two of 16,384 (0.92 to 1.01, 0.84 to 0.89;
  // results/h200/decode_configs.json). The slower DRAM of an H100 leaves less to gain there. Of more rows than 16 no
  // time was taken.
  static bool idles(const Config& config, const Problem& problem, const DeviceLimits& limits) {
    const std::int64_t packed = problem.seqlen_q * problem.group_size();
    if (packed > kMostTimedRows) return false;
    const std::int64_t tiles = tiles_of(config, problem).clusters, sms = limits.multiprocessors;
    if (tiles <= 2 * sms && 16 * tiles >= 30 * sms)
      return problem.seqlen_kv >= kFewKeysOfATile && problem.seqlen_kv < kManyKeysOfATile;
    if (tiles > sms + sms / 16) return false;
    if (tiles > sms) return problem.seqlen_kv >= (packed <= kFewRows ? 2048 : 4096);
    return sm90_short_fwd::dealt_out_us(problem, limits) -
               (packed <= kFewRows ? kMergesSoonerUs : kManyRowsMergeSoonerUs) <=
           kNoSooner * *sm90_short_fwd::expected_us(config, problem, limits);
  }

  std::optional<double> expected_us(const ConfigValues& values, const Problem& problem,
                                    const DeviceLimits& limits) const override {
    return sm90_short_fwd::expected_us(config_from<Config>(values), problem, limits);
  }

  // Into how many parts the keys are split: more are sooner done, until their CTAs no longer fit the device at once.
  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    struct Step {
      int block_n, num_stages;
    };
    constexpr Step kNarrow[] = {{128, 2}, {128, 1}, {64, 2}, {32, 1}};
    constexpr Step kMiddle[] = {{64, 2}, {64, 1}, {128, 1}, {32, 1}};
    constexpr Step kWide[] = {{32, 4}, {32, 2}, {32, 1}};
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    const std::span<const Step> steps = widest <= 64    ? std::span<const Step>(kNarrow)
                                        : widest <= 128 ? std::span<const Step>(kMiddle)
                                                        : std::span<const Step>(kWide);
    Config config;
    // Rows that exist in as few warps as can be: the others have nothing to merge.
    while (sm90_short_fwd::positions(config) / 2 >= problem.seqlen_q) config.pack_heads *= 2;
    Fastest<Config> best;
    const bool is_ragged = problem.paged() && problem.batch >= kLeastSpread;
    std::vector<Expected> candidates;
    for (const Step& step : steps) {
      config.block_n = step.block_n, config.num_stages = step.num_stages;
      const std::int64_t blocks = blocks_of_tiles(problem, sm90_short_fwd::positions(config), config.block_n).longest;
      for (config.key_groups = 1; config.key_groups <= 2; config.key_groups *= 2) {
        for (config.cluster = 1; config.cluster <= 8; config.cluster *= 2) {
          // A part without a block has nothing to do but to merge.
          const std::int64_t parts = sm90_short_fwd::parts(config);
          if (parts > 1 && parts - 1 >= blocks) continue;
          if (why_invalid(values_of(config), problem, limits)) continue;
          const double alike = *sm90_short_fwd::expected_us(config, problem, limits);
          best.offer(config, alike);
          if (is_ragged)
            candidates.push_back({config, alike, *sm90_short_fwd::expected_us(config, problem, limits, 0.5)});
        }
      }
    }
    if (is_ragged && !candidates.empty()) return values_of(best_of_both(candidates, problem, limits));
    if (!best.config) throw_internal("sm90_short_fwd has no default config for {}", problem.id());
    return values_of(*best.config);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<Config>(values);
    Params params{};
    params.problem = make_forward_params(problem, layouts);
    const Tiles tiles = tiles_of(config, problem);
    params.group_size = static_cast<int>(problem.group_size());
    params.head_tiles = static_cast<int>(tiles.heads);
    // More CTAs than SMs: some begin late. The lengths are known on the device alone, where a thread ranks one.
    params.longest_first = problem.paged() && problem.batch > 1 &&
                           problem.batch <= sm90_short_fwd::threads_per_block(config) &&
                           tiles.clusters * config.cluster > limits.multiprocessors;
    Step step = step_of(config, problem);
    step.launch.grid = {static_cast<unsigned>(problem.heads_kv * tiles.heads * config.cluster),
                        static_cast<unsigned>(problem.batch), static_cast<unsigned>(tiles.rows)};
    step.launch.cluster.x = static_cast<unsigned>(config.cluster);
    step.launch.programmatic = config.early_launch != 0;
    if (problem.paged()) set_pool_params(step, params, config.block_n, problem, layouts);
    else set_params_of(step, params, problem, layouts);
    relocate_forward(step, offsetof(Params, problem));
    const std::array<int, 4> box_q = {64, sm90_short_fwd::positions(config), config.pack_heads, 1};
    step.add_map(problem.paged() ? ragged_map_of(offsetof(Params, q), problem.dtype, layouts.q, problem.seqlen_q, box_q)
                                 : tensor_map_of(offsetof(Params, q), problem.dtype, layouts.q, box_q),
                 Operand::kQ);
    if (!problem.paged()) {
      const std::array<int, 4> box = {64, config.block_n, 1, 1};
      step.add_map(tensor_map_of(offsetof(Params, k), problem.dtype, layouts.k, box), Operand::kK);
      step.add_map(tensor_map_of(offsetof(Params, v), problem.dtype, layouts.v, box), Operand::kV);
    }
    return one_step(std::move(step));
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_short_fwd, Sm90ShortForward)
