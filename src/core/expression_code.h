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

// What a mask is to a block of keys and some rows, by ranges: a struct NAME in namespace flashcore, on what
// kernels/tile/expression_range.cuh has:
//   kOfRow, kOfKey    how many values it wants of each row, and of each key: what depends on that alone
//   of_row(at, tensors, int* values), of_key(at, tensors, int* values)
//   of_block(at, tensors, const expression::Range* rows, const expression::Range* keys) -> expression::Truth
// from the ranges of those values over all rows and over all keys. i and j of `at` are not read by of_block. Never
// wrong; what compares floats or reads a tensor by both i and j is undecided.
std::string expression_range_code(const Expression& mask, std::string_view name, const ExpressionBox& box);

}  // namespace flashcore
