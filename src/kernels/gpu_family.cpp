#include "kernels/gpu_family.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/problem_fields.h"
#include "core/row_budget.h"

namespace flashcore {

static_assert(static_cast<int>(Element::kF32) == static_cast<int>(DType::kF32));
static_assert(static_cast<int>(Element::kF16) == static_cast<int>(DType::kF16));
static_assert(static_cast<int>(Element::kBF16) == static_cast<int>(DType::kBF16));
static_assert(static_cast<int>(Element::kE4M3) == static_cast<int>(DType::kE4M3));
static_assert(static_cast<int>(Element::kE5M2) == static_cast<int>(DType::kE5M2));
static_assert(static_cast<int>(Element::kInt8) == static_cast<int>(DType::kInt8) &&
              static_cast<int>(Element::kInt4) == static_cast<int>(DType::kInt4));

Traits traits_of(const Problem& problem) {
  Traits traits;
  Traits::fields([&](const char* name, auto member) {
    traits.*member = static_cast<std::remove_reference_t<decltype(traits.*member)>>(compiled_value(name, problem));
  });
  return traits;
}

Limits limits_of(const DeviceLimits& limits) {
  return {limits.arch,
          limits.multiprocessors,
          limits.shared_bytes_per_block,
          limits.shared_bytes_per_multiprocessor,
          limits.registers_per_multiprocessor,
          limits.max_threads_per_block};
}

std::string print_traits(const Traits& traits) {
  // Always named; later members where one of them, or of those after it, is not the default: stored results hold the
  // names of kernels, and those of problems without the later members stay.
  constexpr std::size_t kAlwaysNamed = 6;
  std::vector<std::string> values;
  std::size_t needed = kAlwaysNamed;
  Traits::fields([&](const char*, auto member) {
    const auto value = traits.*member;
    if constexpr (std::is_same_v<decltype(value), const Element>)
      values.push_back(fmt::format("flashcore::Element({})", static_cast<int>(value)));
    else if constexpr (std::is_same_v<decltype(value), const CacheElement>)
      values.push_back(fmt::format("flashcore::CacheElement({})", static_cast<int>(value)));
    else values.push_back(fmt::format("{}", value));
    if (value != Traits().*member) needed = std::max(needed, values.size());
  });
  values.resize(needed);
  return fmt::format("flashcore::Traits{{{}}}", fmt::join(values, ", "));
}

namespace {
constexpr double kLog2E = 1.4426950408889634074;
}  // namespace

double score_unit(const Problem& problem) { return problem.softcap.value_or(problem.softmax_scale()); }

ForwardParams make_forward_params(const Problem& problem, const ProblemLayouts& layouts) {
  const auto strides = [](const TensorLayout& layout) {
    return Strides{layout.stride_batch, layout.stride_head, layout.stride_row};
  };
  ForwardParams params{};
  params.q_stride = strides(layouts.q);
  params.k_stride = strides(layouts.k);
  params.v_stride = strides(layouts.v);
  params.o_stride = strides(layouts.o);
  params.batch = static_cast<int>(problem.batch);
  params.heads_q = static_cast<int>(problem.heads_q);
  params.heads_kv = static_cast<int>(problem.heads_kv);
  params.seqlen_q = static_cast<int>(problem.seqlen_q);
  params.seqlen_kv = static_cast<int>(problem.seqlen_kv);
  const Band<std::int64_t> band = problem.band();
  // A ragged problem's are those of sequences with as many rows as keys.
  const std::int64_t shift =
      problem.ragged() && problem.mask.alignment == Alignment::kBottomRight ? problem.seqlen_kv - problem.seqlen_q : 0;
  params.right_offset = band.bounded_right ? static_cast<int>(band.right_offset - shift) : 0;
  params.left_offset = band.bounded_left ? static_cast<int>(band.left_offset - shift) : 0;
  if (problem.ragged()) params.q_stride.batch = params.o_stride.batch = 0;
  // Of a paged cache they lead from page to page.
  if (problem.ragged() && !problem.paged()) params.k_stride.batch = params.v_stride.batch = 0;
  // A score function leaves scores in base 2 (tile/expressed.cuh).
  params.scale_log2 = problem.has_score_expression() ? 1.0f : static_cast<float>(score_unit(problem) * kLog2E);
  return params;
}

void relocate_forward(Step& step, std::size_t offset) {
  step.relocate(offset + offsetof(ForwardParams, q), Operand::kQ);
  step.relocate(offset + offsetof(ForwardParams, k), Operand::kK);
  step.relocate(offset + offsetof(ForwardParams, v), Operand::kV);
  step.relocate(offset + offsetof(ForwardParams, o), Operand::kO);
  step.relocate(offset + offsetof(ForwardParams, lse), Operand::kLse);
}

namespace {

// tanh(x) / x in x^2, fitted for the least relative error up to kTanhSeriesUntil: 2^-22.3. A term more or less moves
// the end to 0.625 or 0.27.
constexpr double kTanhSeries[] = {0.9999998211860657, -0.3333004117012024, 0.1324603110551834, -0.046419765800237656};
constexpr double kTanhSeriesUntil = 0.4375;

// In the kernels' scores s = x / scale. Not of scales whose seventh power leaves fp32: there it serves s = 0 alone.
void set_tanh_series(ScoreParams& params, double scale) {
  if (!(scale >= 0x1p-16 && scale <= 0x1p16)) return;
  double power = scale;
  for (int i = 0; i < 4; ++i, power *= scale * scale)
    params.tanh_series[i] = static_cast<float>(kTanhSeries[i] * power);
  params.tanh_series_until = static_cast<float>(kTanhSeriesUntil / scale);
}

}  // namespace

ScoreParams make_score_params(const Problem& problem) {
  ScoreParams params{};
  if (problem.softcap) {
    const double scale = problem.softmax_scale() / *problem.softcap;
    params.tanh_scale = static_cast<float>(scale);
    params.tanh_series[0] = params.tanh_scale;
    set_tanh_series(params, scale);
  }
  if (problem.alibi != Alibi::kNone) params.slope_scale = static_cast<float>(1 / score_unit(problem));
  return params;
}

void relocate_scores(Step& step, std::size_t offset, const Problem& problem) {
  if (problem.alibi != Alibi::kNone) step.relocate(offset + offsetof(ScoreParams, alibi), Operand::kAlibi);
  if (problem.sink) step.relocate(offset + offsetof(ScoreParams, sink), Operand::kSink);
}

RaggedParams make_ragged_params(const Problem& problem, const ProblemLayouts& layouts) {
  RaggedParams params{};
  // Kernels step over rows in 32 bits.
  constexpr std::int64_t kMaxRows = std::numeric_limits<int>::max() / 2;
  for (const std::int64_t rows : {layouts.total_q, layouts.total_kv})
    if (rows > kMaxRows)
      throw_bad_input("a packed tensor has {} rows; at most {} are allowed: use a smaller batch", rows, kMaxRows);
  params.total_q = static_cast<int>(layouts.total_q);
  params.total_kv = static_cast<int>(layouts.total_kv);
  params.is_bottom_right = problem.mask.alignment == Alignment::kBottomRight ? 1 : 0;
  return params;
}

PagedParams make_paged_params(const Problem& problem, const ProblemLayouts& layouts) {
  PagedParams params{};
  params.table_stride = layouts.table_stride;
  params.page_size = static_cast<int>(problem.page_size);
  params.pages = static_cast<int>(layouts.pages);
  params.table_keys = layouts.max_pages * problem.page_size;
  return params;
}

void relocate_ragged(Step& step, std::size_t offset) {
  step.relocate(offset + offsetof(RaggedParams, cu_seqlens_q), Operand::kCuSeqlensQ);
  step.relocate(offset + offsetof(RaggedParams, cu_seqlens_kv), Operand::kCuSeqlensKv);
  step.relocate(offset + offsetof(RaggedParams, seqused_kv), Operand::kSequsedKv);
  step.relocate(offset + offsetof(RaggedParams, seqused_q), Operand::kSequsedQ);
}

Fp8ForwardParams make_fp8_params(const Problem& problem, const ProblemLayouts& layouts) {
  Fp8ForwardParams params{};
  params.problem = make_forward_params(problem, layouts);
  params.descale_q = make_descale(problem, problem.q_scaling(), problem.heads_q, problem.seqlen_q);
  params.descale_k = make_descale_of_keys(problem, problem.k_scaling());
  params.descale_v = make_descale_of_keys(problem, problem.v_scaling());
  return params;
}

Descale make_descale(const Problem& problem, Scaling scaling, std::int64_t heads, std::int64_t rows) {
  switch (scaling) {
    case Scaling::kNone:
    case Scaling::kTensor: return {nullptr, 0, 0};
    case Scaling::kHead: return {nullptr, static_cast<int>(problem.heads_kv), 1};
    case Scaling::kToken: return {nullptr, static_cast<int>(heads * rows), static_cast<int>(rows)};
  }
  throw_internal("no such scaling");
}

Descale make_descale_of_keys(const Problem& problem, Scaling scaling) {
  return make_descale(problem, scaling, problem.heads_kv, problem.paged() ? problem.page_size : problem.seqlen_kv);
}

void relocate_fp8(Step& step, std::size_t offset, const Problem& problem) {
  relocate_forward(step, offset + offsetof(Fp8ForwardParams, problem));
  relocate_fp8_descales<Fp8ForwardParams>(step, problem, offset);
}

void set_forward_params(Step& step, const Problem& problem, const ProblemLayouts& layouts) {
  if (problem.amax) {
    set_params_of(step, AmaxFp8ForwardParams{make_fp8_params(problem, layouts), nullptr}, problem, layouts);
    relocate_fp8(step, 0, problem);
    step.relocate(offsetof(AmaxFp8ForwardParams, amax), Operand::kAmax);
  } else if (problem.is_8bit()) {
    set_params_of(step, make_fp8_params(problem, layouts), problem, layouts);
    relocate_fp8(step, 0, problem);
  } else if (problem.has_quantised_cache()) {
    set_params_of(step, with_descales(make_forward_params(problem, layouts), problem), problem, layouts);
    relocate_forward(step, 0);
    relocate_descales<ForwardParams>(step, problem);
  } else {
    set_params_of(step, make_forward_params(problem, layouts), problem, layouts);
    relocate_forward(step, 0);
  }
}

bool are_sums_short(std::int64_t keys, const Problem& problem) {
  return static_cast<double>(keys == 0 ? problem.seqlen_kv : std::min(keys, problem.seqlen_kv)) <= kKeysPerPromotion;
}

std::optional<std::string> why_no_quantised_cache(const Problem& problem) {
  if (!problem.has_quantised_cache()) return std::nullopt;
  return fmt::format("a cache of {}: no kernel of this family converts keys and values to {}",
                     to_string(*problem.kv_dtype), to_string(problem.dtype));
}

std::optional<std::string> why_no_expression(const Problem& problem) {
  if (!problem.has_expression()) return std::nullopt;
  return fmt::format("a {} function: no kernel of this family is made with one",
                     problem.has_score_expression() ? "score" : "mask");
}

std::optional<std::string> why_no_amax(const Problem& problem) {
  if (!problem.amax) return std::nullopt;
  return "largest magnitudes (amax): no kernel of this family writes them";
}

std::optional<std::string> why_not_ragged(const Problem& problem) {
  if (!problem.ragged()) return std::nullopt;
  return "ragged batches: no kernel of this family reads each sequence's lengths";
}

std::optional<std::string> why_not_paged(const Problem& problem) {
  if (!problem.paged()) return std::nullopt;
  return "paged caches: no kernel of this family reads keys through a block table";
}

std::optional<std::string> why_indices_overflow(const Problem& problem) {
  // Row and key indices are 32-bit, and i + right_offset must not wrap. A bound that cuts (Problem::band) lies within
  // the sequences.
  constexpr std::int64_t kMaxRows = std::numeric_limits<int>::max() / 2;
  if (problem.seqlen_q > kMaxRows || problem.seqlen_kv > kMaxRows)
    return fmt::format("sequences of more than {} rows", kMaxRows);
  if (problem.batch * problem.heads_q > kMaxRows) return fmt::format("more than {} heads over the batch", kMaxRows);
  return std::nullopt;
}

TensorMapSpec tensor_map_of(std::size_t param_offset, DType dtype, const TensorLayout& layout,
                            const std::array<int, 4>& box) {
  const TensorElement element = size_of(dtype) == 1     ? TensorElement::kByte
                                : dtype == DType::kBF16 ? TensorElement::kBFloat16
                                                        : TensorElement::kFloat16;
  const auto stride = [&](std::int64_t elements, std::int64_t extent) {
    // Of a dimension of one element any stride is the same; the encoder wants a multiple of 16 bytes.
    return static_cast<std::uint64_t>(extent == 1 ? 16 : elements * bytes_of(element));
  };
  TensorMapSpec map{param_offset,
                    nullptr,
                    element,
                    {static_cast<std::uint64_t>(layout.columns), static_cast<std::uint64_t>(layout.rows),
                     static_cast<std::uint64_t>(layout.heads), static_cast<std::uint64_t>(layout.batch)},
                    {stride(layout.stride_row, layout.rows), stride(layout.stride_head, layout.heads),
                     stride(layout.stride_batch, layout.batch)},
                    {}};
  std::copy(box.begin(), box.end(), map.box);
  return map;
}

TensorMapSpec as_wide_as_swizzle(TensorMapSpec map) {
  map.swizzle = static_cast<TensorSwizzle>(map.box[0] * static_cast<int>(bytes_of(map.element)));
  return map;
}

TensorMapSpec ragged_map_of(std::size_t param_offset, DType dtype, const TensorLayout& layout, std::int64_t bound,
                            const std::array<int, 4>& box) {
  TensorLayout shifted = layout;
  shifted.rows = bound;
  shifted.batch = layout.rows + 1;
  TensorMapSpec map = tensor_map_of(param_offset, dtype, shifted, box);
  // Of one row any stride is the same, if both dimensions have it.
  const std::int64_t element_bytes = static_cast<std::int64_t>(bytes_of(map.element));
  const std::int64_t row_bytes = layout.rows > 1 ? layout.stride_row * element_bytes : 16;
  map.strides_bytes[0] = map.strides_bytes[2] = static_cast<std::uint64_t>(row_bytes);
  map.offset_bytes = -bound * row_bytes;
  return map;
}

PageEndMap page_end_map_of(std::size_t param_offset, DType dtype, const TensorLayout& layout, int rows, int columns) {
  TensorMapSpec map = tensor_map_of(param_offset, dtype, layout, {columns, rows, 1, 1});
  const auto element_bytes = static_cast<std::int64_t>(bytes_of(map.element));
  // The last dimension steps by what divides both: of most layouts a row. Of one page, or one key to a page, any stride
  // is the same.
  const std::int64_t row = layout.rows > 1 ? layout.stride_row : 16 / element_bytes;
  const std::int64_t step = layout.batch > 1 ? std::gcd(row, layout.stride_batch) : row;
  const std::int64_t of_page = layout.batch > 1 ? layout.stride_batch / step : 0, of_key = row / step;
  const std::int64_t steps = std::max<std::int64_t>(layout.batch - 1, 0) * of_page + layout.rows * of_key;
  if (steps >= std::numeric_limits<int>::max())
    throw_bad_input(
        "{} pages that lie {} elements apart, and their keys {}, are too many for a tensor map; at most {} steps of "
        "the "
        "greatest common divisor of both are allowed: use fewer pages, or a stride of pages that is a multiple of that "
        "of keys",
        layout.batch, layout.stride_batch, layout.stride_row, std::numeric_limits<int>::max() - 1);
  map.extents[1] = static_cast<std::uint64_t>(rows);
  map.extents[3] = static_cast<std::uint64_t>(steps + 1);
  map.strides_bytes[0] = static_cast<std::uint64_t>(row * element_bytes);
  map.strides_bytes[2] = static_cast<std::uint64_t>(step * element_bytes);
  map.offset_bytes = -rows * row * element_bytes;
  return {map, static_cast<int>(of_page), static_cast<int>(of_key)};
}

std::optional<std::string> why_no_ampere(const DeviceLimits& limits) {
  if (limits.kind != DeviceKind::kCuda) return "needs an NVIDIA GPU";
  if (limits.arch < 80) return fmt::format("needs compute capability 8.0 or newer, this is sm_{}", limits.arch);
  return std::nullopt;
}

std::optional<std::string> why_no_ampere(const Problem& problem, const DeviceLimits& limits) {
  if (auto reason = why_no_ampere(limits)) return reason;
  if (problem.dtype == DType::kF32) return "fp16 and bf16 only: fp32 has no tensor-core path here";
  if (problem.is_8bit()) return kNo8Bits;
  return std::nullopt;
}

std::optional<std::string> why_no_hopper(const DeviceLimits& limits) {
  if (limits.kind != DeviceKind::kCuda) return "needs an NVIDIA GPU";
  if (limits.arch != 90) return fmt::format("needs compute capability 9.0 (H100, H200), this is sm_{}", limits.arch);
  return std::nullopt;
}

std::optional<std::string> why_no_hopper_tiles(const Problem& problem, const DeviceLimits& limits, std::int64_t most) {
  if (auto reason = why_no_hopper(limits)) return reason;
  if (problem.dtype == DType::kF32) return "fp16 and bf16 only";
  if (problem.is_8bit()) return kNo8Bits;
  if (auto reason = why_no_quantised_cache(problem)) return reason;
  for (const std::int64_t dim : {problem.head_dim, problem.head_dim_v}) {
    if (dim % 8 != 0 || dim > most)
      return fmt::format(
          "head dims that are multiples of 8 up to {} only, not {}: TMA strides are multiples of 16 bytes", most, dim);
  }
  if (problem.seqlen_q == 0 || problem.seqlen_kv == 0) return "a tensor map cannot describe an empty tensor";
  return why_indices_overflow(problem);
}

}  // namespace flashcore
