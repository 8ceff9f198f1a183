#include "kernels/family.h"
#include "kernels/batch_invariant.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "kernels/config_binding.h"
#include "kernels/cpu_fwd/forward_widened.h"
#include "kernels/gpu_family.h"

namespace flashcore {
namespace {

class CpuForward : public Family {
 public:
  std::string name() const override { return "cpu_fwd"; }
  std::string description() const override {
    return "blocked online softmax on the CPU: SIMD by dynamic dispatch, all cores";
  }
  DeviceKind kind() const override { return DeviceKind::kCpu; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (limits.kind != DeviceKind::kCpu) return "it runs on a CPU";
    if (std::max(problem.head_dim, problem.head_dim_v) > cpu_fwd::kMaxHeadDim) {
      return fmt::format("head_dim={} head_dim_v={}: at most {}", problem.head_dim, problem.head_dim_v,
                         cpu_fwd::kMaxHeadDim);
    }
    return why_indices_overflow(problem);
  }

  const ConfigSpace& space() const override {
    static const ConfigSpace instance = space_of<cpu_fwd::Config>();
    return instance;
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override;
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override;

  // Rows of one sequence at a time (kernels/cpu_ragged.h), and all of its keys in one part.
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    auto config = config_from<cpu_fwd::Config>(default_config(any_batch_of(problem), limits));
    config.kv_split = 1;
    return values_of(config);
  }

  Launch cpu_launch(const ConfigValues& values, const Problem& problem, const AttentionArgs& args) const override {
    const auto config = config_from<cpu_fwd::Config>(values);
    // std::function wants to be copied; the scratch memory does not.
    if (problem.may_be_scaled())
      return [forward = std::make_shared<cpu_fwd::WidenedForward>(config, problem, args)] { (*forward)(); };
    return [forward = std::make_shared<cpu_fwd::Forward>(config, problem, args)] { (*forward)(); };
  }
};

// Beyond this the merge alone costs more than the split can win, and a large problem would not fit in memory.
constexpr std::int64_t kMaxPartialMb = 256;

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

// Expected time of the busiest core, in rows of one tile: a task costs its rows, and packing K and V costs as much as
// 20 more (measured with AVX-512 at head dim 128), or 40 of AMX's, which take a fourth of the time. More tasks balance
// better and pack more often.
double expected_rows(int block_m, std::int64_t rows, std::int64_t heads, bool grows, double cores, bool amx) {
  const double packing_rows = amx ? 40 : 20;
  const std::int64_t blocks = divide_up(rows, block_m);
  const double task = static_cast<double>(std::min<std::int64_t>(rows, block_m)) + packing_rows;
  const double tasks = static_cast<double>(heads * blocks);
  // Under a causal mask the average row sees half of the keys, and short tasks come last to fill the gaps. In a window
  // all rows see about as many.
  if (grows) return std::max(task, (static_cast<double>(heads * rows) + packing_rows * tasks) / 2 / cores);
  const double idle = std::ceil(tasks / cores) - tasks / cores;
  return (static_cast<double>(heads * rows) + packing_rows * tasks) / cores + idle * task;
}

ConfigValues CpuForward::default_config(const Problem& problem, const DeviceLimits& limits) const {
  cpu_fwd::Config config;
  const std::int64_t cores = std::max(limits.multiprocessors, 1);
  const std::int64_t heads = problem.batch * problem.heads_kv;
  const std::int64_t rows = std::max<std::int64_t>(problem.seqlen_q * problem.group_size(), 1);
  const std::int64_t dims = problem.head_dim + problem.head_dim_v;
  // What is not packed has no panels to keep in a cache, and 16 bits take half of the room there.
  const bool in_place = rows <= cpu_fwd::kMostRowsInPlace, amx = problem.dtype == DType::kBF16 && limits.amx;
  config.block_n = in_place || (amx && dims <= 128) ? 512 : dims > 256 ? 128 : 256;
  // Parts of fewer keys where the cores would not all have one.
  const std::int64_t keys = problem.keys_read().size();
  while (config.block_n > 256 && heads < cores && keys / config.block_n < cores) config.block_n /= 2;
  const Band<std::int64_t> band = problem.band();
  double best = std::numeric_limits<double>::infinity();
  for (int block_m : space().fields()[0].values) {
    const double expected =
        expected_rows(block_m, rows, heads, band.bounded_right && !band.bounded_left, static_cast<double>(cores), amx);
    if (expected < best) {
      best = expected;
      config.block_m = block_m;
    }
  }
  const std::int64_t tasks = heads * divide_up(rows, config.block_m);
  const std::int64_t key_blocks = divide_up(problem.keys_read().size(), config.block_n);
  while (config.kv_split < 32 && tasks * config.kv_split < cores && 2 * config.kv_split <= key_blocks) {
    config.kv_split *= 2;
  }
  return values_of(config);
}

std::optional<std::string> CpuForward::why_invalid(const ConfigValues& values, const Problem& problem,
                                                   const DeviceLimits& limits) const {
  if (auto reason = why_unsupported(problem, limits)) return reason;
  const auto config = config_from<cpu_fwd::Config>(values);
  if (const char* reason = cpu_fwd::why_invalid(config, traits_of(problem), limits_of(limits))) return reason;
  const std::int64_t key_blocks = divide_up(problem.keys_read().size(), config.block_n);
  if (config.kv_split > std::max<std::int64_t>(key_blocks, 1)) {
    return fmt::format("kv_split={} parts of {} blocks of keys: some would be empty", config.kv_split, key_blocks);
  }
  const std::int64_t partial_mb = cpu_fwd::partial_floats(config, problem) * 4 / (1 << 20);
  if (partial_mb > kMaxPartialMb) {
    return fmt::format(
        "kv_split={} would keep {} MB of unmerged output, more than {}: splitting pays where query rows are few",
        config.kv_split, partial_mb, kMaxPartialMb);
  }
  return std::nullopt;
}

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(cpu_fwd, CpuForward)
