#pragma once
// What every GPU family shares on the host: its Config erased to values, Traits and Limits filled, parameters packed.

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>

#include "kernels/config_binding.h"
#include "kernels/family.h"
#include "kernels/gpu_expression.h"
#include "kernels/tile/amax_params.h"
#include "kernels/tile/page_boxes.h"
#include "kernels/tile/traits.h"

namespace flashcore {

// From the table of its fields.
Traits traits_of(const Problem& problem);
Limits limits_of(const DeviceLimits& limits);
std::string print_traits(const Traits& traits);  // "flashcore::Traits{...}" for a name expression
// Addresses are null: see relocate_forward.
ForwardParams make_forward_params(const Problem& problem, const ProblemLayouts& layouts);
// The addresses of a ForwardParams that begins at byte `offset` of the step's parameters.
void relocate_forward(Step& step, std::size_t offset);
// The same of 8-bit problems. Without scales the addresses of the factors stay null.
Fp8ForwardParams make_fp8_params(const Problem& problem, const ProblemLayouts& layouts);
void relocate_fp8(Step& step, std::size_t offset, const Problem& problem);
// The addresses of the factors of 8-bit problems, in parameters of type All at the start of the step's.
template <class All>
void relocate_fp8_descales(Step& step, const Problem& problem, std::size_t offset = 0) {
  if (!problem.has_descales()) return;
  step.relocate(offset + offsetof(All, descale_q) + offsetof(Descale, values), Operand::kDescaleQ);
  step.relocate(offset + offsetof(All, descale_k) + offsetof(Descale, values), Operand::kDescaleK);
  step.relocate(offset + offsetof(All, descale_v) + offsetof(Descale, values), Operand::kDescaleV);
}
// How an operand's factors lie, whose heads have so many rows; and those of k or v.
Descale make_descale(const Problem& problem, Scaling scaling, std::int64_t heads, std::int64_t rows);
Descale make_descale_of_keys(const Problem& problem, Scaling scaling);
// Of problems with a quantised cache: the factors of k and v behind parameters of type Plain at the start of the step's
// parameters.
template <class Plain>
Quantised<Plain> with_descales(const Plain& plain, const Problem& problem) {
  return {plain, make_descale_of_keys(problem, problem.k_scaling()),
          make_descale_of_keys(problem, problem.v_scaling())};
}
template <class Plain>
void relocate_descales(Step& step, const Problem& problem) {
  if (!problem.has_descales()) return;
  using All = Quantised<Plain>;
  step.relocate(offsetof(All, descale_k) + offsetof(Descale, values), Operand::kDescaleK);
  step.relocate(offsetof(All, descale_v) + offsetof(Descale, values), Operand::kDescaleV);
}
// ForwardParams, Fp8ForwardParams or Quantised<ForwardParams>, as all of the step's parameters, with those of scores
// where the problem has any.
void set_forward_params(Step& step, const Problem& problem, const ProblemLayouts& layouts);
// What a score is in units of before its own functions and, without them, exp2.
double score_unit(const Problem& problem);
// Of problems with a function of scores or a sink. Addresses are null: relocate_scores has them, for a ScoreParams at
// byte `offset`.
ScoreParams make_score_params(const Problem& problem);
void relocate_scores(Step& step, std::size_t offset, const Problem& problem);
// Of ragged problems; addresses are null, as above.
RaggedParams make_ragged_params(const Problem& problem, const ProblemLayouts& layouts);
void relocate_ragged(Step& step, std::size_t offset);
// Of paged problems.
PagedParams make_paged_params(const Problem& problem, const ProblemLayouts& layouts);
// Part by part, of a step whose parameters begin with an All: of one that ends with functions, GCC 12 takes strides of
// tensors for padding and clears them.
template <class Params>
void set_ragged_part(Step& step, const Params& params, const Problem& problem, const ProblemLayouts& layouts) {
  using All = Ragged<Params>;
  step.set_part(0, params);
  step.set_part(offsetof(All, score), make_score_params(problem));
  step.set_part(offsetof(All, ragged), make_ragged_params(problem, layouts));
  relocate_scores(step, offsetof(All, score), problem);
  relocate_ragged(step, offsetof(All, ragged));
}
template <class Params>
void set_paged_part(Step& step, const Params& params, const Problem& problem, const ProblemLayouts& layouts) {
  using All = Paged<Params>;
  static_assert(offsetof(All, score) == offsetof(Ragged<Params>, score));
  static_assert(offsetof(All, ragged) == offsetof(Ragged<Params>, ragged));
  set_ragged_part(step, params, problem, layouts);
  step.set_part(offsetof(All, paged), make_paged_params(problem, layouts));
  step.relocate(offsetof(All, paged) + offsetof(PagedParams, block_table), Operand::kBlockTable);
}
// Where a kernel with functions has their ExpressionParams.
template <class Params>
std::size_t expression_offset(const Problem& problem) {
  if (problem.paged()) return offsetof(ExpressedRagged<Paged<Params>>, expression);
  if (problem.ragged()) return offsetof(ExpressedRagged<Ragged<Params>>, expression);
  return offsetof(Expressed<Params>, expression);
}
template <class Params>
std::size_t params_bytes(const Problem& problem) {
  if (problem.has_expression())
    return problem.paged()    ? sizeof(ExpressedRagged<Paged<Params>>)
           : problem.ragged() ? sizeof(ExpressedRagged<Ragged<Params>>)
                              : sizeof(Expressed<Params>);
  return problem.paged()       ? sizeof(Paged<Params>)
         : problem.ragged()    ? sizeof(Ragged<Params>)
         : problem.has_score() ? sizeof(Scored<Params>)
                               : sizeof(Params);
}
// A kernel's own parameters, of `forward` or, with those of scores, of `forward_scored`; of ragged problems with both,
// of `forward_ragged` or, where their caches are in pages, of `forward_paged`. With those of functions of the user's
// own
// `_expressed` follows each name.
template <class Params>
void set_params_of(Step& step, const Params& params, const Problem& problem, const ProblemLayouts& layouts) {
  step.launch.params.assign(params_bytes<Params>(problem), std::byte{0});
  if (problem.paged()) {
    set_paged_part(step, params, problem, layouts);
  } else if (problem.ragged()) {
    set_ragged_part(step, params, problem, layouts);
  } else {
    step.set_part(0, params);
    if (problem.has_score() || problem.has_expression()) {
      static_assert(offsetof(Scored<Params>, score) == offsetof(Expressed<Params>, score));
      step.set_part(offsetof(Scored<Params>, score), make_score_params(problem));
      relocate_scores(step, offsetof(Scored<Params>, score), problem);
    }
  }
  if (!problem.has_expression()) return;
  const std::size_t offset = expression_offset<Params>(problem);
  step.set_part(offset, make_expression_params(problem, layouts, score_unit(problem)));
  relocate_expressions(step, offset, problem);
}
// Whether sums of 8-bit products over `keys` keys, or 0 for all of them, are as short as the error bounds want.
bool are_sums_short(std::int64_t keys, const Problem& problem);
// Of families that have no kernel for 8 bits.
inline constexpr const char* kNo8Bits = "no 8-bit types (e4m3, e5m2)";
// Of families that have no kernel for quantised caches.
std::optional<std::string> why_no_quantised_cache(const Problem& problem);
// Why a family that does not write largest magnitudes refuses a problem that asks for them.
std::optional<std::string> why_no_amax(const Problem& problem);
// Why a family without them refuses score and mask functions of the user's own.
std::optional<std::string> why_no_expression(const Problem& problem);
// Of families that have no kernel for ragged batches.
std::optional<std::string> why_not_ragged(const Problem& problem);
// Of families that have no kernel for paged caches.
std::optional<std::string> why_not_paged(const Problem& problem);
// What no kernel here does on any device: sizes past 32-bit row indices. None if fine.
std::optional<std::string> why_indices_overflow(const Problem& problem);

// 128 bytes that the device encodes; the kernel's ptx::TensorMap.
struct alignas(64) EncodedMap {
  std::byte bytes[128];
};
// A tensor of 16-bit or 8-bit elements seen as [batch, head, row, column]; `box` is the tile that one load brings,
// innermost first.
TensorMapSpec tensor_map_of(std::size_t param_offset, DType dtype, const TensorLayout& layout,
                            const std::array<int, 4>& box);

// With the swizzle of its box's width.
TensorMapSpec as_wide_as_swizzle(TensorMapSpec map);

// The same of a ragged batch's packed tensor, whose sequences have at most `bound` rows each. Row r of a sequence of
// `length` rows that begins at row `first` of the tensor has the coordinates (row, batch) = (r + bound - length, first
// + length): the map begins `bound` rows before the tensor, and a step of either is a row. So rows past the sequence's
// end are outside of the map, whatever follows them in memory: loads bring zeros, stores leave them out.
TensorMapSpec ragged_map_of(std::size_t param_offset, DType dtype, const TensorLayout& layout, std::int64_t bound,
                            const std::array<int, 4>& box);

// Of a pool of pages, [pages, heads, keys of a page, columns]: boxes of `rows` keys in which a sequence ends. With
// `valid` keys of the sequence, the first of them key `key` of page `page`, such a box has the coordinates (row, last)
// = (rows - valid, page * steps_per_page + (key + valid) * steps_per_key): as of a ragged batch what follows is outside
// of the map.
struct PageEndMap {
  TensorMapSpec map;
  int steps_per_page, steps_per_key;
};
PageEndMap page_end_map_of(std::size_t param_offset, DType dtype, const TensorLayout& layout, int rows,
                           int columns = 64);

// The parameters of forward_paged in a family that loads boxes by TMA (tile/page_boxes.h), and the maps of its pools:
// `params` has those of k and v among its members, blocks have `block_n` keys, and boxes so many columns of each, which
// are as wide as the swizzle.
struct BoxColumns {
  int k = 64, v = 64;
};
template <class Params>
void set_pool_params(Step& step, const Params& params, int block_n, const Problem& problem,
                     const ProblemLayouts& layouts, BoxColumns columns = {}) {
  using Pool = tile::Pool<Params, EncodedMap>;
  const int rows = static_cast<int>(std::gcd(problem.page_size, std::int64_t{block_n}));
  const PageEndMap end = page_end_map_of(offsetof(Pool, v_end), problem.dtype, layouts.v, rows, columns.v);
  const tile::PageBoxes boxes = {rows, block_n / rows, end.steps_per_page, end.steps_per_key,
                                 tile::FastDivide::by(static_cast<int>(problem.page_size))};
  set_params_of(step, Pool{params, {}, boxes}, problem, layouts);
  // A pool without pages may have no memory to point at, and no page of it is loaded.
  const bool no_pages = layouts.pages == 0;
  const auto map_of = [&](std::size_t offset, TensorLayout pool, int width) {
    pool.batch = std::max<std::int64_t>(pool.batch, 1);
    return as_wide_as_swizzle(tensor_map_of(offset, problem.dtype, pool, {width, rows, 1, 1}));
  };
  step.add_map(map_of(offsetof(Params, k), layouts.k, columns.k), no_pages ? Operand::kQ : Operand::kK);
  for (const TensorMapSpec& map : {map_of(offsetof(Params, v), layouts.v, columns.v), as_wide_as_swizzle(end.map)})
    step.add_map(map, no_pages ? Operand::kQ : Operand::kV);
}

// Tiles of that many query rows, of all sequences and query heads.
inline std::int64_t tiles_of_rows(const Problem& problem, int rows) {
  return (problem.seqlen_q + rows - 1) / rows * problem.heads_q * problem.batch;
}

// No more tiles of `rows` query rows than these, whatever the lengths are.
inline std::int64_t most_ragged_tiles(const Problem& problem, std::int64_t total_q, int rows) {
  if (total_q == 0) return 0;
  const std::int64_t of_bounds = (problem.seqlen_q + rows - 1) / rows * problem.batch;
  return std::min(of_bounds, total_q / rows + problem.batch) * problem.heads_q;
}

// Why a device has no tensor cores as of Ampere.
std::optional<std::string> why_no_ampere(const DeviceLimits& limits);
// The same, or why they have no path for the problem's types; none if they have.
std::optional<std::string> why_no_ampere(const Problem& problem, const DeviceLimits& limits);
// Why a device has no TMA and no wgmma.
std::optional<std::string> why_no_hopper(const DeviceLimits& limits);
// Why kernels of TMA and wgmma on 16-bit types, for head dims of up to `most`, cannot run the problem on such a device;
// none if they can.
std::optional<std::string> why_no_hopper_tiles(const Problem& problem, const DeviceLimits& limits,
                                               std::int64_t most = 256);

namespace detail {
// Outside the class, where Family::why_invalid does not hide the family's free function from argument-dependent lookup.
template <class Config>
const char* family_why_invalid(const Config& config, const Traits& traits, const Limits& limits) {
  return why_invalid(config, traits, limits);
}
}  // namespace detail

// `Config` lives in the family's own namespace, where argument-dependent lookup finds
//   constexpr const char* why_invalid(const Config&, const Traits&, const Limits&)
//   constexpr int smem_bytes(const Config&, const Traits&)
//   constexpr int threads_per_block(const Config&)
template <class Config>
class GpuFamily : public Family {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  // What ptxas is asked for: 1 compiles sooner. 3 is its own default.
  virtual int ptxas_level(const Traits&) const { return 3; }
  // The tiles and blocks of the lists that its kernel reads of a problem with a mask function; none: it asks of each
  // pair.
  virtual std::optional<ListShape> list_shape(const Config&, const Problem&) const { return std::nullopt; }
  const ConfigSpace& space() const override {
    static const ConfigSpace instance = space_of<Config>();
    return instance;
  }
  std::optional<std::string> why_invalid(const ConfigValues& values, const Problem& problem,
                                         const DeviceLimits& limits) const override {
    if (auto reason = why_unsupported(problem, limits)) return reason;
    if (const char* reason =
            detail::family_why_invalid(config_from<Config>(values), traits_of(problem), limits_of(limits)))
      return reason;
    return std::nullopt;
  }
  KernelSource source(const ConfigValues& values, const Problem& problem, const DeviceLimits&) const override {
    const Config config = config_from<Config>(values);
    KernelSource source;
    source.file = fmt::format("{}/kernel.cuh", name());
    // Families with kernels for 8 bits, for quantised caches, for scores, for ragged batches, for paged caches and for
    // functions of the user's own have them by these names, in the same file.
    const Traits traits = traits_of(problem);
    source.name_expression = fmt::format("flashcore::{0}::{1}{2}<{3}, {4}>", name(),
                                         problem.is_8bit()               ? "forward_fp8"
                                         : problem.has_quantised_cache() ? "forward_quantised"
                                                                         : "forward",
                                         entry_suffix(problem), print_traits(traits),
                                         initializer_of<Config>(fmt::format("flashcore::{}::Config", name()), values));
    source.dynamic_shared_bytes = smem_bytes(config, traits);
    source.threads_per_block = threads_per_block(config);
    if (problem.has_expression()) source.headers = {{kUserExpressionPath, user_expression_header(problem)}};
    if (const auto shape = lists_of(config, problem))
      source.more_kernels.push_back(list_kernel(*shape, problem, print_traits(traits)));
    if (problem.amax)
      source.more_kernels.push_back(
          {fmt::format("flashcore::tile::clear_amax<{}>", tile::clear_threads()), 0, tile::clear_threads()});
    if (const int level = ptxas_level(traits); level != 3)
      source.options.push_back(fmt::format("--ptxas-options=-O{}", level));
    return source;
  }

 protected:
  std::optional<ListShape> lists_of(const Config& config, const Problem& problem) const {
    return problem.has_mask_expression() ? list_shape(config, problem) : std::nullopt;
  }
  // A program of one launch. TMA and cp.async move 16 bytes at a time.
  static Program one_step(Step step, int alignment_bytes = 16) {
    Program program;
    program.steps.push_back(std::move(step));
    program.alignment_bytes = alignment_bytes;
    return program;
  }
  // The step that clears the largest magnitudes, first of all.
  void add_clear(Program& program, const Config& config, const Problem& problem) const {
    if (!problem.amax) return;
    Step step;
    step.set_params(tile::ClearAmaxParams{nullptr, static_cast<int>(problem.amax_count())});
    step.relocate(offsetof(tile::ClearAmaxParams, amax), Operand::kAmax);
    step.launch.kernel = lists_of(config, problem) ? 2 : 1;
    step.launch.grid.x = 1;
    step.launch.block.x = tile::clear_threads();
    program.steps.insert(program.steps.begin(), std::move(step));
  }
  // Of a kernel with parameters of type Params, once `program` has all else.
  template <class Params>
  void add_lists(Program& program, const Config& config, const Problem& problem, const ProblemLayouts& layouts) const {
    const auto shape = lists_of(config, problem);
    if (!shape) return;
    RaggedListParams bounds{};
    bounds.plain.problem = make_forward_params(problem, layouts);
    if (problem.ragged()) bounds.ragged = make_ragged_params(problem, layouts);
    if (problem.paged()) bounds.paged = make_paged_params(problem, layouts);
    add_block_lists(program, expression_offset<Params>(problem), problem, bounds, *shape);
    if (problem.ragged()) relocate_ragged(program.steps.front(), offsetof(RaggedListParams, ragged));
  }
  // Of the names of a family's kernels, after `forward`, `forward_fp8` or `forward_quantised`.
  static std::string entry_suffix(const Problem& problem) {
    const std::string batch = problem.paged() ? "_paged" : problem.ragged() ? "_ragged" : "";
    if (problem.has_expression()) return batch + "_expressed";
    return batch.empty() && problem.has_score() ? "_scored" : batch;
  }
  // What the config says of every launch.
  static Step step_of(const Config& config, const Problem& problem) {
    Step step;
    step.launch.block.x = static_cast<unsigned>(threads_per_block(config));
    step.launch.shared_bytes = static_cast<unsigned>(smem_bytes(config, traits_of(problem)));
    return step;
  }
};

}  // namespace flashcore
