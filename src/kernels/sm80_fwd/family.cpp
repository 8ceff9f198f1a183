#include "kernels/gpu_family.h"
#include "kernels/sm80_fwd/config.h"

namespace flashcore {
namespace {

using sm80_fwd::Config;

class Sm80Forward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm80_fwd"; }
  std::string description() const override { return "cp.async ring, ldmatrix, mma.sync m16n8k16: FlashAttention-2's schedule"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (limits.kind != DeviceKind::kCuda) return "needs an NVIDIA GPU";
    if (limits.arch < 80) return fmt::format("needs compute capability 8.0 or newer, this is sm_{}", limits.arch);
    if (problem.dtype == DType::kF32) return "fp16 and bf16 only: fp32 has no tensor-core path here";
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % 8 != 0 || dim > 256) return fmt::format("head dims that are multiples of 8 up to 256 only, not {}: rows are copied in 16-byte pieces", dim);
    }
    return why_indices_overflow(problem);
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    // From wide to narrow; the first that fits the device's shared memory and registers and fills its SMs at least once.
    // Wide tiles read K and V less often; narrow ones give short problems enough CTAs.
    constexpr Config kPreferred[] = {
        {128, 64, 4, 2, 1, 0, 0, 2}, {128, 64, 4, 2, 1, 0, 0, 1}, {128, 48, 4, 2, 1, 0, 0, 1}, {128, 64, 8, 2, 1, 0, 0, 1},
        {128, 64, 8, 1, 1, 0, 0, 1}, {128, 32, 8, 1, 1, 0, 0, 1}, {64, 64, 4, 2, 1, 0, 0, 2},  {64, 64, 4, 2, 1, 0, 0, 1},
        {64, 64, 4, 1, 1, 0, 0, 1},  {64, 32, 4, 1, 1, 0, 0, 1},  {32, 64, 2, 2, 1, 0, 0, 1},  {32, 32, 2, 1, 1, 0, 0, 1},
        {16, 32, 1, 2, 1, 0, 0, 1},  {16, 32, 1, 1, 1, 0, 0, 1}};
    const Config* widest = nullptr;
    for (const Config& config : kPreferred) {
      if (why_invalid(values_of(config), problem, limits)) continue;
      if (!widest) widest = &config;
      if (tiles(problem, config) >= limits.multiprocessors) return values_of(config);
    }
    FC_CHECK(widest != nullptr);
    // No tile fills the device: more, smaller CTAs are better than fewer, down to 64 rows.
    const Config narrow{64, 64, 4, 2, 1, 0, 0, 1};
    return values_of(why_invalid(values_of(narrow), problem, limits) ? *widest : narrow);
  }

  LaunchSpec launch_spec(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits, const AttentionArgs& args) const override {
    const auto config = config_from<Config>(values);
    const std::int64_t count = tiles(problem, config);
    const std::int64_t resident = static_cast<std::int64_t>(limits.multiprocessors) * config.ctas_per_sm;
    LaunchSpec spec;
    spec.grid.x = static_cast<unsigned>(config.persistent ? std::min(count, resident) : count);
    spec.block.x = static_cast<unsigned>(threads_per_block(config));
    spec.shared_bytes = static_cast<unsigned>(smem_bytes(config, traits_of(problem)));
    spec.params = params_bytes(make_forward_params(problem, args));
    return spec;
  }

 private:
  static std::int64_t tiles(const Problem& problem, const Config& config) {
    return (problem.seqlen_q + config.block_m - 1) / config.block_m * problem.heads_q * problem.batch;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm80_fwd, Sm80Forward)
