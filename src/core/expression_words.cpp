#include "core/expression_words.h"

namespace flashcore {

std::span<const ExpressionWord> expression_words() {
  using enum ExpressionOp;
  using enum ExpressionForm;
  static constexpr ExpressionWord kWords[] = {
      {kWhole, kOther, "", kPrimaryBinding, 0},
      {kReal, kOther, "", kPrimaryBinding, 0},
      {kVariable, kOther, "", kPrimaryBinding, 0},
      {kElement, kOther, "", kPrimaryBinding, 0},
      // Not written: its argument's parentheses are its own.
      {kToFloat, kOther, "", kPrimaryBinding, 1},
      {kNegate, kPrefix, "-", kUnaryBinding, 1},
      {kNot, kPrefix, "!", kUnaryBinding, 1},
      {kAbs, kFunction, "abs", kPrimaryBinding, 1},
      {kExp, kFunction, "exp", kPrimaryBinding, 1},
      {kExp2, kFunction, "exp2", kPrimaryBinding, 1},
      {kLog, kFunction, "log", kPrimaryBinding, 1},
      {kLog2, kFunction, "log2", kPrimaryBinding, 1},
      {kTanh, kFunction, "tanh", kPrimaryBinding, 1},
      {kSqrt, kFunction, "sqrt", kPrimaryBinding, 1},
      {kAdd, kInfix, "+", 4, 2},
      {kSubtract, kInfix, "-", 4, 2},
      {kMultiply, kInfix, "*", 5, 2},
      {kDivide, kInfix, "/", 5, 2},
      {kFloorDivide, kInfix, "//", 5, 2},
      {kModulo, kInfix, "%", 5, 2},
      {kMin, kFunction, "min", kPrimaryBinding, 2},
      {kMax, kFunction, "max", kPrimaryBinding, 2},
      {kLess, kInfix, "<", kComparisonBinding, 2},
      {kLessEqual, kInfix, "<=", kComparisonBinding, 2},
      {kGreater, kInfix, ">", kComparisonBinding, 2},
      {kGreaterEqual, kInfix, ">=", kComparisonBinding, 2},
      {kEqual, kInfix, "==", kComparisonBinding, 2},
      {kNotEqual, kInfix, "!=", kComparisonBinding, 2},
      {kAnd, kInfix, "&&", 2, 2},
      {kOr, kInfix, "||", 1, 2},
      {kWhere, kFunction, "where", kPrimaryBinding, 3},
  };
  return kWords;
}

}  // namespace flashcore
