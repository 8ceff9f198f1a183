#include "api/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "api/functions.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/problem_fields.h"

namespace flashcore::api {
namespace {

// Of ABI version 1, which ended before `given`, 2, which ended before the window, 3, before 8 bits, 4, before softcap,
// 5, before ragged batches, 6, before functions of the caller's own, 7, before pages, and 8 to 10, before v_layout:
// nobody has had another.
constexpr std::uint32_t kFirstSize = offsetof(fc_attention, given);
constexpr std::uint32_t kSecondSize = offsetof(fc_attention, window_left);
constexpr std::uint32_t kThirdSize = offsetof(fc_attention, o_dtype);
constexpr std::uint32_t kFourthSize = offsetof(fc_attention, softcap);
constexpr std::uint32_t kFifthSize = offsetof(fc_attention, lengths);
constexpr std::uint32_t kSixthSize = offsetof(fc_attention, score);
constexpr std::uint32_t kSeventhSize = offsetof(fc_attention, page_size);
constexpr std::uint32_t kTenthSize = offsetof(fc_attention, v_layout);
constexpr std::uint32_t kKnownGiven = FC_GIVEN_STRIDES | FC_GIVEN_SCALE | FC_GIVEN_WINDOW | FC_GIVEN_O_DTYPE |
                                      FC_GIVEN_SOFTCAP | FC_GIVEN_TENSOR_STRIDES | FC_GIVEN_KV_DTYPE;
constexpr std::int64_t kMaxSpan = std::int64_t{1} << 40;
constexpr int kMaxAlignment = 4096;

DType dtype_of(const char* field, std::int32_t value) {
  switch (value) {
    case FC_FP32: return DType::kF32;
    case FC_FP16: return DType::kF16;
    case FC_BF16: return DType::kBF16;
    case FC_E4M3: return DType::kE4M3;
    case FC_E5M2: return DType::kE5M2;
    default:
      throw_bad_input("{} is {}; use FC_FP32 (0), FC_FP16 (1), FC_BF16 (2), FC_E4M3 (3) or FC_E5M2 (4)", field, value);
  }
}

DType cache_dtype_of(std::int32_t value, DType dtype) {
  switch (value) {
    case FC_E4M3: return DType::kE4M3;
    case FC_E5M2: return DType::kE5M2;
    case FC_INT8: return DType::kInt8;
    case FC_INT4: return DType::kInt4;
    default:
      if (value == static_cast<std::int32_t>(dtype)) return dtype;
      throw_bad_input(
          "kv_dtype is {}; use FC_E4M3 (3), FC_E5M2 (4), FC_INT8 (5) or FC_INT4 (6), or leave out FC_GIVEN_KV_DTYPE",
          value);
  }
}

// Callers of every version have it 0 where they do not mean it.
void require_no_kv_dtype(const fc_attention& a) {
  if ((a.given & FC_GIVEN_KV_DTYPE) == 0 && a.kv_dtype != 0)
    throw_bad_input("kv_dtype is {} and given has no FC_GIVEN_KV_DTYPE; add it, or leave kv_dtype 0", a.kv_dtype);
}

std::int32_t number_of_scaling(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone: return FC_SCALING_NONE;
    case Scaling::kTensor: return FC_SCALING_TENSOR;
    case Scaling::kHead: return FC_SCALING_HEAD;
    case Scaling::kToken: return FC_SCALING_TOKEN;
  }
  throw_internal("no such scaling");
}

std::string scaling_word(std::int32_t value, const Problem& problem) {
  switch (value) {
    case FC_SCALING_USUAL: return std::string(to_string(problem.usual_scaling()));
    case FC_SCALING_NONE: return "none";
    case FC_SCALING_TENSOR: return "tensor";
    case FC_SCALING_HEAD: return "head";
    case FC_SCALING_TOKEN: return "token";
    default:
      throw_bad_input(
          "scaling is {}; use FC_SCALING_USUAL (0), FC_SCALING_NONE (1), FC_SCALING_TENSOR (2), FC_SCALING_HEAD (3) or "
          "FC_SCALING_TOKEN (4)",
          value);
  }
}

std::string causal_word(std::int32_t value) {
  switch (value) {
    case FC_CAUSAL_NONE: return "none";
    case FC_CAUSAL_BOTTOM_RIGHT: return "bottom_right";
    case FC_CAUSAL_TOP_LEFT: return "top_left";
    default:
      throw_bad_input("causal is {}; use FC_CAUSAL_NONE (0), FC_CAUSAL_BOTTOM_RIGHT (1) or FC_CAUSAL_TOP_LEFT (2)",
                      value);
  }
}

// Field by field as the table has them, so that what contradicts itself is refused here as in a suite.
Mask mask_of(const fc_attention& a) {
  Problem problem;
  const auto set = [&](std::string_view name, const FieldValue& value) {
    find_problem_field(name)->set(problem, value);
  };
  const auto bound = [&](std::string_view name, std::int64_t keys) {
    if (keys < -1) throw_bad_input("{} is {}; use a number of keys, 0 or more, or -1 for no bound", name, keys);
    const bool none = keys == -1 || (keys == 0 && (a.given & FC_GIVEN_WINDOW) == 0);
    set(name, none ? FieldValue(std::monostate()) : FieldValue(keys));
  };
  set("causal", causal_word(a.causal));
  bound("window_left", a.window_left);
  bound("window_right", a.window_right);
  if (a.window_alignment != FC_ALIGN_BOTTOM_RIGHT && a.window_alignment != FC_ALIGN_TOP_LEFT)
    throw_bad_input("window_alignment is {}; use FC_ALIGN_BOTTOM_RIGHT (0) or FC_ALIGN_TOP_LEFT (1)",
                    a.window_alignment);
  if (a.window_alignment == FC_ALIGN_TOP_LEFT) {
    require_one_alignment(causal_word(a.causal), "top_left");
    set("window_alignment", std::string("top_left"));
  }
  return problem.mask;
}

struct Axis {
  const char* name;
  std::int64_t extent, stride;
};
std::array<Axis, 3> axes_of(const TensorLayout& t) {
  return {Axis{"batch", t.batch, t.stride_batch}, Axis{"head", t.heads, t.stride_head},
          Axis{"row", t.rows, t.stride_row}};
}

// Two elements of an output at one place would be written by two threads.
void require_no_overlap(const char* tensor, const TensorLayout& layout) {
  if (layout.elements() == 0) return;
  std::array<Axis, 3> axes = axes_of(layout);
  for (Axis& axis : axes) axis.stride = std::abs(axis.stride);
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t covered = layout.columns;
  for (const Axis& axis : axes) {
    if (axis.extent <= 1) continue;
    if (axis.stride < covered)
      throw_bad_input(
          "{} has stride {} along {}, where the axes inside it cover {} elements: outputs would overlap. Use a larger "
          "stride, or give none for a contiguous tensor",
          tensor, axis.stride, axis.name, covered);
    covered += (axis.extent - 1) * axis.stride;
  }
}

TensorLayout with_strides(const char* tensor, TensorLayout layout, const fc_strides& strides, bool given) {
  if (!given && strides.batch == 0 && strides.head == 0 && strides.row == 0) return layout;
  const TensorLayout contiguous = layout;
  layout.stride_batch = strides.batch;
  layout.stride_head = strides.head;
  layout.stride_row = strides.row;
  for (const Axis& axis : axes_of(layout)) {
    // Both signs by division: the smallest number of 64 bits has no absolute value.
    if (axis.extent > 1 &&
        (axis.stride > kMaxSpan / (axis.extent - 1) || axis.stride < -(kMaxSpan / (axis.extent - 1))))
      throw_bad_input("{} has stride {} along {} of {} elements; a tensor may span at most 2^40 elements", tensor,
                      axis.stride, axis.name, axis.extent);
  }
  // Frameworks say anything of an axis with one element. It is never multiplied with more than 0.
  if (layout.batch <= 1) layout.stride_batch = contiguous.stride_batch;
  if (layout.heads <= 1) layout.stride_head = contiguous.stride_head;
  if (layout.rows <= 1) layout.stride_row = contiguous.stride_row;
  return layout;
}

bool multiple_of_16(const TensorLayout& layout, DType dtype) {
  const auto axes = axes_of(layout);
  return std::all_of(axes.begin(), axes.end(),
                     [&](const Axis& axis) { return axis.extent <= 1 || axis.stride * bits_of(dtype) % 128 == 0; });
}

// Rows begin at whole bytes.
void require_whole_bytes(const char* tensor, const TensorLayout& layout, DType dtype) {
  for (const Axis& axis : axes_of(layout))
    if (axis.stride * bits_of(dtype) % 8 != 0)
      throw_bad_input("{} has stride {} along {}; give an even one: two elements of {} share a byte", tensor,
                      axis.stride, axis.name, to_string(dtype));
}

bool has_negative_stride(const TensorLayout& layout) {
  const auto axes = axes_of(layout);
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.extent > 1 && axis.stride < 0; });
}

bool has_broadcast(const TensorLayout& layout) {
  const auto axes = axes_of(layout);
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.extent > 1 && axis.stride == 0; });
}

// Callers built with an older header have a shorter struct.
std::uint32_t size_of_struct(const fc_attention* given) {
  std::uint32_t size = 0;
  std::memcpy(&size, &given->struct_size, sizeof(size));
  if (size != kFirstSize && size != kSecondSize && size != kThirdSize && size != kFourthSize && size != kFifthSize &&
      size != kSixthSize && size != kSeventhSize && size != kTenthSize && size != sizeof(fc_attention))
    throw_bad_input(
        "fc_attention.struct_size is {}, and this library (ABI version {}) knows {}: start from FC_ATTENTION_INIT, or "
        "use the library that belongs to the header",
        size, FC_ABI_VERSION, sizeof(fc_attention));
  return size;
}

fc_attention whole(const fc_attention* given) {
  if (!given) throw_bad_input("the problem is null; fill in an fc_attention that starts as FC_ATTENTION_INIT");
  fc_attention a = FC_ATTENTION_INIT;
  const std::uint32_t size = size_of_struct(given);
  std::memcpy(&a, given, size);
  if (size < kFourthSize && (a.given & FC_GIVEN_O_DTYPE) != 0)
    throw_bad_input(
        "given has FC_GIVEN_O_DTYPE, and a struct of {} bytes has no o_dtype; start from FC_ATTENTION_INIT of the "
        "header that belongs to this library",
        size);
  if (size < kFifthSize && (a.given & FC_GIVEN_SOFTCAP) != 0)
    throw_bad_input(
        "given has FC_GIVEN_SOFTCAP, and a struct of {} bytes has no softcap; start from FC_ATTENTION_INIT of the "
        "header that belongs to this library",
        size);
  if (size < kThirdSize && (a.given & FC_GIVEN_WINDOW) != 0)
    throw_bad_input(
        "given has FC_GIVEN_WINDOW, and a struct of {} bytes has no fields for a window; start from "
        "FC_ATTENTION_INIT of the header that belongs to this library",
        size);
  if (size < kSeventhSize && (a.given & (FC_GIVEN_TENSOR_STRIDES | FC_GIVEN_KV_DTYPE)) != 0)
    throw_bad_input(
        "given has {}, and a struct of {} bytes has no {}; start from FC_ATTENTION_INIT of the header that belongs to "
        "this library",
        (a.given & FC_GIVEN_KV_DTYPE) != 0 ? "FC_GIVEN_KV_DTYPE" : "FC_GIVEN_TENSOR_STRIDES", size,
        (a.given & FC_GIVEN_KV_DTYPE) != 0 ? "kv_dtype" : "tensors");
  if ((a.given & ~kKnownGiven) != 0)
    throw_bad_input("given is {:#x}; or together what fc_given lists (at most {:#x})", a.given, kKnownGiven);
  return a;
}

bool reads_deterministic_batch(const fc_attention& a) {
  if (a.deterministic_batch != 0 && a.deterministic_batch != 1)
    throw_bad_input("deterministic_batch is {}; use 0 or 1", a.deterministic_batch);
  if (a.deterministic_batch == 1 && a.candidate)
    throw_bad_input("deterministic_batch is 1 and candidate is '{}'; leave one out: both choose the kernel",
                    excerpt(a.candidate));
  return a.deterministic_batch == 1;
}

// Rows of the packed tensors of a ragged batch.
SequenceLengths total_of(const fc_attention& a, const Problem& problem) {
  constexpr std::int64_t kMostRows = (std::int64_t{1} << 30) - 1;  // kernels step over rows in 32 bits
  for (const auto& [name, rows] : {std::pair{"total_q", a.total_q}, std::pair{"total_kv", a.total_kv}}) {
    if (!problem.ragged() && rows != 0)
      throw_bad_input("{} is {} and the batch is not ragged; leave it 0, or set lengths to FC_LENGTHS_FULL", name,
                      rows);
    if (rows < 0 || rows > kMostRows)
      throw_bad_input("{} is {}; use a number of rows from 0 to {}", name, rows, kMostRows);
  }
  if (problem.paged() && a.total_kv != 0)
    throw_bad_input(
        "total_kv is {} and the cache has pages; leave it 0: pages says how many there are, and seqused_kv how many "
        "keys",
        a.total_kv);
  return {a.total_q, a.total_kv};
}

// The pool and the block table of a paged cache.
ProblemLayouts paged_layouts_of(const fc_attention& a, const Problem& problem) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  for (const auto& [name, value] :
       {std::pair{"pages", a.pages}, std::pair{"max_pages", a.max_pages}, std::pair{"table_stride", a.table_stride}}) {
    if (!problem.paged() && value != 0)
      throw_bad_input("{} is {} and page_size is 0; leave it 0, or give the size of the cache's pages", name, value);
    if (value < 0 || value > kMost) throw_bad_input("{} is {}; use a number from 0 to {}", name, value, kMost);
  }
  if (!problem.paged()) return {};
  const std::int64_t stride = a.table_stride == 0 ? a.max_pages : a.table_stride;
  if (stride < a.max_pages)
    throw_bad_input(
        "table_stride is {} and max_pages {}; rows of the block table lie at least as far apart as they are "
        "long",
        stride, a.max_pages);
  if (a.pages > 0 &&
      problem.page_size * problem.heads_kv > kMaxSpan / a.pages / std::max(problem.head_dim, problem.head_dim_v))
    throw_bad_input("a pool of {} pages of {} keys, {} heads and head dim {} has more than 2^40 elements", a.pages,
                    problem.page_size, problem.heads_kv, std::max(problem.head_dim, problem.head_dim_v));
  return make_paged_layouts(problem, Layout::kBhsd, a.total_q, a.pages, a.max_pages, stride);
}

}  // namespace

static_assert(static_cast<int>(Lengths::kFull) == FC_LENGTHS_FULL &&
              static_cast<int>(Lengths::kHalving) == FC_LENGTHS_HALVING &&
              static_cast<int>(Lengths::kRandom) == FC_LENGTHS_RANDOM);
static_assert(static_cast<int>(DType::kE5M2) == FC_E5M2 && static_cast<int>(DType::kInt8) == FC_INT8 &&
              static_cast<int>(DType::kInt4) == FC_INT4);
static_assert(static_cast<int>(Alibi::kHead) == FC_ALIBI_HEAD && static_cast<int>(Alibi::kBatch) == FC_ALIBI_BATCH);

Request read_request(const fc_attention* given) {
  const fc_attention a = whole(given);
  Request request;
  Problem& problem = request.problem;
  problem.dtype = dtype_of("dtype", a.dtype);
  require_no_kv_dtype(a);
  if ((a.given & FC_GIVEN_KV_DTYPE) != 0)
    find_problem_field("kv_dtype")->set(problem, std::string(to_string(cache_dtype_of(a.kv_dtype, problem.dtype))));
  if ((a.given & FC_GIVEN_O_DTYPE) != 0)
    find_problem_field("o_dtype")->set(problem, std::string(to_string(dtype_of("o_dtype", a.o_dtype))));
  find_problem_field("scaling")->set(problem, scaling_word(a.scaling, problem));
  problem.mask = mask_of(a);
  problem.batch = a.batch;
  problem.heads_q = a.heads_q;
  problem.heads_kv = a.heads_kv;
  problem.seqlen_q = a.seqlen_q;
  problem.seqlen_kv = a.seqlen_kv;
  problem.head_dim = a.head_dim;
  problem.head_dim_v = a.head_dim_v;
  if (a.scale != 0 || (a.given & FC_GIVEN_SCALE)) problem.scale = a.scale;
  if (a.softcap != 0 || (a.given & FC_GIVEN_SOFTCAP)) problem.softcap = a.softcap;
  if (a.alibi < FC_ALIBI_NONE || a.alibi > FC_ALIBI_BATCH)
    throw_bad_input("alibi is {}; use FC_ALIBI_NONE (0), FC_ALIBI_HEAD (1) or FC_ALIBI_BATCH (2)", a.alibi);
  problem.alibi = static_cast<Alibi>(a.alibi);
  if (a.sink != FC_SINK_NONE && a.sink != FC_SINK_HEAD)
    throw_bad_input("sink is {}; use FC_SINK_NONE (0) or FC_SINK_HEAD (1)", a.sink);
  problem.sink = a.sink == FC_SINK_HEAD;
  if (a.amax != FC_AMAX_NONE && a.amax != FC_AMAX_HEAD)
    throw_bad_input("amax is {}; use FC_AMAX_NONE (0) or FC_AMAX_HEAD (1)", a.amax);
  problem.amax = a.amax == FC_AMAX_HEAD;
  if (a.lengths < FC_LENGTHS_FIXED || a.lengths > FC_LENGTHS_RANDOM)
    throw_bad_input("lengths is {}; use FC_LENGTHS_FIXED (0), or FC_LENGTHS_FULL (1) for a ragged batch", a.lengths);
  problem.lengths = static_cast<Lengths>(a.lengths);
  problem.page_size = a.page_size;
  if (a.v_layout != FC_V_ND && a.v_layout != FC_V_DN)
    throw_bad_input("v_layout is {}; use FC_V_ND (0) or FC_V_DN (1)", a.v_layout);
  problem.v_layout = a.v_layout == FC_V_DN ? VLayout::kDn : VLayout::kNd;
  take_functions(a, problem);
  problem.validate();
  request.alignment = a.alignment == 0 ? 16 : a.alignment;
  const std::size_t least =
      std::min({size_of(problem.dtype), least_bytes(problem.cache_dtype()), size_of(problem.output_dtype())});
  if (request.alignment < static_cast<int>(least) || request.alignment > kMaxAlignment ||
      (request.alignment & (request.alignment - 1)) != 0)
    throw_bad_input("alignment is {}; use a power of two from {} (one element) to {}, or 0 for 16", a.alignment, least,
                    kMaxAlignment);
  const SequenceLengths total = total_of(a, problem);
  const ProblemLayouts paged = paged_layouts_of(a, problem);
  ProblemLayouts& layouts = request.layouts = problem.paged()    ? paged
                                              : problem.ragged() ? make_layouts(problem, Layout::kBhsd, total)
                                                                 : make_layouts(problem, Layout::kBhsd);
  layouts.q = with_strides("q", layouts.q, a.q, a.given & FC_GIVEN_Q_STRIDES);
  layouts.k = with_strides("k", layouts.k, a.k, a.given & FC_GIVEN_K_STRIDES);
  layouts.v = with_strides("v", layouts.v, a.v, a.given & FC_GIVEN_V_STRIDES);
  layouts.o = with_strides("o", layouts.o, a.o, a.given & FC_GIVEN_O_STRIDES);
  require_no_overlap("o", layouts.o);
  require_whole_bytes("k", layouts.k, problem.cache_dtype());
  require_whole_bytes("v", layouts.v, problem.cache_dtype());
  request.is_16b_aligned = request.alignment >= 16;
  request.is_16b_aligned = request.is_16b_aligned && multiple_of_16(layouts.q, problem.dtype);
  for (const TensorLayout* t : {&layouts.k, &layouts.v})
    request.is_16b_aligned = request.is_16b_aligned && multiple_of_16(*t, problem.cache_dtype());
  request.is_16b_aligned = request.is_16b_aligned && multiple_of_16(layouts.o, problem.output_dtype());
  request.is_broadcast = has_broadcast(layouts.q) || has_broadcast(layouts.k) || has_broadcast(layouts.v);
  for (const TensorLayout* t : {&layouts.q, &layouts.k, &layouts.v, &layouts.o})
    request.has_negative_strides = request.has_negative_strides || has_negative_stride(*t);
  if (problem.has_expression()) place_tensors(a, request);
  if (a.candidate) request.candidate = a.candidate;
  request.deterministic_batch = reads_deterministic_batch(a);
  return request;
}

void fill_from_id(const char* id, fc_attention* problem) {
  if (!problem)
    throw_bad_input("problem is null; give the address of an fc_attention that starts as FC_ATTENTION_INIT");
  const std::uint32_t size = size_of_struct(problem);
  fc_attention made = request_of_id(id);
  if (size < sizeof(fc_attention) && (made.v_layout != FC_V_ND || made.amax != FC_AMAX_NONE))
    throw_bad_input(
        "problem id '{}' has v transposed or largest magnitudes, which an fc_attention of struct_size {} has no field "
        "for; build with a header of ABI version {}",
        excerpt(id), size, made.amax != FC_AMAX_NONE ? 13 : 11);
  if (size < kTenthSize && made.page_size != 0)
    throw_bad_input(
        "problem id '{}' has a paged cache, which an fc_attention of struct_size {} has no fields for; build with a "
        "header of ABI version 8",
        excerpt(id), size);
  if (size < kSeventhSize && (made.given & FC_GIVEN_KV_DTYPE))
    throw_bad_input(
        "problem id '{}' has a quantised cache, which an fc_attention of struct_size {} has no field for; build with a "
        "header of ABI version 9",
        excerpt(id), size);
  if (size < kSeventhSize && (made.score || made.mask))
    throw_bad_input(
        "problem '{}' has a score or mask function, which an fc_attention of struct_size {} has no fields for; build "
        "with a header of ABI version 7",
        excerpt(id), size);
  if (size < kSixthSize && made.lengths != FC_LENGTHS_FIXED)
    throw_bad_input(
        "problem id '{}' is of a ragged batch, which an fc_attention of struct_size {} has no fields for; build with a "
        "header of ABI version 6",
        excerpt(id), size);
  if (size < kFifthSize && (made.softcap != 0 || made.alibi != FC_ALIBI_NONE || made.sink != FC_SINK_NONE))
    throw_bad_input(
        "problem id '{}' has a softcap, ALiBi or a sink, which an fc_attention of struct_size {} has no fields for; "
        "build with a header of ABI version 5",
        excerpt(id), size);
  if (size < kFourthSize && made.dtype >= FC_E4M3)
    throw_bad_input(
        "problem id '{}' is of 8 bits, which an fc_attention of struct_size {} has no fields for; build with a header "
        "of "
        "ABI version 4",
        excerpt(id), size);
  if (size < kThirdSize && (made.given & FC_GIVEN_WINDOW))
    throw_bad_input(
        "problem id '{}' has a window, which an fc_attention of struct_size {} has no fields for; build with "
        "a header of ABI version 3",
        excerpt(id), size);
  made.struct_size = size;
  std::memcpy(problem, &made, size);
}

fc_attention request_of_id(const char* id) {
  if (!id) throw_bad_input("the problem id is null; give one as b1_h32_hk8_s4096_d128_bf16_causal");
  const PlacedProblem problem = PlacedProblem::parse(id);
  const ProblemLayouts layouts = make_layouts(problem);
  const auto strides = [](const TensorLayout& t) { return fc_strides{t.stride_batch, t.stride_head, t.stride_row}; };
  fc_attention a = FC_ATTENTION_INIT;
  a.dtype = static_cast<std::int32_t>(problem.dtype);
  if (problem.kv_dtype) {
    a.kv_dtype = static_cast<std::int32_t>(*problem.kv_dtype);
    a.given |= FC_GIVEN_KV_DTYPE;
  }
  if (problem.o_dtype) {
    a.o_dtype = static_cast<std::int32_t>(*problem.o_dtype);
    a.given |= FC_GIVEN_O_DTYPE;
  }
  if (problem.scaling) a.scaling = number_of_scaling(*problem.scaling);
  a.batch = problem.batch;
  a.heads_q = problem.heads_q;
  a.heads_kv = problem.heads_kv;
  a.seqlen_q = problem.seqlen_q;
  a.seqlen_kv = problem.seqlen_kv;
  a.head_dim = problem.head_dim;
  a.head_dim_v = problem.head_dim_v;
  const bool top_left = problem.mask.alignment == Alignment::kTopLeft;
  a.causal = !problem.mask.is_causal() ? FC_CAUSAL_NONE : top_left ? FC_CAUSAL_TOP_LEFT : FC_CAUSAL_BOTTOM_RIGHT;
  const std::optional<std::int64_t> right = problem.mask.is_causal() ? std::nullopt : problem.mask.right;
  if (problem.mask.left || right) {
    a.window_left = problem.mask.left.value_or(-1);
    a.window_right = right.value_or(-1);
    a.given |= FC_GIVEN_WINDOW;
    if (top_left && !problem.mask.is_causal()) a.window_alignment = FC_ALIGN_TOP_LEFT;
  }
  a.scale = problem.scale.value_or(0);
  a.softcap = problem.softcap.value_or(0);
  a.alibi = static_cast<std::int32_t>(problem.alibi);
  a.sink = problem.sink ? FC_SINK_HEAD : FC_SINK_NONE;
  a.amax = problem.amax ? FC_AMAX_HEAD : FC_AMAX_NONE;
  a.lengths = static_cast<std::int32_t>(problem.lengths);
  if (problem.has_expression()) fill_functions(problem, a);
  if (problem.ragged()) a.total_q = layouts.total_q, a.total_kv = layouts.total_kv;
  a.page_size = problem.page_size;
  a.v_layout = problem.has_transposed_v() ? FC_V_DN : FC_V_ND;
  a.pages = layouts.pages, a.max_pages = layouts.max_pages, a.table_stride = layouts.table_stride;
  a.q = strides(layouts.q);
  a.k = strides(layouts.k);
  a.v = strides(layouts.v);
  a.o = strides(layouts.o);
  return a;
}

}  // namespace flashcore::api
