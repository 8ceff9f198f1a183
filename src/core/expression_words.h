#pragma once
// How operations are written: one table for the parser and the printer.

#include <span>
#include <string_view>

#include "core/expression.h"

namespace flashcore {

enum class ExpressionForm : std::uint8_t { kInfix, kPrefix, kFunction, kOther };

// A larger number binds more strongly. Operators of one binding are read from the left; comparisons do not follow one
// another.
inline constexpr int kComparisonBinding = 3;
inline constexpr int kUnaryBinding = 6;
inline constexpr int kPrimaryBinding = 7;

struct ExpressionWord {
  ExpressionOp op;
  ExpressionForm form;
  std::string_view word;
  int binding;
  int count;  // of arguments
};

// In the order of ExpressionOp.
std::span<const ExpressionWord> expression_words();
inline const ExpressionWord& expression_word(ExpressionOp op) {
  return expression_words()[static_cast<std::size_t>(op)];
}

}  // namespace flashcore
