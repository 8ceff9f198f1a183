#pragma once
#include "core/expression.h"

namespace flashcore {

// d score / d s, simplified. Where the score has a corner it is the derivative of one side: of max(a, b) and min(a, b)
// at a = b that of b, of abs(x) at 0 that of x; conditions count as constant. It shares nodes, and what text() would
// write of it may be long.
Expression expression_derivative(const Expression& score);

}  // namespace flashcore
