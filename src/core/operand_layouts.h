#pragma once
// Where the tensors of one call lie.

#include <cstdint>

#include "core/problem.h"
#include "core/tensor.h"

namespace flashcore {

TensorLayout make_layout(Layout layout, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                         std::int64_t columns);

// The layouts of one problem's operands. lse is fp32 [batch, heads_q, seqlen_q], contiguous.
struct ProblemLayouts {
  TensorLayout q, k, v, o;
  std::int64_t lse_elements = 0;
};
ProblemLayouts make_layouts(const Problem& problem);

}  // namespace flashcore
