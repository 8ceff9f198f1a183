#include "core/operands.h"

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/paged.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

// What kernels with 16-byte copies and tensor maps need of every stride, and no more.
constexpr std::int64_t kStridedGapBytes = 16;

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

TensorLayout make_layout(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                         std::int64_t element_bytes) {
  TensorLayout t{batch, heads, rows, columns, 0, 0, 0};
  if (layout == Layout::kBhsd) {
    t.stride_row = columns;
    t.stride_head = rows * columns;
    t.stride_batch = heads * rows * columns;
    return t;
  }
  t.stride_head = columns + (layout == Layout::kStrided ? kStridedGapBytes / element_bytes : 0);
  t.stride_row = heads * t.stride_head;
  t.stride_batch = rows * t.stride_row;
  return t;
}

namespace {

ProblemLayouts lay_out(const Problem& p, Layout layout, std::int64_t batch, std::int64_t rows, std::int64_t keys) {
  ProblemLayouts layouts;
  const auto bytes = static_cast<std::int64_t>(size_of(p.dtype)),
             kv_bytes = static_cast<std::int64_t>(size_of(p.cache_dtype())),
             o_bytes = static_cast<std::int64_t>(size_of(p.output_dtype()));
  layouts.q = make_layout(layout, batch, p.heads_q, rows, p.head_dim, bytes);
  layouts.k = make_layout(layout, batch, p.heads_kv, keys, p.head_dim, kv_bytes);
  layouts.v = make_layout(layout, batch, p.heads_kv, keys, p.head_dim_v, kv_bytes);
  layouts.o = make_layout(layout, batch, p.heads_q, rows, p.head_dim_v, o_bytes);
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
  const auto bytes = static_cast<std::int64_t>(size_of(p.cache_dtype()));
  layouts.k = make_layout(layout, pages, p.heads_kv, p.page_size, p.head_dim, bytes);
  layouts.v = make_layout(layout, pages, p.heads_kv, p.page_size, p.head_dim_v, bytes);
  layouts.pages = pages, layouts.max_pages = max_pages, layouts.table_stride = table_stride;
  return layouts;
}

std::int64_t descale_count(const Problem& problem, const ProblemLayouts& layouts) {
  if (problem.input_scaling() != Scaling::kToken) return problem.descale_count();
  return layouts.k.batch * layouts.k.heads * layouts.k.rows;
}

ProblemLayouts make_layouts(const PlacedProblem& problem) { return make_layouts(problem, problem.layout); }

}  // namespace flashcore
