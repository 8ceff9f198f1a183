#pragma once
#include <string>
#include <string_view>

#include "core/expression.h"
#include "core/expression_range.h"

namespace flashcore {

// A function of device code in namespace flashcore, on what kernels/tile/expression.cuh has:
//   FC_DEVICE float NAME(const expression::Variables& at, const expression::Tensor* tensors)      (a mask: bool)
// `tensors` in the order of Expression::tensors(). `box`: what the variables may be, which saves the sign of divisions.
std::string expression_device_code(const Expression& expression, std::string_view name, const ExpressionBox& box);

}  // namespace flashcore
