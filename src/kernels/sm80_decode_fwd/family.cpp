#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "core/error.h"
#include "kernels/batch_invariant.h"
#include "kernels/gpu_family.h"
#include "kernels/sm80_decode_fwd/config.h"
#include "kernels/sm80_decode_fwd/params.h"

namespace flashcore {
namespace {

using DecodeConfig = sm80_decode_fwd::Config;
using DecodeParams = sm80_decode_fwd::Params;
using Fp8DecodeParams = sm80_decode_fwd::Fp8Params;

constexpr std::int64_t kLeastBlock = 16;  // keys
// Keys of a part that is the same in every batch.
constexpr int kInvariantKeys = 1024;
constexpr std::int64_t kFewUnitsOfSm = 32;
constexpr std::int64_t kLeastTimedKeys = 1000;  // of whole tiles
constexpr std::int64_t kMostUnits = std::numeric_limits<int>::max();

// Of so many rows, for all sequences and key heads.
std::int64_t tiles_of(const Problem& problem, int rows) {
  return problem.batch * problem.heads_kv * ((problem.seqlen_q * problem.group_size() + rows - 1) / rows);
}
// Of `keys` keys each and so many rows.
std::int64_t units_of(const Problem& problem, int rows, std::int64_t keys) {
  return tiles_of(problem, rows) * std::max<std::int64_t>(1, (problem.seqlen_kv + keys - 1) / keys);
}
// K and V as codes, of a quantised cache or of 8-bit q.
bool has_codes(const Problem& problem) { return problem.has_quantised_cache() || problem.is_8bit(); }

// How many CTAs share the keys: as many as fit, or up to a sixteenth less, so that each has whole tiles, or tiles have
// whole numbers of them. Where lengths are alike few parts merge then, or none
// (H200, pages, results/h200/decode_whole_tiles.json).
std::int64_t even_ctas(const Problem& problem, std::int64_t tiles, std::int64_t ctas) {
  if (!problem.paged() || tiles == 0 || ctas == 0) return ctas;
  const std::int64_t rounds = (tiles + ctas - 1) / ctas;
  const std::int64_t even = tiles < ctas ? ctas / tiles * tiles : tiles % rounds == 0 ? tiles / rounds : ctas;
  return 16 * even >= 15 * ctas ? even : ctas;
}
// Whether that is whole tiles for each of about so many CTAs.
bool have_whole_tiles(const Problem& problem, std::int64_t tiles, std::int64_t ctas) {
  return problem.paged() && 16 * tiles >= 15 * ctas && tiles % even_ctas(problem, tiles, ctas) == 0;
}
// Two CTAs of an SM, of 16 bits: 32 and 33 sequences of 1,000 to 8,192 keys and eight key heads took 0.81 to 0.99 of
// the time that three CTAs took with their parts (H200, results/h200/decode_configs.json).
bool have_a_tile_each(const Problem& problem, std::int64_t tiles, std::int64_t ctas) {
  return !has_codes(problem) && tiles <= ctas && have_whole_tiles(problem, tiles, ctas);
}

sm80_decode_fwd::Units units_of_strides(Operand operand, const TensorLayout& layout, DType dtype, bool has_batches) {
  const std::int64_t of_unit = 16 * 8 / bits_of(dtype);  // elements
  if (layout.span() / of_unit >= std::numeric_limits<std::uint32_t>::max() - 1)
    throw_bad_input("sm80_decode_fwd reaches 64 GB of a tensor, and {} spans {} bytes; use another family",
                    to_string(operand), bytes_of(dtype, layout.span()));
  const auto units = [&](std::int64_t elements, std::int64_t extent) {
    return static_cast<unsigned>(extent <= 1 ? 0 : elements / of_unit);  // whose stride may be anything
  };
  return {.batch = has_batches ? units(layout.stride_batch, layout.batch) : 0,
          .head = units(layout.stride_head, layout.heads),
          .row = units(layout.stride_row, layout.rows)};
}

class Sm80DecodeForward final : public GpuFamily<DecodeConfig> {
 public:
  std::string name() const override { return "sm80_decode_fwd"; }
  std::string description() const override {
    return "few rows on many keys, dense, ragged or paged: all keys dealt out evenly to one wave of CTAs";
  }

  std::optional<std::string> why_unsupported(const Problem& problem, const DeviceLimits& limits) const override {
    if (auto reason = why_no_amax(problem)) return reason;
    if (auto reason = problem.is_8bit() ? why_no_ampere(limits) : why_no_ampere(problem, limits)) return reason;
    if (problem.has_transposed_v()) return "v_layout dn: no kernel of this family reads V as columns of keys";
    if (problem.q_scaling() == Scaling::kToken)
      return "scaling token with q of 8 bits: no kernel of this family reads a factor for each row of q";
    const std::int64_t multiple = has_codes(problem) ? 128 / bits_of(problem.cache_dtype()) : 8;
    for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
      if (dim % multiple != 0 || dim > sm80_decode_fwd::kMaxHeadDim)
        return fmt::format("{} that are multiples of {} up to {} only, not {}: rows are copied in 16-byte pieces",
                           problem.has_quantised_cache()
                               ? fmt::format("a cache of {} with head dims", to_string(problem.cache_dtype()))
                           : problem.is_8bit() ? fmt::format("{} with head dims", to_string(problem.dtype))
                                               : "head dims",
                           multiple, sm80_decode_fwd::kMaxHeadDim, dim);
    }
    if (auto reason = why_indices_overflow(problem)) return reason;
    if (problem.seqlen_q * problem.group_size() > kMostUnits / 2)
      return fmt::format("more than {} query rows of a sequence and key head", kMostUnits / 2);
    if (units_of(problem, 8, kLeastBlock) > kMostUnits)
      return fmt::format("more than {} blocks of {} keys in all", kMostUnits, kLeastBlock);
    if (!first_valid(problem, limits)) return "the accumulators and a ring of K and V do not fit an SM";
    return std::nullopt;
  }

  // Of config.h, and what ptxas spills though config.h counts enough registers.
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = GpuFamily::why_invalid(values, problem, limits)) return reason;
    if (const char* reason = why_spills(config_from<DecodeConfig>(values), problem, limits)) return reason;
    return std::nullopt;
  }

  // Where keys are packed or in pages. Of dense ones dispatch keeps what has been measured, but for few rows with
  // functions of the user's own, which no other family that splits a row's keys has, or of 8 bits (splits_alone).
  // Quantised caches have no other family but the naive one and that of wide heads, and 8-bit q in pages has one on
  // Hopper alone.
  int preference(const Problem& problem, const DeviceLimits& limits) const override {
    const bool few_rows = problem.seqlen_q <= kFewInvariantRows;
    if (!problem.ragged()) return few_rows && (problem.has_expression() || splits_alone(problem, limits)) ? 95 : 75;
    return few_rows ? 95 : 70;
  }

  ConfigValues default_config(const Problem& problem, const DeviceLimits& limits) const override {
    auto config = first_valid(problem, limits);
    if (!config) throw_internal("sm80_decode_fwd has no default config for {}", problem.id());
    const std::int64_t tiles = tiles_of(problem, sm80_decode_fwd::tile_rows(*config));
    if (const auto four = four_ctas_of_whole_tiles(tiles, problem, limits)) return values_of(*four);
    const bool two_have_tiles = have_a_tile_each(problem, tiles, std::int64_t{2} * limits.multiprocessors);
    if (!two_have_tiles) config = of_sixteen_rows(*config, tiles, problem, limits).value_or(*config);
    // Where SMs would idle a block is worth a merge: 513 keys of eight heads took 9.4 us dealt out by blocks, and 13.5
    // by four of them (H200, head dim 64).
    const std::int64_t units = units_of(problem, sm80_decode_fwd::tile_rows(*config), config->block_n);
    if (units < static_cast<std::int64_t>(limits.multiprocessors) * config->ctas_per_sm * config->min_blocks)
      config->min_blocks = 1;
    // Few blocks are dealt out to two CTAs of an SM, which leave fewer parts: of 4 to 32 of 64 keys to an SM they took
    // 0.92 to 0.99 of the time of three (H200, head dim 128). Of 48 and more, since CTAs come out even, it is 0.96 to
    // 0.99 where two have whole tiles and lengths are equal, 0.99 to 1.07 else, and 1.02 to 1.28 with random lengths
    // (results/h200/decode_whole_tiles.json).
    if (config->warp_rows == 8 && config->ctas_per_sm == 3 &&
        (two_have_tiles || units <= kFewUnitsOfSm * limits.multiprocessors))
      config->ctas_per_sm = 2;
    return values_of(*config);
  }

  // Parts of a fixed number of keys. The warps that share a block's keys decide a row's bits, and go by what all
  // batches are alike in, as if sequences of up to 16 rows had one. How many rows a tile has, and how many CTAs and
  // stages there are, decides none and is made to fit.
  std::optional<ConfigValues> batch_invariant_config(const Problem& problem,
                                                     const DeviceLimits& limits) const override {
    const Problem any = any_batch_of(problem);
    const bool few = any.seqlen_q <= kFewInvariantRows;
    auto config = few ? first_valid_from(row_warps_of(any.group_size()), any, limits) : first_valid(any, limits);
    if (!config) return std::nullopt;
    config->split_keys = kInvariantKeys, config->min_blocks = 1;
    const std::int64_t rows = problem.seqlen_q * problem.group_size();
    return values_of(few ? with_more_rows(*config, rows, problem, limits) : with_fewer_rows(*config, rows, problem));
  }

  Program program(const ConfigValues& values, const Problem& problem, const DeviceLimits& limits,
                  const ProblemLayouts& layouts) const override {
    const auto config = config_from<DecodeConfig>(values);
    const std::int64_t units =
        units_of(problem, sm80_decode_fwd::tile_rows(config), config.split_keys ? config.split_keys : config.block_n);
    std::int64_t ctas = std::min(static_cast<std::int64_t>(limits.multiprocessors) * config.ctas_per_sm, units);
    const std::int64_t tiles = tiles_of(problem, sm80_decode_fwd::tile_rows(config));
    if (config.split_keys == 0) ctas = even_ctas(problem, tiles, ctas);
    DecodeParams params{};
    params.problem = make_forward_params(problem, layouts);
    params.group_size = static_cast<int>(problem.group_size());
    params.total_q = static_cast<int>(layouts.total_q);
    params.by_group_size = tile::FastDivide::by(params.group_size);
    params.by_page_size = tile::FastDivide::by(static_cast<int>(std::max<std::int64_t>(problem.page_size, 1)));
    const bool has_batches = !problem.ragged() || problem.paged();
    params.k_units = units_of_strides(Operand::kK, layouts.k, problem.cache_dtype(), has_batches);
    params.v_units = units_of_strides(Operand::kV, layouts.v, problem.cache_dtype(), has_batches);
    const std::int64_t factors = descale_counts(problem, layouts).k;
    if (factors >= std::numeric_limits<std::uint32_t>::max())
      throw_bad_input("sm80_decode_fwd reaches 2^32 - 2 factors of keys, and {} has {}; use another family",
                      problem.id(), factors);
    // Words of a tile's parts are counted in 32 bits (merge_row.cuh).
    const std::int64_t slots_of_tile =
        config.split_keys ? (problem.seqlen_kv + config.split_keys - 1) / config.split_keys : 2 * ctas;
    if (slots_of_tile * sm80_decode_fwd::part_bytes(config, traits_of(problem)) / 4 > std::numeric_limits<int>::max())
      throw_bad_input(
          "sm80_decode_fwd merges up to 2^31 words of a row's parts, and {} has room for {} of them; give fewer keys "
          "as "
          "the bound, or without deterministic_batch a larger split_keys",
          problem.id(), slots_of_tile);
    Step step = step_of(config, problem);
    step.launch.grid.x = static_cast<unsigned>(ctas);
    if (problem.is_8bit()) {
      const Fp8ForwardParams own = make_fp8_params(problem, layouts);
      set_params_of(step, Fp8DecodeParams{params, own.descale_q, own.descale_k, own.descale_v}, problem, layouts);
      relocate_fp8_descales<Fp8DecodeParams>(step, problem);
    } else if (problem.has_quantised_cache()) {
      set_params_of(step, with_descales(params, problem), problem, layouts);
      relocate_descales<DecodeParams>(step, problem);
    } else {
      set_params_of(step, params, problem, layouts);
    }
    relocate_forward(step, offsetof(DecodeParams, problem));
    step.relocate(offsetof(DecodeParams, parts), AddressOf::workspace(0));
    step.relocate(offsetof(DecodeParams, counters), AddressOf::workspace(1));
    Program program = one_step(std::move(step));
    const std::int64_t parts = config.split_keys ? units : 2 * ctas, counters = 2 * parts;
    program.workspaces = {{static_cast<std::size_t>(parts * sm80_decode_fwd::part_bytes(config, traits_of(problem))),
                           Workspace::Contents::kScratch},
                          {static_cast<std::size_t>(counters) * sizeof(unsigned), Workspace::Contents::kLeftZero}};
    return program;
  }

 private:
  // What config.h lets by and ptxas spills.
  static const char* why_spills(const DecodeConfig& config, const Problem& problem, const DeviceLimits& limits) {
    const bool is_int4 = problem.kv_dtype == DType::kInt4;
    // 16 to 40 bytes at head dims 96 and 128, for sm_100 and sm_120 alone.
    if (limits.arch >= 100 && is_int4 && problem.head_dim_v > 64 && problem.head_dim_v <= 128 &&
        (config.key_warps < 4 || (problem.has_expression() && config.num_stages > 4)))
      return "one or two key warps, and more than four stages beside functions of the user's own, have too few "
             "registers for int4 beside more than 64 columns here";
    // 4 to 20 bytes at head dims 96 and 128, of four key warps.
    if (limits.arch >= 120 && is_int4 && config.warp_rows == 8 && problem.head_dim_v > 64)
      return "8 query rows have too few registers for int4 beside more than 64 columns here";
    // Beside bf16 8 to 20 bytes at head dims 96 and 128 of int4, and at 128 of 8 bits; with three stages of int4 for
    // four CTAs alone. fp16 needs no scale of its own, and spills 4 to 36 before sm_90. Factors of keys spill 4
    // anywhere.
    if (config.warp_rows == 8 && config.key_warps > 2 && config.ctas_per_sm > 2 && problem.has_quantised_cache()) {
      const bool is_full =
          problem.dtype == DType::kBF16 && (config.num_stages == 2 || (is_int4 && config.ctas_per_sm > 3));
      if (problem.k_scaling() == Scaling::kToken || (problem.head_dim_v > 64 && (limits.arch < 90 || is_full)))
        return "three CTAs of an SM leave too few registers for a quantised cache beside 8 query rows and four key "
               "warps, but from sm_90 on with three stages, or with q of fp16, and without factors of keys";
    }
    // 4 bytes at head dims 144 to 192 beside 48 and 64 columns.
    if (config.ctas_per_sm > 2 && config.key_warps > 2 && problem.is_8bit() && problem.head_dim > 128 &&
        problem.head_dim_v > 32)
      return "three CTAs of an SM with four key warps leave too few registers for q of 8 bits with head dims above 128 "
             "beside more than 32 columns";
    return nullptr;
  }

  // Not this->why_invalid, which asks why_unsupported, which asks here.
  static bool is_valid(const DecodeConfig& config, const Problem& problem, const DeviceLimits& limits) {
    return !sm80_decode_fwd::why_invalid(config, traits_of(problem), limits_of(limits)) &&
           !why_spills(config, problem, limits);
  }

  // Of 8 bits no other family splits the keys of a row: e5m2, which dispatch has always decoded, and e4m3 where a CTA
  // for each head would leave half of the SMs idle through many keys. Nobody has timed that.
  static bool splits_alone(const Problem& problem, const DeviceLimits& limits) {
    constexpr std::int64_t kManyKeys = 4096;
    if (problem.dtype == DType::kE5M2) return true;
    return problem.dtype == DType::kE4M3 && problem.seqlen_kv >= kManyKeys &&
           2 * problem.batch * problem.heads_q <= limits.multiprocessors;
  }

  // Nine to sixteen query rows on keys of 16 bits. Tiles that many CTAs share merge sixteen rows of each part: eight
  // warps of one CTA to an SM took 0.77 to 1.01 of the time of three CTAs where tiles were up to 24 (one to three
  // sequences, eight key heads), and beyond them three CTAs 0.85 to 0.97 of that of two with three stages (H200, head
  // dim 128, results/h200/decode_configs.json). Since CTAs come out even it is 1.01 to 1.13 where two have whole tiles
  // and lengths are equal, 0.96 with random ones (decode_whole_tiles.json).
  static std::optional<DecodeConfig> of_sixteen_rows(DecodeConfig config, std::int64_t tiles, const Problem& problem,
                                                     const DeviceLimits& limits) {
    const bool timed = limits.arch == 90 && std::min(problem.head_dim, problem.head_dim_v) > 64;
    if (!timed || !problem.paged() || has_codes(problem) || sm80_decode_fwd::tile_rows(config) != 16 ||
        problem.seqlen_q * problem.group_size() <= 8)
      return std::nullopt;
    config.num_stages = 2;
    if (5 * tiles <= limits.multiprocessors) config.key_warps = 8, config.block_n = 128, config.ctas_per_sm = 1;
    else config.ctas_per_sm = 3;
    if (!is_valid(config, problem, limits)) return std::nullopt;
    return config;
  }
  // Caches of 8 bits and up to eight query rows, where four small CTAs of each SM have whole tiles: 0.96 to 0.99 of the
  // time of two CTAs with equal lengths, 1.00 to 1.02 with random ones (64 and 128 sequences, eight key heads, H200,
  // head dim 128, results/h200/decode_whole_tiles.json). Of 16 bits they took 0.94 to 0.98 of the time of three CTAs
  // with equal lengths, and 1.03 to 1.17 with random ones.
  static std::optional<DecodeConfig> four_ctas_of_whole_tiles(std::int64_t tiles, const Problem& problem,
                                                              const DeviceLimits& limits) {
    const bool timed = limits.arch == 90 && std::min(problem.head_dim, problem.head_dim_v) > 64 &&
                       problem.keys_read().size() >= kLeastTimedKeys && problem.has_quantised_cache() &&
                       bits_of(problem.cache_dtype()) == 8;
    if (!timed || problem.seqlen_q * problem.group_size() > 8 ||
        !have_whole_tiles(problem, tiles, std::int64_t{4} * limits.multiprocessors))
      return std::nullopt;
    const DecodeConfig config = {.warp_rows = 8, .key_warps = 2, .block_n = 64, .num_stages = 2, .ctas_per_sm = 4};
    if (!is_valid(config, problem, limits)) return std::nullopt;
    return config;
  }
  // Up to eight query rows. On an H100 a quantised cache took 0.85 to 0.99 of the time of 16 rows. More CTAs of int4
  // are faster, 0.83 at 64 sequences of 4,096 keys, 0.90 at 16 of 8,192, but where their parts have to be merged: 1.06
  // at one sequence of 32,768 (H200, results/h200/decode_whole_tiles.json).
  std::optional<DecodeConfig> first_valid_of_eight(const Problem& problem, const DeviceLimits& limits) const {
    struct Ring {
      int key_warps, block_n, num_stages, ctas_per_sm;
    };
    constexpr Ring kRings[] = {{2, 128, 2, 4}, {4, 128, 2, 2}, {4, 64, 2, 2}, {4, 64, 2, 3}, {4, 64, 2, 2}};
    const bool is_int4 = problem.kv_dtype == DType::kInt4;
    const bool many = is_int4 && units_of(problem, 8, 128) >= std::int64_t{32} * limits.multiprocessors;
    for (const Ring& ring : std::span(kRings).subspan(many ? 0 : has_codes(problem) ? 1 : 3)) {
      const DecodeConfig config = {.warp_rows = 8,
                                   .key_warps = ring.key_warps,
                                   .block_n = ring.block_n,
                                   .num_stages = ring.num_stages,
                                   .ctas_per_sm = ring.ctas_per_sm};
      if (is_valid(config, problem, limits)) return config;
    }
    return std::nullopt;
  }
  // Of two configs that differ in registers: whether a row's parts merge to the same bits. Places past the last part
  // add 0, which makes +0 of a sum of -0.
  static bool merge_alike(const DecodeConfig& a, const DecodeConfig& b, const Problem& problem) {
    const Traits traits = sm80_decode_fwd::with_cache_of_q(traits_of(problem));
    return sm80_decode_fwd::parts_at_once(a, traits) == sm80_decode_fwd::parts_at_once(b, traits);
  }
  // `config` with tiles of as many rows as the problem has, or the most that are valid, and with the CTAs and stages
  // that these leave room for. `config` itself is valid.
  static DecodeConfig with_more_rows(const DecodeConfig& config, std::int64_t rows, const Problem& problem,
                                     const DeviceLimits& limits) {
    for (int row_warps = row_warps_of(rows); row_warps > config.row_warps; row_warps /= 2) {
      for (int ctas = config.ctas_per_sm; ctas >= 1; --ctas) {
        for (int stages = config.num_stages; stages >= 2; --stages) {
          DecodeConfig more = config;
          more.row_warps = row_warps, more.ctas_per_sm = ctas, more.num_stages = stages;
          if (is_valid(more, problem, limits) && merge_alike(more, config, problem)) return more;
        }
      }
    }
    return config;
  }
  static DecodeConfig with_fewer_rows(DecodeConfig config, std::int64_t rows, const Problem& problem) {
    while (config.row_warps > 1 && sm80_decode_fwd::tile_rows(config) / 2 >= rows) {
      DecodeConfig fewer = config;
      fewer.row_warps /= 2;
      if (!merge_alike(fewer, config, problem)) break;
      config = fewer;
    }
    return config;
  }
  static int row_warps_of(std::int64_t rows) { return rows <= 16 ? 1 : rows <= 32 ? 2 : 4; }
  // As many bytes on their way to an SM as there is room for, and tiles of rows that read the keys as seldom as can be.
  std::optional<DecodeConfig> first_valid(const Problem& problem, const DeviceLimits& limits) const {
    const std::int64_t rows = problem.seqlen_q * problem.group_size();
    if (rows <= 8) {
      if (auto few = first_valid_of_eight(problem, limits)) return few;
    }
    return first_valid_from(row_warps_of(rows), problem, limits);
  }
  static std::optional<DecodeConfig> first_valid_from(int row_warps, const Problem& problem,
                                                      const DeviceLimits& limits) {
    for (; row_warps >= 1; row_warps /= 2) {
      if (auto config = first_valid_of_rows(row_warps, problem, limits)) return config;
    }
    return std::nullopt;
  }
  static std::optional<DecodeConfig> first_valid_of_rows(int row_warps, const Problem& problem,
                                                         const DeviceLimits& limits) {
    struct Ring {
      int key_warps, block_n, num_stages, ctas_per_sm;
    };
    // The second is for codes of 8 bits, whose blocks have half the bytes: twice the keys are as much on the way, in
    // half the steps. The first is for int4, whose blocks have half of that again.
    constexpr Ring kRings[] = {{4, 128, 3, 2}, {4, 128, 2, 2}, {4, 64, 3, 2}, {4, 64, 2, 2}, {4, 64, 4, 1},
                               {4, 64, 3, 1},  {4, 64, 2, 1},  {2, 32, 4, 2}, {2, 32, 3, 2}, {2, 64, 4, 1},
                               {2, 64, 3, 1},  {2, 32, 4, 1},  {2, 32, 3, 1}, {2, 32, 2, 1}, {1, 16, 2, 1}};
    const std::span<const Ring> rings = std::span(kRings).subspan(problem.kv_dtype == DType::kInt4 ? 0
                                                                  : has_codes(problem)             ? 1
                                                                                                   : 2);
    for (const Ring& ring : rings) {
      const DecodeConfig config = {.row_warps = row_warps,
                                   .key_warps = ring.key_warps,
                                   .block_n = ring.block_n,
                                   .num_stages = ring.num_stages,
                                   .ctas_per_sm = ring.ctas_per_sm};
      if (is_valid(config, problem, limits)) return config;
    }
    return std::nullopt;
  }
};

}  // namespace
}  // namespace flashcore

FLASHCORE_FAMILY(sm80_decode_fwd, Sm80DecodeForward)
