#pragma once
// Which divisions of floats may be by zero, judged before any value is known. Those of ints, which have no infinity,
// are check_expression's to judge (expression_range.h), by the range of the divisor alone.

#include "core/expression_range.h"

namespace flashcore {

// Error kBadInput with the column where a divisor of '/' may be zero at some pair of the box. One that depends on s or
// on a tensor's elements is not judged, nor one that cannot be bounded. A division counts only where its value does: of
// where(x == 0, 0, 1 / x), and of x != 0 && 1 / x < 2, the pairs with x = 0 do not.
void check_divisions(const Expression& expression, const ExpressionBox& box);

}  // namespace flashcore
