#pragma once
// Which divisions of floats may be by zero, judged before any value is known. Those of ints, which have no infinity,
// are check_expression's to judge (expression_range.h), by the range of the divisor alone.

#include <cstdint>
#include <limits>

#include "core/expression_range.h"

namespace flashcore {

// Of which pairs, by j - i: what a causal mask or a window of fixed lengths hides is nobody's division.
struct VisibleKeys {
  std::int64_t first = std::numeric_limits<std::int32_t>::min(), last = std::numeric_limits<std::int32_t>::max();
};

// Error kBadInput with the column where a divisor of '/' may be zero at some pair of the box. One that depends on s or
// on a tensor's elements is not judged, nor one that cannot be bounded. A division counts only where its value does: of
// where(x == 0, 0, 1 / x), and of x != 0 && 1 / x < 2, the pairs with x = 0 do not.
void check_divisions(const Expression& expression, const ExpressionBox& box, const VisibleKeys& visible = {});

}  // namespace flashcore
