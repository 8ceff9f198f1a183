#include "core/operands.h"

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/paged.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

// Behind the rows of q, in Layout::kStrided: what kernels with 16-byte copies and tensor maps need of every stride, and
// no more. The other operands have a multiple of it.
constexpr std::int64_t kStridedGapBits = 16 * 8;
// What the columns of a transposed v are a multiple of apart, as the strides of a tensor map are.
constexpr std::int64_t kColumnAlignment = 16;
constexpr std::int64_t kGapsOfK = 2, kGapsOfV = 3, kGapsOfO = 5;

}  // namespace

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::kBhsd: return "bhsd";
    case Layout::kBshd: return "bshd";
    case Layout::kStrided: return "strided";
  }
  throw_internal("unknown layout {}", static_cast<int>(layout));
}

Layout parse_layout(std::string_view name) {
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
    if (name == to_string(layout)) return layout;
  }
  throw_bad_input("layout '{}' is not known; use bhsd, bshd or strided", excerpt(name));
}

std::string PlacedProblem::id() const {
  return print_id(*this, layout == Layout::kBhsd ? "" : fmt::format("_{}", to_string(layout)));
}

PlacedProblem PlacedProblem::parse(std::string_view id) {
  Layout layout = Layout::kBhsd;
  Problem problem = read_id(id, [&](IdReader& reader) {
    for (const Layout named : {Layout::kBshd, Layout::kStrided})
      if (layout == Layout::kBhsd && reader.word(to_string(named))) layout = named;
  });
  return {std::move(problem), layout};
}

std::string PlacedProblem::portable() const {
  if (!has_expression()) return id();
  return problem_text(PlacedProblem(without_expressions(), layout).id(), *this);
}

namespace {

TensorLayout heads_first(TensorLayout t, std::int64_t gap) {
  t.stride_row = t.columns + gap;
  t.stride_head = t.rows * t.stride_row;
  t.stride_batch = t.heads * t.stride_head;
  return t;
}

TensorLayout rows_first(TensorLayout t, std::int64_t gap) {
  t.stride_head = t.columns + gap;
  t.stride_row = t.heads * t.stride_head;
  t.stride_batch = t.rows * t.stride_row;
  return t;
}

TensorLayout batch_within_rows(TensorLayout t, std::int64_t gap) {
  t.stride_head = t.columns + gap;
  t.stride_batch = t.heads * t.stride_head;
  t.stride_row = t.batch * t.stride_batch;
  return t;
}

TensorLayout layout_of_k(Layout layout, const TensorLayout& sizes, DType dtype) {
  if (layout == Layout::kStrided) return batch_within_rows(sizes, kGapsOfK * kStridedGapBits / bits_of(dtype));
  return make_layout(layout, sizes.batch, sizes.heads, sizes.rows, sizes.columns, dtype);
}

TensorLayout layout_of_v(Layout layout, const TensorLayout& sizes, DType dtype) {
  if (layout == Layout::kStrided) return heads_first(sizes, kGapsOfV * kStridedGapBits / bits_of(dtype));
  return make_layout(layout, sizes.batch, sizes.heads, sizes.rows, sizes.columns, dtype);
}

// Of VLayout::kDn: a row is a column of values, of one byte each.
TensorLayout layout_of_transposed_v(Layout layout, const TensorLayout& sizes) {
  std::int64_t gap = (kColumnAlignment - sizes.columns % kColumnAlignment) % kColumnAlignment;
  if (layout == Layout::kStrided) gap += kGapsOfV * kStridedGapBits / 8;
  return layout == Layout::kBshd ? rows_first(sizes, gap) : heads_first(sizes, gap);
}

TensorLayout layout_of_o(Layout layout, const TensorLayout& sizes, DType dtype) {
  if (layout == Layout::kStrided) return rows_first(sizes, kGapsOfO * kStridedGapBits / bits_of(dtype));
  return make_layout(layout, sizes.batch, sizes.heads, sizes.rows, sizes.columns, dtype);
}

}  // namespace

TensorLayout make_layout(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                         DType dtype) {
  const std::int64_t gap = layout == Layout::kStrided ? kStridedGapBits / bits_of(dtype) : 0;
  return layout == Layout::kBhsd ? heads_first({batch, heads, rows, columns, 0, 0, 0}, 0)
                                 : rows_first({batch, heads, rows, columns, 0, 0, 0}, gap);
}

namespace {

ProblemLayouts lay_out(const Problem& p, Layout layout, std::int64_t batch, std::int64_t rows, std::int64_t keys) {
  ProblemLayouts layouts;
  layouts.q = make_layout(layout, batch, p.heads_q, rows, p.head_dim, p.dtype);
  layouts.k = layout_of_k(layout, {batch, p.heads_kv, keys, p.head_dim, 0, 0, 0}, p.cache_dtype());
  layouts.v = p.has_transposed_v()
                  ? layout_of_transposed_v(layout, {batch, p.heads_kv, p.head_dim_v, keys, 0, 0, 0})
                  : layout_of_v(layout, {batch, p.heads_kv, keys, p.head_dim_v, 0, 0, 0}, p.cache_dtype());
  layouts.o = layout_of_o(layout, {batch, p.heads_q, rows, p.head_dim_v, 0, 0, 0}, p.output_dtype());
  layouts.lse_elements = batch * p.heads_q * rows;
  layouts.total_q = batch * rows, layouts.total_kv = batch * keys;
  if (p.has_expression()) {
    const std::vector<ExpressionShape> shapes = tensor_shapes(p);
    for (std::size_t t = 0; t < shapes.size(); ++t) {
      std::int64_t stride = 1;
      for (auto x = static_cast<std::size_t>(shapes[t].count); x-- > 0; stride *= shapes[t].sizes[x])
        layouts.tensor_strides[t][x] = stride;
    }
  }
  return layouts;
}

}  // namespace

ProblemLayouts make_layouts(const Problem& p, Layout layout) {
  if (p.paged()) {
    const std::int64_t columns = table_columns(p);
    // A table that is a part of a larger one, too.
    const std::int64_t stride = layout == Layout::kStrided ? columns + 3 : columns;
    return make_paged_layouts(p, layout, p.total_lengths().q, pool_pages(p), columns, stride);
  }
  if (p.ragged()) return make_layouts(p, layout, p.total_lengths());
  return lay_out(p, layout, p.batch, p.seqlen_q, p.seqlen_kv);
}

ProblemLayouts make_layouts(const Problem& p, Layout layout, SequenceLengths total) {
  FC_CHECK(p.ragged() && !p.paged());
  return lay_out(p, layout, 1, total.q, total.kv);
}

ProblemLayouts make_paged_layouts(const Problem& p, Layout layout, std::int64_t total_q, std::int64_t pages,
                                  std::int64_t max_pages, std::int64_t table_stride) {
  FC_CHECK(p.paged());
  ProblemLayouts layouts = lay_out(p, layout, 1, total_q, 0);
  layouts.k = layout_of_k(layout, {pages, p.heads_kv, p.page_size, p.head_dim, 0, 0, 0}, p.cache_dtype());
  layouts.v = layout_of_v(layout, {pages, p.heads_kv, p.page_size, p.head_dim_v, 0, 0, 0}, p.cache_dtype());
  layouts.pages = pages, layouts.max_pages = max_pages, layouts.table_stride = table_stride;
  return layouts;
}

DescaleCounts descale_counts(const Problem& problem, const ProblemLayouts& layouts) {
  const auto count = [&](Scaling scaling, const TensorLayout& rows) -> std::int64_t {
    switch (scaling) {
      case Scaling::kNone: return 0;
      case Scaling::kTensor: return 1;
      case Scaling::kHead: return problem.batch * problem.heads_kv;
      case Scaling::kToken: return rows.batch * rows.heads * rows.rows;
    }
    throw_internal("unknown scaling {}", static_cast<int>(scaling));
  };
  // Rows of v are keys, as those of k, but where v lies transposed.
  return {count(problem.q_scaling(), layouts.q), count(problem.k_scaling(), layouts.k),
          count(problem.v_scaling(), layouts.k)};
}

ProblemLayouts make_layouts(const PlacedProblem& problem) { return make_layouts(problem, problem.layout); }

}  // namespace flashcore
