#include "core/expression_value.h"

#include <cmath>

#include "core/error.h"

namespace flashcore {

namespace {

using Op = ExpressionOp;
using Type = ExpressionType;

std::int32_t wrapped(std::int64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }

std::int32_t int_result(Op op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case Op::kNegate: return wrapped(-a);
    case Op::kAbs: return wrapped(a < 0 ? -a : a);
    case Op::kAdd: return wrapped(a + b);
    case Op::kSubtract: return wrapped(a - b);
    case Op::kMultiply: return wrapped(a * b);
    case Op::kFloorDivide: return expression_floor_divide(static_cast<std::int32_t>(a), static_cast<std::int32_t>(b));
    case Op::kModulo: return expression_modulo(static_cast<std::int32_t>(a), static_cast<std::int32_t>(b));
    case Op::kMin: return static_cast<std::int32_t>(a < b ? a : b);
    case Op::kMax: return static_cast<std::int32_t>(a > b ? a : b);
    default: throw_internal("operation {} is none of ints", static_cast<int>(op));
  }
}

template <class Real>
Real float_result(Op op, Real a, Real b) {
  switch (op) {
    case Op::kNegate: return -a;
    case Op::kAbs: return std::abs(a);
    case Op::kExp: return std::exp(a);
    case Op::kExp2: return std::exp2(a);
    case Op::kLog: return std::log(a);
    case Op::kLog2: return std::log2(a);
    case Op::kTanh: return std::tanh(a);
    case Op::kSqrt: return std::sqrt(a);
    case Op::kAdd: return a + b;
    case Op::kSubtract: return a - b;
    case Op::kMultiply: return a * b;
    case Op::kDivide: return a / b;
    case Op::kMin: return a < b || std::isnan(a) ? a : b;
    case Op::kMax: return a > b || std::isnan(a) ? a : b;
    default: throw_internal("operation {} is none of floats", static_cast<int>(op));
  }
}

template <class Number>
bool comparison(Op op, Number a, Number b) {
  switch (op) {
    case Op::kLess: return a < b;
    case Op::kLessEqual: return a <= b;
    case Op::kGreater: return a > b;
    case Op::kGreaterEqual: return a >= b;
    case Op::kEqual: return a == b;
    default: return a != b;
  }
}

}  // namespace

std::int32_t expression_floor_divide(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  const std::int64_t wide = a, quotient = wide / b;
  return wrapped(quotient - (wide % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
}

std::int32_t expression_modulo(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  const std::int64_t left = static_cast<std::int64_t>(a) % b;
  return wrapped(left != 0 && (left < 0) != (b < 0) ? left + b : left);
}

ExpressionEvaluator::ExpressionEvaluator(const Expression& expression, ExpressionElements elements)
    : expression_(expression), elements_(std::move(elements)), values_(expression.nodes().size()) {
  FC_CHECK(elements_ || expression.tensors().empty());
}

template <class Real>
void ExpressionEvaluator::run(const ExpressionPoint& point) {
  const std::int32_t variables[] = {0, point.b, point.h, point.hk, point.i, point.j, point.seqlen_q, point.seqlen_kv};
  for (std::size_t at = 0; at < values_.size(); ++at) {
    const ExpressionNode& node = expression_.nodes()[at];
    const Value& a = values_[static_cast<std::size_t>(node.args[0])];
    const Value& b = values_[static_cast<std::size_t>(node.args[1])];
    Value& value = values_[at];
    switch (node.op) {
      case Op::kWhole: value.whole = node.whole; break;
      case Op::kReal: value.real = static_cast<Real>(node.real); break;
      case Op::kVariable:
        value.real = static_cast<Real>(point.s);
        value.whole = variables[static_cast<std::size_t>(node.variable)];
        break;
      case Op::kElement: {
        std::array<std::int32_t, kMaxExpressionRank> indices{};
        for (std::size_t x = 0; x < static_cast<std::size_t>(node.count); ++x)
          indices[x] = values_[static_cast<std::size_t>(node.args[x])].whole;
        const double element = elements_(node.tensor, std::span(indices).first(static_cast<std::size_t>(node.count)));
        if (node.type == Type::kFloat) value.real = static_cast<Real>(element);
        else if (node.type == Type::kInt) value.whole = static_cast<std::int32_t>(element);
        else value.truth = element != 0;
        break;
      }
      case Op::kToFloat: value.real = static_cast<Real>(a.whole); break;
      case Op::kNot: value.truth = !a.truth; break;
      case Op::kAnd: value.truth = a.truth && b.truth; break;
      case Op::kOr: value.truth = a.truth || b.truth; break;
      case Op::kWhere: value = a.truth ? b : values_[static_cast<std::size_t>(node.args[2])]; break;
      default:
        if (node.type == Type::kBool) {
          const bool floats = expression_.nodes()[static_cast<std::size_t>(node.args[0])].type == Type::kFloat;
          value.truth = floats ? comparison(node.op, a.real, b.real) : comparison(node.op, a.whole, b.whole);
        } else if (node.type == Type::kInt) {
          value.whole = int_result(node.op, a.whole, b.whole);
        } else {
          value.real = float_result<Real>(node.op, static_cast<Real>(a.real), static_cast<Real>(b.real));
        }
    }
  }
}

double ExpressionEvaluator::score(const ExpressionPoint& point) {
  FC_CHECK(expression_.use() == ExpressionUse::kScore);
  run<double>(point);
  return values_[static_cast<std::size_t>(expression_.root())].real;
}

bool ExpressionEvaluator::mask(const ExpressionPoint& point) {
  FC_CHECK(expression_.use() == ExpressionUse::kMask);
  run<float>(point);
  return values_[static_cast<std::size_t>(expression_.root())].truth;
}

}  // namespace flashcore
