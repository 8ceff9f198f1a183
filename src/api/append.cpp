#include "api/append.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>

#include "api/artifact_cache.h"
#include "api/fork_gate.h"
#include "api/operand_checks.h"
#include "core/dtype.h"
#include "core/error.h"

namespace flashcore::api {
namespace {

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max() / 2;
constexpr std::int64_t kMostColumns = 1 << 20;
constexpr std::int64_t kMostKeys = std::int64_t{1} << 40;  // of a pool

append::Kind read_kind(const fc_append_kind* given) {
  const fc_append_kind kind = whole_struct(given, fc_append_kind FC_APPEND_KIND_INIT, "fc_append_kind",
                                           {offsetof(fc_append_kind, counts_saturated)});
  if (kind.dtype < FC_FP32 || kind.dtype > FC_INT8)
    throw_bad_input("dtype is {}; use FC_FP32 (0), FC_FP16 (1), FC_BF16 (2), FC_E4M3 (3), FC_E5M2 (4) or FC_INT8 (5)",
                    kind.dtype);
  if (kind.rotary < FC_ROTARY_NONE || kind.rotary > FC_ROTARY_INTERLEAVED)
    throw_bad_input("rotary is {}; use FC_ROTARY_NONE (0), FC_ROTARY_HALF (1) or FC_ROTARY_INTERLEAVED (2)",
                    kind.rotary);
  if (kind.rotary_dtype < FC_FP32 || kind.rotary_dtype > FC_BF16)
    throw_bad_input("rotary_dtype is {}; use FC_FP32 (0), FC_FP16 (1) or FC_BF16 (2)", kind.rotary_dtype);
  append::Kind read;
  read.element = static_cast<Element>(kind.dtype);
  read.rotary = static_cast<append::Rotary>(kind.rotary);
  if (read.rotary != append::Rotary::kNone) read.table = static_cast<Element>(kind.rotary_dtype);
  switch (kind.cache_dtype) {
    case FC_E4M3: read.cache = CacheElement::kE4M3; break;
    case FC_E5M2: read.cache = CacheElement::kE5M2; break;
    case FC_INT8: read.cache = CacheElement::kInt8; break;
    case FC_INT4: read.cache = CacheElement::kInt4; break;
    case FC_CACHE_AS_K: break;
    default:
      throw_bad_input(
          "cache_dtype is {}; use FC_CACHE_AS_K (-1), or FC_E4M3 (3), FC_E5M2 (4), FC_INT8 (5) or FC_INT4 (6) for a "
          "quantised cache",
          kind.cache_dtype);
  }
  if (is_8bit(read.element)) {
    if (kind.cache_dtype == kind.dtype) read.cache = CacheElement::kAsQ;
    if (read.cache != CacheElement::kAsQ)
      throw_bad_input("cache_dtype is {} and dtype has 8 bits; use FC_CACHE_AS_K: such rows are copied as they are",
                      kind.cache_dtype);
  }
  if (kind.counts_saturated != 0 && kind.counts_saturated != 1)
    throw_bad_input("counts_saturated is {}; use 0 or 1", kind.counts_saturated);
  read.counts = kind.counts_saturated == 1;
  if (read.counts && read.cache == CacheElement::kAsQ)
    throw_bad_input(
        "counts_saturated is 1 and the caches are of dtype, whose rows are copied as they are; use 0, or the "
        "cache_dtype of a quantised cache");
  if (read.rotary != append::Rotary::kNone && is_8bit(read.element))
    throw_bad_input("rotary is {} and dtype has 8 bits; turn k before it is scaled to 8 bits", kind.rotary);
  return read;
}

// A launch's operands, checked and in the form that kernels take.
class Reader {
 public:
  Reader(const Context& context, const append::Kind& kind, const fc_append_operands& given)
      : context_(context), kind_(kind), given_(given), checks_(context) {
    sizes();
    caches();
    factors();
    params_.saturated = checks_.counts("saturated", given_.saturated, 2, kind_.counts);
    lengths();
    table();
    rotary();
    checks_.check_apart();
  }
  const append::AppendParams& params() const { return params_; }

 private:
  void sizes() {
    params_.batch = checks_.whole("batch", given_.batch, 1, kMostRows);
    const int heads = checks_.whole("heads_kv", given_.heads_kv, 1, kMostColumns);
    params_.k.heads = params_.v.heads = heads;
    params_.k.dim = checks_.whole("head_dim", given_.head_dim, 1, kMostColumns / heads);
    params_.v.dim = checks_.whole("head_dim_v", given_.head_dim_v, 1, kMostColumns / heads);
    if ((given_.row_sequences != nullptr) != (given_.row_positions != nullptr))
      throw_bad_input("{} is null and the other is not; give row_sequences and row_positions, or neither",
                      given_.row_sequences ? "row_positions" : "row_sequences");
    if (given_.row_sequences && given_.cu_seqlens_new)
      throw_bad_input(
          "cu_seqlens_new and row_sequences are both given; one of them says whose rows are: leave one null");
    const bool packed = given_.cu_seqlens_new || given_.row_sequences;
    params_.rows = rows_of("rows_new", given_.rows_new, packed);
    params_.rows.boundaries = int32s("cu_seqlens_new", given_.cu_seqlens_new, params_.batch + 1, false);
    params_.rows.sequences = int32s("row_sequences", given_.row_sequences, params_.rows.count, false);
    params_.rows.positions = int32s("row_positions", given_.row_positions, params_.rows.count, false);
    source(params_.k, "k", given_.k, given_.k_strides, params_.rows, packed);
    source(params_.v, "v", given_.v, given_.v_strides, params_.rows, packed);
  }

  append::NewRows rows_of(const char* name, std::int64_t given, bool packed) const {
    append::NewRows rows{};
    rows.each = checks_.whole(name, given, 0, packed ? kMostRows : kMostRows / params_.batch);
    rows.count = packed ? rows.each : rows.each * params_.batch;
    return rows;
  }

  // Rows of new tensors: [batch, rows, heads, dim], or [rows, heads, dim].
  TensorLayout layout_of(const append::Operand& x, const append::NewRows& rows, bool packed,
                         const fc_strides& s) const {
    return {packed ? 1 : params_.batch, x.heads, rows.each, x.dim, s.batch, s.head, s.row};
  }

  void source(append::Operand& x, const char* name, const void* at, const fc_strides& s, const append::NewRows& rows,
              bool packed) {
    x.from = at;
    x.from_stride = {packed ? 0 : s.batch, s.head, s.row};
    add(name, at, layout_of(x, rows, packed, s), false);
  }

  void add(const char* name, const void* at, const TensorLayout& layout, bool written) {
    checks_.tensor(name, at, layout, static_cast<DType>(kind_.element), written);
  }

  const std::int32_t* int32s(const char* name, const std::int32_t* at, std::int64_t count, bool written) {
    if (at) checks_.array(name, at, count, sizeof(std::int32_t), written);
    return at;
  }

  void caches() {
    params_.pages = checks_.whole("pages", given_.pages, 0);
    params_.page_size = checks_.whole("page_size", given_.page_size, 1);
    if (given_.pages > kMostKeys / given_.page_size)
      throw_bad_input("{} pages of {} keys are more than any memory has; at most 2^40 keys are allowed", given_.pages,
                      given_.page_size);
    cache(params_.k, "k_cache", given_.k_cache, given_.k_cache_strides);
    cache(params_.v, "v_cache", given_.v_cache, given_.v_cache_strides);
  }
  void cache(append::Operand& x, const char* name, void* at, const fc_strides& s) {
    x.to = at;
    x.to_stride = {s.batch, s.head, s.row};
    if (kind_.cache == CacheElement::kInt4 && (x.dim % 2 != 0 || s.batch % 2 != 0 || s.head % 2 != 0 || s.row % 2 != 0))
      throw_bad_input(
          "{} has rows of {} elements and strides ({}, {}, {}); give even ones: two elements of int4 share a "
          "byte",
          name, x.dim, s.batch, s.head, s.row);
    checks_.tensor(name, at, {params_.pages, x.heads, params_.page_size, x.dim, s.batch, s.head, s.row},
                   static_cast<DType>(append::element_of_cache(kind_)), true);
  }

  // Of a quantised cache with a factor for each key, which are written.
  void new_factors(const char* name, float* at, bool by_token, float*& to) {
    if (!by_token && at) throw_bad_input("{} is given and scaling is not FC_SCALING_TOKEN; leave it null", name);
    if (!by_token || params_.pages == 0) return;
    checks_.array(name, at, std::int64_t{params_.pages} * params_.page_size * params_.k.heads, sizeof(float), true);
    to = at;
  }

  // Of a quantised cache.
  void factors() {
    if (given_.scaling < FC_SCALING_USUAL || given_.scaling > FC_SCALING_TOKEN)
      throw_bad_input(
          "scaling is {}; use FC_SCALING_USUAL (0), FC_SCALING_NONE (1), FC_SCALING_TENSOR (2), FC_SCALING_HEAD (3) or "
          "FC_SCALING_TOKEN (4)",
          given_.scaling);
    const bool quantises = kind_.cache != CacheElement::kAsQ, by_token = given_.scaling == FC_SCALING_TOKEN;
    if (by_token && !quantises)
      throw_bad_input(
          "scaling is FC_SCALING_TOKEN and the caches are of dtype, which has no factors; use "
          "FC_SCALING_USUAL, or a handle whose cache_dtype is a quantised cache's");
    new_factors("new_descale_k", given_.new_descale_k, by_token, params_.new_descale_k);
    new_factors("new_descale_v", given_.new_descale_v, by_token, params_.new_descale_v);
    const bool scaled = quantises && given_.scaling != FC_SCALING_NONE && !by_token,
               by_head = given_.scaling == FC_SCALING_HEAD;
    const std::int64_t count = by_head ? std::int64_t{params_.batch} * params_.k.heads : 1;
    for (const auto& [name, at, descale] : {std::tuple("descale_k", given_.descale_k, &params_.descale_k),
                                            std::tuple("descale_v", given_.descale_v, &params_.descale_v)}) {
      if (!scaled) {
        if (at)
          throw_bad_input("{} is given and {}; leave it null", name,
                          by_token    ? "scaling is FC_SCALING_TOKEN, whose factors are new_descale_k and _v"
                          : quantises ? "scaling is FC_SCALING_NONE"
                                      : "the caches are of dtype, which has no factors");
        continue;
      }
      checks_.array(name, at, count, sizeof(float), false);
      *descale = {at, by_head ? params_.k.heads : 0, by_head ? 1 : 0};
      for (std::int64_t i = 0; context_.on_cpu() && i < count; ++i)
        if (!(at[i] > 0) || std::isinf(at[i]))
          throw_bad_input("{} has {} at {}; factors are positive and finite", name, at[i], i);
    }
  }

  void lengths() {
    const bool needs = !given_.row_sequences || given_.heads_q != 0 || given_.new_seqlens;
    if (needs) checks_.check_address("cache_seqlens", given_.cache_seqlens, sizeof(std::int32_t));
    if (!needs && given_.cache_seqlens)
      throw_bad_input("cache_seqlens and row_sequences are both given; row_positions say where rows go: leave it null");
    if (given_.new_seqlens && given_.row_sequences)
      throw_bad_input(
          "new_seqlens and row_sequences are both given; nobody counts a sequence's rows then: leave it null");
    params_.lengths = int32s("cache_seqlens", given_.cache_seqlens, params_.batch, false);
    params_.new_lengths = given_.new_seqlens;
    // In the place of the old ones they are written by a launch of its own.
    if (given_.new_seqlens != given_.cache_seqlens) int32s("new_seqlens", given_.new_seqlens, params_.batch, true);
    else if (given_.new_seqlens) checks_.last_is_written();
    params_.refused = given_.refused;
    int32s("refused", reinterpret_cast<const std::int32_t*>(given_.refused), 1, true);
  }

  void table() {
    if (!given_.block_table) {
      if (given_.table_starts) throw_bad_input("table_starts is given and block_table is null; give both");
      params_.max_pages = 1;
      return;
    }
    params_.block_table = given_.block_table;
    params_.max_pages = checks_.whole("max_pages", given_.max_pages, 0);
    if (given_.table_starts) {
      params_.table_starts = int32s("table_starts", given_.table_starts, params_.batch + 1, false);
      int32s("block_table", given_.block_table, params_.max_pages, false);
      return;
    }
    params_.table_stride = given_.table_stride == 0 ? params_.max_pages : given_.table_stride;
    checks_.within("table_stride", params_.table_stride, params_.max_pages, OperandChecks::kMostReach / params_.batch);
    const std::int64_t last = (params_.batch - 1) * params_.table_stride + params_.max_pages;
    int32s("block_table", given_.block_table, params_.max_pages == 0 ? 0 : last, false);
  }

  void rotary() {
    if (kind_.rotary == append::Rotary::kNone) {
      if (given_.cos || given_.sin || given_.heads_q != 0)
        throw_bad_input("{} given, and this handle was made with FC_ROTARY_NONE; make one with a rotary embedding",
                        given_.heads_q != 0 ? "heads_q is" : "cos or sin is");
      return;
    }
    params_.rotary_dim = checks_.whole("rotary_dim", given_.rotary_dim, 2, given_.head_dim);
    if (kind_.cache == CacheElement::kInt4 && kind_.rotary == append::Rotary::kHalf && params_.rotary_dim % 4 != 0)
      throw_bad_input("rotary_dim is {} and the caches are of int4; give a multiple of 4: two columns share a byte",
                      params_.rotary_dim);
    if (params_.rotary_dim % 2 != 0) throw_bad_input("rotary_dim is {}; give an even number", params_.rotary_dim);
    params_.angle_rows = checks_.whole("rotary_rows", given_.rotary_rows, 0);
    params_.angle_stride = given_.rotary_stride == 0 ? params_.rotary_dim / 2 : given_.rotary_stride;
    checks_.within("rotary_stride", params_.angle_stride, params_.rotary_dim / 2,
                   OperandChecks::kMostReach / std::max(params_.angle_rows, 1));
    params_.cos = angles("cos", given_.cos);
    params_.sin = angles("sin", given_.sin);
    queries();
  }

  const void* angles(const char* name, const void* at) {
    if (params_.angle_rows == 0) return at;
    const auto bytes = static_cast<std::int64_t>(size_of(static_cast<DType>(kind_.table)));
    checks_.check_address(name, at, bytes);
    checks_.memory(name, at,
                   Footprint({1, 1, params_.angle_rows, params_.rotary_dim / 2, 0, 0, params_.angle_stride}, bytes),
                   false);
    return at;
  }

  void queries() {
    append::Operand& q = params_.q;
    q.heads = checks_.whole("heads_q", given_.heads_q, 0, kMostColumns / params_.k.dim);
    if (q.heads == 0) return;
    q.dim = params_.k.dim;
    const bool packed = given_.cu_seqlens_q;
    params_.rows_q = rows_of("rows_q", given_.rows_q, packed);
    params_.rows_q.boundaries = int32s("cu_seqlens_q", given_.cu_seqlens_q, params_.batch + 1, false);
    params_.q_moves = given_.q_at_length == 0 ? 1 : 0;
    const bool in_place =
        given_.q == given_.q_out && std::memcmp(&given_.q_strides, &given_.q_out_strides, sizeof(fc_strides)) == 0;
    const TensorLayout read = layout_of(q, params_.rows_q, packed, given_.q_strides);
    const TensorLayout written = layout_of(q, params_.rows_q, packed, given_.q_out_strides);
    if (!in_place) add("q", given_.q, read, false);
    add("q_out", given_.q_out, written, true);
    q.from = given_.q, q.to = given_.q_out;
    const auto strides = [&](const fc_strides& s) { return Strides{packed ? 0 : s.batch, s.head, s.row}; };
    q.from_stride = strides(given_.q_strides), q.to_stride = strides(given_.q_out_strides);
  }

  const Context& context_;
  const append::Kind& kind_;
  const fc_append_operands& given_;
  append::AppendParams params_{};
  OperandChecks checks_;
};

}  // namespace

Append::Append(std::shared_ptr<Context> context, const fc_append_kind* given)
    : context_(std::move(context)), kind_(read_kind(given)) {
  if (context_->on_cpu()) return;
  const std::lock_guard lock(context_->planning());
  module_ = context_->load(find_or_compile(append::source_of(kind_), context_->info().limits));
}

void Append::launch(const fc_append_operands* given, void* stream) const {
  const fc_append_operands whole =
      whole_struct(given, fc_append_operands FC_APPEND_OPERANDS_INIT, "fc_append_operands",
                   {offsetof(fc_append_operands, new_descale_k), offsetof(fc_append_operands, saturated)});
  const Reader reader(*context_, kind_, whole);
  if (context_->on_cpu()) {
    if (stream) throw_bad_input("a stream was given, and the CPU has none; give null");
    return append::run_on_cpu(kind_, reader.params());
  }
  std::optional<InsideLibrary> inside;
  std::unique_lock<std::mutex> turn;
  if (std::mutex* mutex = context_->turn()) {
    inside.emplace();  // or a child forked meanwhile could never take its turn
    turn = std::unique_lock(*mutex);
  }
  const std::span<const std::byte> params = std::as_bytes(std::span(&reader.params(), 1));
  const append::Launches launches = append::launches_of(kind_, reader.params());
  for (std::size_t i = 0; i < launches.count; ++i)
    context_->device().launch_on(stream, *module_, launches.all[i], params);
}

}  // namespace flashcore::api
