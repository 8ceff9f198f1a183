#pragma once
// Operands: the tensors of a call, and how they lie in memory. A Problem says nothing of that; what is measured or
// checked is a problem with its operands' layout.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/problem.h"
#include "core/tensor.h"

namespace flashcore {

// How q, k, v and o lie in memory, and the keys of each page of a cache. Kernels take strides; this names the cases
// that suites and the fuzzer try.
enum class Layout {
  kBhsd,  // [batch, heads, seqlen, head_dim], contiguous (PyTorch SDPA)
  kBshd,  // [batch, seqlen, heads, head_dim], contiguous (FlashAttention)
  // Slices of larger tensors, of each operand another one, that all have unused bytes behind each row: q and o
  // [batch, seqlen, heads, head_dim], k [seqlen, batch, heads, head_dim], v [batch, heads, seqlen, head_dim].
  kStrided,
};
std::string_view to_string(Layout layout);  // "bhsd" | "bshd" | "strided"
Layout parse_layout(std::string_view name);

// Of q.
TensorLayout make_layout(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                         DType dtype = DType::kF16);

// A problem and the layout of its operands: an entry of a suite, a fuzz case, what a trial measured. There is no
// default layout, so that none is lost on the way.
struct PlacedProblem : Problem {
  Layout layout = Layout::kBhsd;

  PlacedProblem() = default;
  PlacedProblem(Problem problem, Layout where) : Problem(std::move(problem)), layout(where) {}
  bool operator==(const PlacedProblem&) const = default;

  const Problem& problem() const { return *this; }
  // The problem's with the layout, if that is not bhsd, before the scale: b1_h8_s512_d64_fp16_bshd_scale0.5
  std::string id() const;
  static PlacedProblem parse(std::string_view id);
  // What parse() reads in any process: the id, or JSON where that has only a hash of a score or mask function.
  std::string portable() const;
};

// The layouts of one problem's operands. lse is fp32 [batch, heads_q, seqlen_q], contiguous. Those of a ragged problem
// have one batch entry with the rows of all sequences, one after another, and lse is [heads_q, total_q].
struct ProblemLayouts {
  TensorLayout q, k, v, o;  // v with VLayout::kDn: its rows are columns of values, a multiple of 16 bytes apart
  std::int64_t lse_elements = 0;
  // Rows of q and o and of k and v, over the batch.
  std::int64_t total_q = 0, total_kv = 0;
  // Of a paged problem k and v have a batch entry for each page of the pool, whose rows are the keys of the page. The
  // block table has max_pages columns, and table_stride entries from one sequence's row to the next.
  std::int64_t pages = 0, max_pages = 0, table_stride = 0;
  // Of the tensors that a score or mask function names, along each of their indices, in elements; 0 broadcasts.
  std::array<std::array<std::int64_t, kMaxExpressionRank>, kMaxExpressionTensors> tensor_strides = {};
};
ProblemLayouts make_layouts(const Problem& problem, Layout layout);
ProblemLayouts make_layouts(const PlacedProblem& problem);
// Values in descale_q, descale_k and descale_v: none, one, [batch, heads_kv], or with Scaling::kToken one for each row,
// [batch, heads_q, seqlen_q] and [batch, heads_kv, seqlen_kv] or [pages, heads_kv, page_size]. All are contiguous.
struct DescaleCounts {
  std::int64_t q = 0, k = 0, v = 0;
};
DescaleCounts descale_counts(const Problem& problem, const ProblemLayouts& layouts);
// Of a ragged problem whose tensors have so many rows.
ProblemLayouts make_layouts(const Problem& problem, Layout layout, SequenceLengths total);
// Of a paged problem with so many rows of q, such a pool and such a block table.
ProblemLayouts make_paged_layouts(const Problem& problem, Layout layout, std::int64_t total_q, std::int64_t pages,
                                  std::int64_t max_pages, std::int64_t table_stride);

}  // namespace flashcore
