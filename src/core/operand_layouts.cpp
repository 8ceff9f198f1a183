#include "core/operand_layouts.h"

namespace flashcore {
namespace {

constexpr std::int64_t kStridedGap = 8;

}  // namespace

TensorLayout make_layout(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                         std::int64_t columns) {
  TensorLayout t{batch, heads, rows, columns, 0, 0, 0};
  if (layout == Layout::kBhsd) {
    t.stride_row = columns;
    t.stride_head = rows * columns;
    t.stride_batch = heads * rows * columns;
    return t;
  }
  t.stride_head = columns + (layout == Layout::kStrided ? kStridedGap : 0);
  t.stride_row = heads * t.stride_head;
  t.stride_batch = rows * t.stride_row;
  return t;
}

ProblemLayouts make_layouts(const Problem& p) {
  ProblemLayouts layouts;
  layouts.q = make_layout(p.layout, p.batch, p.heads_q, p.seqlen_q, p.head_dim);
  layouts.k = make_layout(p.layout, p.batch, p.heads_kv, p.seqlen_kv, p.head_dim);
  layouts.v = make_layout(p.layout, p.batch, p.heads_kv, p.seqlen_kv, p.head_dim_v);
  layouts.o = make_layout(p.layout, p.batch, p.heads_q, p.seqlen_q, p.head_dim_v);
  layouts.lse_elements = p.batch * p.heads_q * p.seqlen_q;
  return layouts;
}

}  // namespace flashcore
