#include <algorithm>
#include <span>

#include "core/error.h"
#include "kernels/gpu_family.h"
#include "kernels/sm89_fp8_fwd/config.h"

namespace flashcore {
namespace {

using AdaConfig = sm89_fp8_fwd::Config;

class Sm89Fp8Forward final : public GpuFamily<AdaConfig> {
 public:
  std::string name() const override { return "sm89_fp8_fwd"; }
  std::string description() const override {
    return "e4m3, e5m2: cp.async ring, mma.sync m16n8k32 with sums promoted to fp32, V transposed in registers";
  }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_not_paged(problem)) return reason;
    if (limits.kind != DeviceKind::kCuda) return "needs an NVIDIA GPU";
    if (limits.arch < 89)
      return fmt::format("needs compute capability 8.9 or newer for mma.sync of 8-bit floats, this is sm_{}",
                         limits.arch);
    if (!problem.is_8bit()) return "e4m3 and e5m2 only";
    if (problem.has_transposed_v()) return "v_layout dn: no kernel of this family reads V as columns of keys";
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % 16 != 0 || dim > 256)
        return fmt::format(
            "head dims that are multiples of 16 up to 256 only, not {}: rows are copied in 16-byte pieces", dim);
    }
    if (auto reason = why_indices_overflow(problem)) return reason;
    // Not this->why_invalid, which asks here.
    if (const char* reason = detail::family_why_invalid(kLeast, traits_of(problem), limits_of(limits)))
      return fmt::format("head dims {} and {}: {}", problem.head_dim, problem.head_dim_v, reason);
    return std::nullopt;
  }

  // Hopper's wgmma before it, where there is a kernel of it for the problem.
  int preference(const Problem&, const DeviceLimits&) const override { return 89; }

  bool keeps_bounds(const ConfigValues& values, const Problem& problem) const override {
    return are_sums_short(config_from<AdaConfig>(values).promote_keys, problem);
  }

  std::optional<ListShape> list_shape(const AdaConfig& config, const Problem&) const override {
    return ListShape{1, config.block_m, config.block_n};
  }

  // Of config.h, and what ptxas spills though config.h counts enough registers (a fuzzer drew these).
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    const auto config = config_from<AdaConfig>(values);
    // Sums of 32 keys of a long block are unrolled: 12 and 16 bytes at head dims 80 and 128 under a window.
    if (config.promote_keys == 32 && config.block_n > 64 && config.num_warps <= 2 && problem.head_dim > 64 &&
        problem.band().bounded())
      return "one or two warps have too few registers to promote each 32 keys of a block of more than 64 under a mask, "
             "with head dims above 64";
    // Where operands are unpacked: 4 to 12 bytes at head dims 112 and 128.
    if (!sm89_fp8_fwd::multiplies_8_bits(limits.arch) && problem.head_dim > 96 && problem.head_dim_v <= 64 &&
        config.block_n > 64 && (config.q_in_registers || config.persistent || config.block_n > 96))
      return "head dims above 96 beside up to 64 columns of V leave too few registers for blocks of more than 64 keys "
             "with Q in registers or with CTAs that go round tiles, and of more than 96 without";
    // Q·K of wide heads is unrolled: 8 bytes of two warps, 20 of CTAs that go round tiles.
    if (problem.head_dim >= 160 && problem.head_dim_v <= 128 &&
        (config.persistent || (config.num_warps <= 2 && config.block_n > 32)))
      return "wide heads beside up to 128 columns of V leave too few registers to one or two warps with blocks of more "
             "than 32 keys, and to CTAs that go round tiles";
    return std::nullopt;
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    // Not tuned: no such GPU has run it. Two CTAs an SM fill each other's gaps in sm80_fwd, whose shapes these are,
    // with blocks of twice the keys in the same bytes.
    constexpr AdaConfig kWide[] = {
        {.block_m = 128, .block_n = 64, .num_warps = 4, .num_stages = 2, .ctas_per_sm = 2},
        {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 2, .ctas_per_sm = 2},
        {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 2, .q_in_registers = 0, .ctas_per_sm = 2},
        {.block_m = 64, .block_n = 32, .num_warps = 4, .num_stages = 2, .promote_keys = 32, .ctas_per_sm = 2},
        {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 2},
        {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 2, .q_in_registers = 0},
        {.block_m = 64, .block_n = 32, .num_warps = 4, .num_stages = 2, .q_in_registers = 0, .promote_keys = 32},
        {.block_m = 32, .block_n = 32, .num_warps = 2, .num_stages = 2, .q_in_registers = 0, .promote_keys = 32},
    };
    // Too few tiles to fill the device: more, smaller CTAs.
    constexpr AdaConfig kNarrow[] = {
        {.block_m = 64, .block_n = 128, .num_warps = 4, .num_stages = 2, .promote_keys = 128},
        {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 2},
    };
    constexpr AdaConfig kFewRows = {.block_m = 16, .block_n = 64, .num_warps = 1, .num_stages = 3};
    const auto is_valid = [&](const AdaConfig& config) { return !why_invalid(values_of(config), problem, limits); };
    if (problem.seqlen_q <= 16 && is_valid(kFewRows)) return values_of(kFewRows);
    if (tiles_of_rows(problem, 128) < limits.multiprocessors) {
      for (const AdaConfig& config : std::span(kNarrow).subspan(problem.seqlen_kv <= 128 ? 1 : 0))
        if (is_valid(config)) return values_of(config);
    }
    for (const AdaConfig& config : kWide)
      if (is_valid(config)) return values_of(config);
    return values_of(kLeast);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<AdaConfig>(values);
    const std::int64_t count = tiles_of_rows(problem, config.block_m);
    const std::int64_t resident = static_cast<std::int64_t>(limits.multiprocessors) * config.ctas_per_sm;
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(config.persistent ? std::min(count, resident) : count);
    set_forward_params(step, problem, layouts);
    Program program = one_step(std::move(step));
    if (problem.amax) add_lists<AmaxFp8ForwardParams>(program, config, problem, layouts);
    else add_lists<Fp8ForwardParams>(program, config, problem, layouts);
    add_clear(program, config, problem);
    return program;
  }

 private:
  static constexpr AdaConfig kLeast = {
      .block_m = 16, .block_n = 32, .num_warps = 1, .num_stages = 2, .q_in_registers = 0, .promote_keys = 32};
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm89_fp8_fwd, Sm89Fp8Forward)
