#include "kernels/batch_invariant.h"
#include "kernels/gpu_family.h"
#include "kernels/ref_fwd/config.h"
#include "kernels/transposed_v.h"

namespace flashcore {
namespace {

constexpr double kMaxEmulatedFlops = 3e7;

class RefForward final : public GpuFamily<ref_fwd::Config> {
 public:
  std::string name() const override { return "ref_fwd"; }
  std::string description() const override {
    return "naive kernel, one warp per query row: baseline and on-device oracle";
  }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (limits.kind != DeviceKind::kCuda) return "needs an NVIDIA GPU";
    if (problem.head_dim > ref_fwd::kMaxHeadDim || problem.head_dim_v > ref_fwd::kMaxHeadDim) {
      return fmt::format("head dims up to {} only", ref_fwd::kMaxHeadDim);
    }
    // Every product takes two loads, which the emulator checks one by one: minutes from here on.
    if (limits.emulated && problem.flops() > kMaxEmulatedFlops)
      return fmt::format("the naive kernel takes minutes on an emulated GPU beyond {:.0e} FLOP", kMaxEmulatedFlops);
    return why_indices_overflow(problem);
  }
  // Nobody's first choice.
  int preference(const Problem&, const DeviceLimits&) const override { return 0; }

  ConfigValues default_config(const Problem&, const DeviceLimits&) const override {
    return values_of(ref_fwd::Config{});
  }
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    return default_config(any_batch_of(problem), limits);
  }
  KernelSource source(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits) const override {
    return with_entry_for_v(GpuFamily::source(values, problem, limits), problem);
  }
  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits&,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<ref_fwd::Config>(values);
    const std::int64_t rows = problem.batch * problem.heads_q * problem.seqlen_q;
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>((rows + config.num_warps - 1) / config.num_warps);
    set_forward_params(step, problem, layouts);
    Program program = one_step(std::move(step), 0);
    add_clear(program, config, problem);
    return program;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(ref_fwd, RefForward)
