// Problem::id, parse and validate: what of a Problem comes from the table of its fields.

#include "core/error.h"
#include "core/expression_builtin.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

constexpr std::int64_t kMostRows = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMostSequences = std::int64_t{1} << 20;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
constexpr double kMinScale = 1e-6, kMaxScale = 1e6;
// Factors are each at most 2^31-1, but three of them can pass 2^63: stop at the limit instead of overflowing.
void check_tensor(std::string_view tensor, std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                  std::int64_t columns) {
  const auto exceeds = [](std::int64_t a, std::int64_t b, std::int64_t limit) { return b != 0 && a > limit / b; };
  if (exceeds(batch, heads, kMostRows) || exceeds(batch * heads, seqlen, kMostRows)) {
    throw_bad_input(
        "{} has batch {} x heads {} x length {} rows; at most {} are allowed: use a smaller batch or length", tensor,
        batch, heads, seqlen, kMostRows);
  }
  if (exceeds(batch * heads * seqlen, columns, kMaxElements)) {
    throw_bad_input("{} has batch {} x heads {} x length {} x head dim {} elements; at most 2^40 are allowed", tensor,
                    batch, heads, seqlen, columns);
  }
}

}  // namespace

std::string Problem::id() const { return print_id(*this); }

Problem Problem::parse(std::string_view id) { return read_id(id); }

void Problem::validate() const {
  check_fields(*this);
  if (heads_q % heads_kv != 0) {
    throw_bad_input("heads_kv is {}, which does not divide heads_q = {}; use a divisor of {} (grouped-query attention)",
                    heads_kv, heads_q, heads_q);
  }
  if (scale && !(*scale >= kMinScale && *scale <= kMaxScale)) {
    throw_bad_input(
        "scale is {}, which is not allowed; use a number from {} to {}, or leave it out for 1/sqrt(head_dim)", *scale,
        kMinScale, kMaxScale);
  }
  if (softcap && !(*softcap >= kMinSoftcap && *softcap <= kMaxSoftcap)) {
    throw_bad_input("softcap is {}, which is not allowed; use a number from {} to {}, or leave it out for none",
                    *softcap, kMinSoftcap, kMaxSoftcap);
  }
  if (!is_8bit() && output_dtype() != dtype)
    throw_bad_input(
        "o_dtype is {} and dtype is {}; leave o_dtype out, or give it the dtype: only q, k and v of 8 bits "
        "may have another one than o",
        to_string(output_dtype()), to_string(dtype));
  if (is_8bit() && output_dtype() == DType::kF32)
    throw_bad_input("o_dtype is fp32 and dtype is {}; use bf16, fp16, e4m3 or e5m2", to_string(dtype));
  if (!may_be_scaled() && input_scaling() != Scaling::kNone)
    throw_bad_input("scaling is {} and dtype is {}; leave scaling out: only operands of 8 bits have scales",
                    to_string(input_scaling()), to_string(dtype));
  if (input_scaling() == Scaling::kToken && ragged() && (is_8bit() || !paged()))
    throw_bad_input(
        "scaling is token and {}; use head or tensor: factors for each row are of dense q, k and v of 8 bits, or of a "
        "quantised cache beside q of 16 or 32 bits, dense or in pages",
        is_8bit() ? fmt::format("a ragged batch has dtype {}", to_string(dtype)) : "the keys of the batch are packed");
  const auto check_factors = [](Scaling by, const char* of, std::int64_t heads, std::int64_t rows, const char* what) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (by == Scaling::kToken && rows > kMost / std::max<std::int64_t>(heads, 1))
      throw_bad_input("scaling is token and {} {} have {} rows each; at most 2^31-1 factors of a {} are allowed", heads,
                      of, rows, what);
  };
  check_factors(q_scaling(), "query heads", heads_q, seqlen_q, "batch entry");
  check_factors(k_scaling(), "kv heads", heads_kv, paged() ? page_size : seqlen_kv, paged() ? "page" : "batch entry");
  if (is_8bit() && has_quantised_cache())
    throw_bad_input(
        "kv_dtype is {} and dtype is {}; leave kv_dtype out: q of 8 bits is multiplied with k and v of its own type",
        to_string(*kv_dtype), to_string(dtype));
  if (has_transposed_v() && (!is_8bit() || ragged()))
    throw_bad_input("v_layout is dn and {}; leave it out: only dense q, k and v of 8 bits may have v transposed",
                    is_8bit() ? "the batch is ragged" : fmt::format("dtype is {}", to_string(dtype)));
  if (amax && !is_8bit())
    throw_bad_input(
        "amax is head and dtype is {}; leave it out: largest magnitudes are written of 8-bit q, k and v only",
        to_string(dtype));
  if (kv_dtype == DType::kInt4 && (head_dim % 2 != 0 || head_dim_v % 2 != 0))
    throw_bad_input("kv_dtype is int4 and head_dim is {} and head_dim_v {}; give even ones: two columns share a byte",
                    head_dim, head_dim_v);
  if (mask.none() && mask.alignment != Alignment::kBottomRight)
    throw_bad_input("the mask is aligned top-left and bounds nothing; give a window or causal, or leave it out");
  if (ragged() && batch > kMostSequences)
    throw_bad_input("the batch is ragged and has {} sequences; at most {} are allowed", batch, kMostSequences);
  check_tensor("q", batch, heads_q, seqlen_q, head_dim);
  if (paged() && !ragged())
    throw_bad_input(
        "page_size is {} and lengths is fixed; a paged problem reads each sequence's length: set lengths to full, or "
        "leave page_size out",
        page_size);
  // How large a pool of pages is has nothing to do with the bound of the lengths.
  if (!paged()) check_tensor("k", batch, heads_kv, seqlen_kv, head_dim);
  if (!paged()) check_tensor("v", batch, heads_kv, seqlen_kv, head_dim_v);
  check_tensor("o", batch, heads_q, seqlen_q, head_dim_v);
  check_expressions(*this);
}

}  // namespace flashcore
