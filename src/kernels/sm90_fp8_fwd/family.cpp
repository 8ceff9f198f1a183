#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "kernels/gpu_family.h"
#include "kernels/sm90_fp8_fwd/config.h"
#include "kernels/sm90_fp8_fwd/params.h"
#include "kernels/tile_rounds.h"
#include "kernels/transposed_v.h"

namespace flashcore {
namespace {

using Fp8Config = sm90_fp8_fwd::Config;
using sm90_fp8_fwd::kRowsPerConsumer;
using sm90_fp8_fwd::Overlap;
using sm90_fp8_fwd::Scheduler;
using Fp8Params = sm90_fp8_fwd::Params<EncodedMap>;
using TransposedFp8Params = sm90_fp8_fwd::TransposedParams<EncodedMap>;

bool score_reads_tensors(const Problem& problem) {
  return problem.has_score_expression() && !problem.score_expression().tensors().empty();
}

// The elements of a score function's tensors are on their way for many keys at once: fitted to biases. Past 64 columns
// 96 keys of them spilled 8 to 20 bytes, 128 up to 260, 64 in a ragged batch 8; past 128 columns 64 keys beside two
// consumers 52, and beside a softcap 16; beside sums of 160 columns in flight with the scores 8 to 144; of 192 columns
// of V under a causal mask or a window 140 to 228. Beside V that lies transposed 64 keys of 128 columns spilled 48 to
// 232, of 64 beside three consumers 36, and 32 keys of 96 beside three consumers 16 to 60.
int most_keys_of_a_block(const Problem& problem, const Fp8Config& config) {
  if (!score_reads_tensors(problem)) return std::numeric_limits<int>::max();
  const std::int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  if (problem.has_transposed_v() && config.num_consumers > 2) return widest <= 64 ? 32 : 0;
  if (widest <= 64) return problem.has_transposed_v() ? 64 : 96;
  const bool is_full = (widest > 128 && (config.num_consumers > 1 || problem.has_score())) ||
                       (config.overlap == Overlap::kScoresFirst && problem.head_dim_v > 144) ||
                       (problem.head_dim_v > 176 && problem.head_dim_v <= 192);
  return problem.ragged() || problem.has_transposed_v() || is_full ? 32 : 64;
}

// Beside O of a wide V: elements of two tensors in 32 keys spilled 8 to 28 bytes, and a softcap with the largest score
// in 64 keys of one consumer 8 to 16, of 192 columns and not of 256.
const char* why_no_room_beside_wide_o(const Problem& problem, const Fp8Config& config) {
  if (problem.head_dim_v <= 176) return nullptr;
  if (score_reads_tensors(problem) && problem.score_expression().tensors().size() > 1)
    return "more than 176 columns of V leave too few registers for a score function that reads two tensors";
  if (problem.softcap && problem.amax && problem.head_dim_v <= 192 && config.num_consumers == 1 && config.block_n > 32)
    return "more than 176 columns of V leave one consumer too few registers for a softcap and amax with blocks of more "
           "than 32 keys";
  return nullptr;
}

// Both functions' elements are on their way together, and what both compute (|i - j| of each key) is kept from one to
// the other. 64 keys spilled 8 to 168 bytes where the mask compares floats or reads an element for each pair, and where
// it reads those of rows or keys alone (documents) 20 bytes at head dim 256 only; 32 keys 8 to 96. Beside O of 144 and
// 160 columns one consumer without overlap is let by: no other config is left there, and none was seen to spill. Of 176
// columns and more four pairs of functions spilled 8 to 100 bytes of it, and no config is left.
bool are_tensors_too_many(const Problem& problem, const Fp8Config& config) {
  if (!score_reads_tensors(problem) || !problem.has_mask_expression() || problem.mask_expression().tensors().empty())
    return false;
  if (problem.head_dim_v > 128 && config.num_consumers == 1 && config.overlap == Overlap::kNone)
    return problem.head_dim_v > 160;
  const Expression& mask = problem.mask_expression();
  const bool reads_floats = std::ranges::any_of(
      mask.tensors(), [](const ExpressionTensor& tensor) { return tensor.element == ExpressionType::kFloat; });
  int more = 8;
  if (config.block_n > 32) {
    if (!reads_floats && !reads_elements_of_pairs(mask)) return false;
    more = config.overlap != Overlap::kNone ? 16 : problem.head_dim > 160 ? 48 : 32;
  }
  const Traits traits = traits_of(problem);
  return registers_needed(config, traits) + more > consumer_registers(config);
}

// A mask's element of each pair beside factors of rows and the next block's scores: 20 bytes at head dim 128, with a
// window and without.
bool are_factors_too_many(const Problem& problem, const Fp8Config& config) {
  return config.overlap == Overlap::kScoresFirst && config.block_n > 32 && problem.head_dim_v > 64 &&
         problem.q_scaling() == Scaling::kToken && problem.has_mask_expression() &&
         reads_elements_of_pairs(problem.mask_expression());
}

// What config.h lets by and ptxas spills.
std::optional<std::string> why_spills(const Problem& problem, const Fp8Config& config) {
  if (const int most = most_keys_of_a_block(problem, config); config.block_n > most)
    return fmt::format("blocks of more than {} keys leave too few registers for a score function that reads tensors",
                       most);
  if (const char* reason = why_no_room_beside_wide_o(problem, config)) return reason;
  if (are_tensors_too_many(problem, config))
    return "tensors of a score and of a mask function together leave too few registers for so many keys of a block";
  if (are_factors_too_many(problem, config))
    return "factors of rows beside a mask function that reads an element for each pair leave too few registers for "
           "blocks of more than 32 keys whose scores are in flight with P·V";
  return std::nullopt;
}

class Sm90Fp8Forward final : public GpuFamily<Fp8Config> {
 public:
  std::string name() const override { return "sm90_fp8_fwd"; }
  std::string description() const override {
    return "Hopper, e4m3 and e5m2: wgmma with sums promoted to fp32, V transposed on its way, or before";
  }
  std::string compile_arch(const DeviceLimits&) const override { return "sm_90a"; }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_hopper(limits)) return reason;
    if (problem.has_expression() && problem.paged())
      return "functions of the user's own on paged caches: its loader of pages does not know lists of blocks";
    if (!problem.is_8bit()) return "e4m3 and e5m2 only";
    if (problem.output_dtype() != DType::kF16 && problem.output_dtype() != DType::kBF16)
      return fmt::format("o in fp16 or bf16 only, not {}", to_string(problem.output_dtype()));
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % 16 != 0 || dim > 256)
        return fmt::format(
            "head dims that are multiples of 16 up to 256 only, not {}: TMA strides are multiples of 16 bytes", dim);
    }
    if (problem.seqlen_q == 0 || (!problem.paged() && problem.seqlen_kv == 0))
      return "a tensor map cannot describe an empty tensor";
    // A box of TMA begins at a multiple of 128 bytes.
    if (problem.paged() && problem.page_size % 2 != 0 && std::min(problem.head_dim, problem.head_dim_v) <= 64)
      return "pages of an odd number of keys with head dims up to 64: a key is 64 bytes in shared memory then, half of "
             "what a box of TMA begins at a multiple of";
    if (auto reason = why_indices_overflow(problem)) return reason;
    if (!first_valid(problem, limits))
      return fmt::format(
          "no config fits head dims {} and {}, and what else the problem has: O and sums of P·V of 64, 96, 128 or 256 "
          "columns, which divide those of O, exceed a consumer's registers",
          problem.head_dim, problem.head_dim_v);
    return std::nullopt;
  }

  int preference(const Problem&, const DeviceLimits&) const override { return 90; }

  bool keeps_bounds(const ConfigValues& values, const Problem& problem) const override {
    const auto config = config_from<Fp8Config>(values);
    return are_sums_short(std::int64_t{config.promote_every} * config.block_n, problem);
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto values = first_valid(problem, limits)) return *values;
    throw_internal("sm90_fp8_fwd has no default config for {}", problem.id());
  }

  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    const auto config = config_from<Fp8Config>(values);
    if (auto reason = why_spills(problem, config)) return reason;
    if (takes_transposed_v(config) == problem.has_transposed_v()) return std::nullopt;
    return problem.has_transposed_v() ? "V lies transposed and waits for nothing: v_stages 0"
                                      : "V waits for its transposition: v_stages 1 or 2";
  }

  std::optional<ListShape> list_shape(const Fp8Config& config, const Problem&) const override {
    return ListShape{config.num_consumers, kRowsPerConsumer, config.block_n};
  }

  KernelSource source(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits) const override {
    return with_entry_for_v(GpuFamily::source(values, problem, limits), problem);
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    using namespace sm90_fp8_fwd;
    const auto config = config_from<Config>(values);
    Fp8Params params{};
    params.fp8 = make_fp8_params(problem, layouts);
    const std::int64_t sms = std::max(limits.multiprocessors, 1);
    // Of a ragged batch the device counts and orders the tiles (tile/ragged_tiles.cuh).
    if (!problem.ragged()) params.order = tile_order_of(problem, block_m(config), sms);
    const std::int64_t tiles =
        problem.ragged() ? most_ragged_tiles(problem, layouts.total_q, block_m(config)) : params.order.tile_count;
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(takers_of(config.scheduler, tiles, sms));
    const int head_dim = static_cast<int>(problem.head_dim), head_dim_v = static_cast<int>(problem.head_dim_v);
    const BoxColumns columns = {width_of(head_dim), width_of(head_dim_v)};
    if (problem.has_transposed_v()) set_params_of(step, TransposedFp8Params{params, {}}, problem, layouts);
    else if (problem.paged()) set_pool_params(step, params, config.block_n, problem, layouts, columns);
    else set_params_of(step, params, problem, layouts);
    relocate_fp8(step, offsetof(Fp8Params, fp8), problem);
    if (problem.amax) step.relocate(offsetof(Fp8Params, amax), Operand::kAmax);
    // Where no sequence has keys there may be no memory to point at, and nothing is loaded.
    const bool no_keys = problem.ragged() && layouts.total_kv == 0;
    const auto add_map = [&](std::size_t offset, const TensorLayout& layout, std::int64_t bound, int width, int rows,
                             Operand operand) {
      step.add_map(problem.ragged()
                       ? as_wide_as_swizzle(ragged_map_of(offset, problem.dtype, layout, bound, {width, rows, 1, 1}))
                       : byte_map(offset, layout, width, rows),
                   operand);
    };
    add_map(offsetof(Fp8Params, q), layouts.q, problem.seqlen_q, kWidthQ, kRowsPerConsumer, Operand::kQ);
    if (problem.has_transposed_v()) {
      static_assert(offsetof(TransposedFp8Params, plain) == 0);
      const TensorMapSpec even = every_second_row(offsetof(Fp8Params, k), layouts.k, config.block_n, 0),
                          odd = every_second_row(offsetof(TransposedFp8Params, k_odd), layouts.k, config.block_n, 1);
      step.add_map(even, Operand::kK);
      step.add_map(odd, Operand::kK);
      step.add_map(byte_map(offsetof(Fp8Params, v), layouts.v, width_of_keys(config.block_n), padded_dim(head_dim_v)),
                   Operand::kV);
    } else if (!problem.paged()) {
      add_map(offsetof(Fp8Params, k), layouts.k, problem.seqlen_kv, columns.k, config.block_n,
              no_keys ? Operand::kQ : Operand::kK);
      add_map(offsetof(Fp8Params, v), layouts.v, problem.seqlen_kv, columns.v, config.block_n,
              no_keys ? Operand::kQ : Operand::kV);
    }
    const std::array<int, 4> box_o = {64, kRowsPerStore, 1, 1};
    step.add_map(problem.ragged()
                     ? ragged_map_of(offsetof(Fp8Params, o), problem.output_dtype(), layouts.o, problem.seqlen_q, box_o)
                     : tensor_map_of(offsetof(Fp8Params, o), problem.output_dtype(), layouts.o, box_o),
                 Operand::kO);
    Program program = one_step(std::move(step));
    add_tile_counter(program, config.scheduler, offsetof(Fp8Params, tile_counter));
    if (problem.has_transposed_v()) add_lists<TransposedFp8Params>(program, config, problem, layouts);
    else add_lists<Fp8Params>(program, config, problem, layouts);
    add_clear(program, config, problem);
    return program;
  }

 private:
  // Of any type of 8 bits: a map knows their size alone.
  static TensorMapSpec byte_map(std::size_t offset, const TensorLayout& layout, int width, int rows) {
    return as_wide_as_swizzle(tensor_map_of(offset, DType::kE4M3, layout, {width, rows, 1, 1}));
  }

  // Of K, the even rows or the odd ones. No map is empty: of a single row the odd ones are that again, which no query
  // row sees.
  static TensorMapSpec every_second_row(std::size_t offset, TensorLayout layout, int block_n, int parity) {
    const std::int64_t row_bytes = layout.stride_row, rows = layout.rows;
    layout.rows = std::max<std::int64_t>(1, (rows + 1 - parity) / 2);
    layout.stride_row *= 2;
    TensorMapSpec map = byte_map(offset, layout, sm90_fp8_fwd::width_of(static_cast<int>(layout.columns)), block_n / 2);
    if (rows > 1) map.offset_bytes = parity * row_bytes;
    return map;
  }

  static bool are_few_tiles(const Problem& problem, const DeviceLimits& limits) {
    const std::int64_t tiles_of_head = (problem.seqlen_q + kRowsPerConsumer - 1) / kRowsPerConsumer;
    return problem.batch * problem.heads_q * tiles_of_head <= limits.multiprocessors;
  }

  // None for some head dims of v beyond 128 that no width of a sum divides.
  std::optional<ConfigValues> first_valid(const Problem& problem, const DeviceLimits& limits) const {
    const int widest = static_cast<int>(std::max(problem.head_dim, problem.head_dim_v));
    // Where tiles of 64 rows do not fill the card, as many CTAs as there are of them are faster than a third of it with
    // three consumers each: 1.47 to 1.57 times at head dim 64 and 256 to 1024 rows of eight heads, 1.11 times at 128
    // (results/h100/fp8_few_tiles).
    constexpr Fp8Config kFewSmall[] = {{.num_consumers = 1,
                                        .block_n = 96,
                                        .num_stages = 4,
                                        .v_stages = 1,
                                        .q_stages = 2,
                                        .ping_pong = 0,
                                        .overlap = Overlap::kScoresFirst,
                                        .pv_columns = 64,
                                        .scheduler = Scheduler::kCounter}};
    constexpr Fp8Config kFewMiddle[] = {{.num_consumers = 1,
                                         .block_n = 96,
                                         .num_stages = 2,
                                         .v_stages = 1,
                                         .q_stages = 1,
                                         .ping_pong = 0,
                                         .overlap = Overlap::kScoresFirst,
                                         .pv_columns = 128,
                                         .scheduler = Scheduler::kOneTile}};
    // Turns that last until the multiplies of a step are done: at head dim 128 1.037 [1.023, 1.051] times as fast as
    // turns that end when they are issued on one of two problems, on the other undecided
    // (results/experiments/fp8_turns); 1.02 to 1.06 in quick runs of which nothing is kept. At head dim 64 blocks of
    // 128 keys without overlap are 1.03 to 1.11 times as fast as blocks of 96 with it (H100, quick runs likewise).
    // p_exponent is 6. With 5 a maximum that grows costs a second pass more seldom: 1.08 times as fast at head dim
    // 64, 1.01 at 128, 1.04 there under a causal mask, 0.97 at 256 (results/h100/fp8_configs). But it rounds weights of
    // up to 2^-15 of the largest to zero, and the gate allows 2^-16: a row of 77 keys with outliers was at 1.17 of the
    // bound of that day.
    constexpr Fp8Config kSmall[] = {
        {.num_consumers = 3,
         .block_n = 128,
         .q_stages = 2,
         .ping_pong = 3,
         .overlap = Overlap::kNone,
         .pv_columns = 64},
        {.num_consumers = 3,
         .block_n = 96,
         .q_stages = 2,
         .ping_pong = 3,
         .overlap = Overlap::kScoresFirst,
         .pv_columns = 64},
        {.num_consumers = 2,
         .block_n = 128,
         .q_stages = 2,
         .ping_pong = 3,
         .overlap = Overlap::kScoresFirst,
         .pv_columns = 64},
        {.num_consumers = 2,
         .block_n = 64,
         .q_stages = 2,
         .ping_pong = 3,
         .overlap = Overlap::kScoresFirst,
         .pv_columns = 64},
    };
    constexpr Fp8Config kMiddle[] = {
        {.num_consumers = 2,
         .block_n = 128,
         .q_stages = 2,
         .ping_pong = 3,
         .overlap = Overlap::kScoresFirst,
         .pv_columns = 128},
        {.num_consumers = 2,
         .block_n = 96,
         .q_stages = 2,
         .ping_pong = 3,
         .overlap = Overlap::kScoresFirst,
         .pv_columns = 128},
        {.num_consumers = 2, .block_n = 64, .q_stages = 1, .overlap = Overlap::kNone, .pv_columns = 256},
        {.num_consumers = 2, .block_n = 32, .q_stages = 1, .overlap = Overlap::kNone, .pv_columns = 256},
    };
    // Without turns: either consumer's P·V waits for its sums, and the other's multiplies fill the time. 1.02 to 1.03
    // times as fast as with turns that end with the issue (results/h100/fp8_configs).
    constexpr Fp8Config kLarge[] = {
        {.num_consumers = 2,
         .block_n = 128,
         .v_stages = 2,
         .ping_pong = 0,
         .overlap = Overlap::kNone,
         .pv_columns = 128},
        {.num_consumers = 2, .block_n = 96, .v_stages = 2, .ping_pong = 0, .overlap = Overlap::kNone, .pv_columns = 96},
        {.num_consumers = 2, .block_n = 64, .v_stages = 2, .overlap = Overlap::kNone, .pv_columns = 64},
        {.num_consumers = 1, .block_n = 64, .v_stages = 2, .ping_pong = 0, .overlap = Overlap::kNone, .pv_columns = 64},
        {.num_consumers = 1,
         .block_n = 64,
         .v_stages = 2,
         .ping_pong = 0,
         .overlap = Overlap::kNone,
         .pv_columns = 256},
        {.num_consumers = 1,
         .block_n = 32,
         .v_stages = 2,
         .ping_pong = 0,
         .overlap = Overlap::kNone,
         .pv_columns = 256},
    };
    const std::span<const Fp8Config> some = widest <= 64    ? std::span<const Fp8Config>(kSmall)
                                            : widest <= 128 ? std::span<const Fp8Config>(kMiddle)
                                                            : std::span<const Fp8Config>(kLarge);
    // Functions of the user's own take registers and time. H100, one KV head of four query heads, 8,192 keys, causal or
    // as much by the mask, quick runs of which nothing is kept. Against what is above: masks 1.11 times as fast at head
    // dim 128 and 1.10 at 64; ten operations 1.14 and 1.06, tanh 1.74 and 1.12, slopes 1.09 and 1.09; a bias 1.22
    // and 1.13.
    constexpr Fp8Config kMaskedSmall = {.num_consumers = 2,
                                        .block_n = 96,
                                        .q_stages = 1,
                                        .ping_pong = 4,
                                        .overlap = Overlap::kNone,
                                        .pv_columns = 64,
                                        .scheduler = Scheduler::kCounter};
    constexpr Fp8Config kMaskedMiddle = {.num_consumers = 2,
                                         .block_n = 64,
                                         .q_stages = 1,
                                         .ping_pong = 1,
                                         .overlap = Overlap::kScoresFirst,
                                         .pv_columns = 64,
                                         .scheduler = Scheduler::kCounter};
    constexpr Fp8Config kScored = {
        .num_consumers = 3, .block_n = 64, .q_stages = 1, .ping_pong = 3, .overlap = Overlap::kNone, .pv_columns = 64};
    std::vector<Fp8Config> configs;
    if (widest <= 128 && are_few_tiles(problem, limits)) {
      const std::span<const Fp8Config> few = widest <= 64 ? std::span<const Fp8Config>(kFewSmall) : kFewMiddle;
      configs.assign(few.begin(), few.end());
    }
    const auto add = [&](Fp8Config config) {
      if (problem.band().bounded()) config.scheduler = Scheduler::kCounter;
      configs.push_back(config);
    };
    if (problem.has_expression() && widest <= 128) {
      // Elements of a bias come by the pair, those of slopes by the row.
      const bool reads_pairs = problem.has_score_expression() &&
                               std::ranges::any_of(problem.tensors, [](const auto& tensor) { return tensor.rank > 1; });
      if (!problem.has_mask_expression() && (!reads_pairs || widest <= 64)) add(kScored);
      else if (!problem.has_score_expression()) add(widest <= 64 ? kMaskedSmall : kMaskedMiddle);
      else add(kMaskedMiddle);
    }
    for (const Fp8Config& config : some) add(config);
    for (Fp8Config config : configs) {
      if (problem.has_transposed_v()) config.v_stages = 0;
      for (const int columns : {config.pv_columns, 64, 96, 128, 256}) {
        config.pv_columns = columns;
        // Not this->why_invalid, which asks why_unsupported, which asks here.
        if (!why_spills(problem, config) && !detail::family_why_invalid(config, traits_of(problem), limits_of(limits)))
          return values_of(config);
      }
    }
    return std::nullopt;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm90_fp8_fwd, Sm90Fp8Forward)
