#include "core/error.h"
#include "kernels/batch_invariant.h"
#include "kernels/gpu_family.h"
#include "kernels/sm80_fwd/config.h"
#include "kernels/sm80_fwd/params.h"

namespace flashcore {
namespace {

using sm80_fwd::Config;

class Sm80Forward final : public GpuFamily<Config> {
 public:
  std::string name() const override { return "sm80_fwd"; }
  std::string description() const override {
    return "cp.async ring, ldmatrix, mma.sync m16n8k16: FlashAttention-2's schedule";
  }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_ampere(problem, limits)) return reason;
    if (auto reason = why_no_quantised_cache(problem)) return reason;
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % 8 != 0 || dim > 256)
        return fmt::format(
            "head dims that are multiples of 8 up to 256 only, not {}: rows are copied in 16-byte pieces", dim);
    }
    // The last of the defaults. The widest O leaves nothing for what functions, windows and ragged batches take
    // besides.
    constexpr Config kLeast = {.block_m = 16, .block_n = 32, .num_warps = 1, .num_stages = 1};
    if (const char* reason = sm80_fwd::why_invalid(kLeast, traits_of(problem), limits_of(limits)))
      return fmt::format("head dims {} and {} with {}: {}", problem.head_dim, problem.head_dim_v,
                         problem.has_expression() ? "functions of the user's own"
                         : problem.ragged()       ? "such a mask and a ragged batch"
                                                  : "such a mask",
                         reason);
    return why_indices_overflow(problem);
  }

  int preference(const Problem&, const DeviceLimits&) const override { return 80; }
  std::optional<ListShape> list_shape(const Config& config, const Problem&) const override {
    return ListShape{1, config.block_m, config.block_n};
  }

  // Of config.h, and what ptxas spills though config.h counts enough registers (a fuzzer drew these).
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    const auto config = config_from<Config>(values);
    // 32 to 80 bytes for sm_90, in pages of 1, 64 and 100 keys; none for sm_80 and sm_89.
    if (limits.arch >= 90 && problem.paged() && problem.head_dim_v > 224 && config.block_n > 32)
      return "blocks of more than 32 keys of a paged cache leave too few registers beside more than 224 columns";
    // 24 to 32 bytes at head dim 64 with 256 columns, for sm_90.
    if (limits.arch >= 90 && problem.paged() && problem.head_dim_v > 224 && config.num_warps == 1 &&
        config.q_in_registers)
      return "one warp has too few registers for Q beside more than 224 columns of a paged cache";
    // 4 to 84 bytes of 96 and 128 keys, at all head dims.
    if (config.block_n > 64 && mask_combines_elements_of_pairs(problem))
      return "blocks of more than 64 keys leave too few registers for a mask function that combines an element of each "
             "pair with anything else";
    // 12 bytes of eight warps with a window.
    if (config.persistent && config.q_in_registers && problem.head_dim > 128 && problem.band().bounded())
      return "CTAs that go round tiles have too few registers for Q of more than 128 columns beside a mask";
    return std::nullopt;
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    // Wide tiles read K and V less often, but under a mask they compute more that is masked. One stage beat two
    // wherever both fit on an H200: what matters is that two CTAs fill each other's gaps. Q in registers saves its
    // reads, where there is room. The order and the limits on head_dim are from tuning there
    // (results/landscapes/sm80_fwd.json).
    struct Preference {
      Config config;
      std::int64_t max_head_dim;
    };
    constexpr Preference kWide[] = {
        {.config =
             {.block_m = 128, .block_n = 64, .num_warps = 4, .num_stages = 1, .q_in_registers = 1, .ctas_per_sm = 2},
         .max_head_dim = 64},
        {.config = {.block_m = 128, .block_n = 64, .num_warps = 4, .num_stages = 1, .ctas_per_sm = 2},
         .max_head_dim = 80},
        {.config =
             {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1, .q_in_registers = 1, .ctas_per_sm = 2},
         .max_head_dim = 112},
        {.config = {.block_m = 128, .block_n = 48, .num_warps = 4, .num_stages = 2}, .max_head_dim = 128},
        {.config = {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1, .ctas_per_sm = 2},
         .max_head_dim = 256},
        {.config = {.block_m = 128, .block_n = 64, .num_warps = 8, .num_stages = 1}, .max_head_dim = 256},
        {.config = {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1}, .max_head_dim = 256},
        {.config = {.block_m = 64, .block_n = 32, .num_warps = 4, .num_stages = 1}, .max_head_dim = 256},
        {.config = {.block_m = 32, .block_n = 32, .num_warps = 2, .num_stages = 1}, .max_head_dim = 256},
        {.config = {.block_m = 16, .block_n = 32, .num_warps = 1, .num_stages = 1}, .max_head_dim = 256},
    };
    constexpr Preference kMasked[] = {
        {.config =
             {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1, .q_in_registers = 1, .ctas_per_sm = 3},
         .max_head_dim = 64},
        {.config = {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1, .ctas_per_sm = 3},
         .max_head_dim = 80},
        {.config =
             {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1, .q_in_registers = 1, .ctas_per_sm = 2},
         .max_head_dim = 128},
    };
    // Too few tiles to fill the device: more, smaller CTAs, and few long steps rather than many short ones.
    constexpr Preference kNarrow[] = {
        {.config = {.block_m = 64, .block_n = 128, .num_warps = 4, .num_stages = 1, .q_in_registers = 1},
         .max_head_dim = 256},
        {.config =
             {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 1, .q_in_registers = 1, .ctas_per_sm = 3},
         .max_head_dim = 256},
        {.config = {.block_m = 64, .block_n = 64, .num_warps = 4, .num_stages = 2}, .max_head_dim = 256},
    };

    const std::int64_t head_dim = std::max(problem.head_dim, problem.head_dim_v);
    const auto first_valid = [&](std::span<const Preference> list) -> const Config* {
      for (const Preference& p : list) {
        if (head_dim <= p.max_head_dim && !why_invalid(values_of(p.config), problem, limits)) return &p.config;
      }
      return nullptr;
    };
    // Of a long row of blocks only one is cut, so that how often K and V are read decides again.
    const bool masked = problem.band().bounded() && (head_dim > 64 || problem.seqlen_kv <= 1024);
    const Config* wide = masked ? first_valid(kMasked) : nullptr;
    if (!wide) wide = first_valid(kWide);
    if (!wide) throw_internal("sm80_fwd has no default config for {}", problem.id());
    // Decoding: rows that do not exist cost as much as others. A third of the time of a wide tile on an H200.
    constexpr Config kFewRows = {.block_m = 16, .block_n = 32, .num_warps = 1, .num_stages = 2};
    if (problem.seqlen_q <= 16 && tiles_of_rows(problem, 16) >= limits.multiprocessors &&
        !why_invalid(values_of(kFewRows), problem, limits))
      return values_of(kFewRows);
    if (tiles_of_rows(problem, 128) >= limits.multiprocessors) return values_of(*wide);
    const Config* narrow = first_valid(std::span(kNarrow).subspan(problem.seqlen_kv <= 128 ? 1 : 0));
    return values_of(narrow ? *narrow : *wide);
  }

  // A CTA computes a tile of rows of one sequence, over all of its keys.
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    return default_config(any_batch_of(problem), limits);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<Config>(values);
    const std::int64_t count = tiles_of_rows(problem, config.block_m);
    const std::int64_t resident = static_cast<std::int64_t>(limits.multiprocessors) * config.ctas_per_sm;
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(config.persistent ? std::min(count, resident) : count);
    const ForwardParams params = make_forward_params(problem, layouts);
    if (problem.paged()) {
      const auto by_page_size = tile::FastDivide::by(static_cast<int>(problem.page_size));
      set_params_of(step, sm80_fwd::PoolParams{params, by_page_size}, problem, layouts);
    } else {
      set_params_of(step, params, problem, layouts);
    }
    relocate_forward(step, 0);
    Program program = one_step(std::move(step));
    if (problem.paged()) add_lists<sm80_fwd::PoolParams>(program, config, problem, layouts);
    else add_lists<ForwardParams>(program, config, problem, layouts);
    return program;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm80_fwd, Sm80Forward)
