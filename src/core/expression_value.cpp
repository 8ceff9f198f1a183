#include "core/expression_value.h"

#include <algorithm>
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
  for (std::size_t at = 0; at < values_.size(); ++at) {
    const ExpressionNode& node = expression.nodes()[at];
    values_[at].varies = node.op == Op::kVariable &&
                         (node.variable == ExpressionVariable::kS || node.variable == ExpressionVariable::kJ);
    for (int a = 0; a < node.count; ++a)
      values_[at].varies |= values_[static_cast<std::size_t>(node.args[static_cast<std::size_t>(a)])].varies;
  }
}

template <class Real>
void ExpressionEvaluator::run_node(const ExpressionNode& node, Values& to, std::size_t lanes) {
  const auto arg = [&](int a) -> const Values& {
    return values_[static_cast<std::size_t>(node.args[static_cast<std::size_t>(a)])];
  };
  const Values &a = arg(0), &b = arg(1), &c = arg(2);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t x = a.at(lane), y = b.at(lane), z = c.at(lane);
    switch (node.op) {
      case Op::kWhole: to.whole[lane] = node.whole; break;
      case Op::kReal: to.real[lane] = static_cast<Real>(node.real); break;
      case Op::kVariable: break;  // run() has them
      case Op::kElement: {
        std::array<std::int32_t, kMaxExpressionRank> indices{};
        for (int n = 0; n < node.count; ++n) indices[static_cast<std::size_t>(n)] = arg(n).whole[arg(n).at(lane)];
        const double element = elements_(node.tensor, std::span(indices).first(static_cast<std::size_t>(node.count)));
        if (node.type == Type::kFloat) to.real[lane] = static_cast<Real>(element);
        else if (node.type == Type::kInt) to.whole[lane] = static_cast<std::int32_t>(element);
        else to.truth[lane] = element != 0;
        break;
      }
      case Op::kToFloat: to.real[lane] = static_cast<Real>(a.whole[x]); break;
      case Op::kNot: to.truth[lane] = !a.truth[x]; break;
      case Op::kAnd: to.truth[lane] = a.truth[x] && b.truth[y]; break;
      case Op::kOr: to.truth[lane] = a.truth[x] || b.truth[y]; break;
      case Op::kWhere:
        if (node.type == Type::kFloat) to.real[lane] = a.truth[x] ? b.real[y] : c.real[z];
        else if (node.type == Type::kInt) to.whole[lane] = a.truth[x] ? b.whole[y] : c.whole[z];
        else to.truth[lane] = a.truth[x] ? b.truth[y] : c.truth[z];
        break;
      default:
        if (node.type == Type::kBool) {
          const bool floats = expression_.nodes()[static_cast<std::size_t>(node.args[0])].type == Type::kFloat;
          to.truth[lane] =
              floats ? comparison(node.op, a.real[x], b.real[y]) : comparison(node.op, a.whole[x], b.whole[y]);
        } else if (node.type == Type::kInt) {
          to.whole[lane] = int_result(node.op, a.whole[x], b.whole[y]);
        } else {
          to.real[lane] = float_result<Real>(node.op, static_cast<Real>(a.real[x]), static_cast<Real>(b.real[y]));
        }
    }
  }
}

template <class Real>
void ExpressionEvaluator::run(const ExpressionPoint& point, std::size_t lanes, const double* s) {
  const std::int32_t variables[] = {0, point.b, point.h, point.hk, point.i, point.j, point.seqlen_q, point.seqlen_kv};
  for (std::size_t at = 0; at < values_.size(); ++at) {
    const ExpressionNode& node = expression_.nodes()[at];
    Values& to = values_[at];
    if (node.op != Op::kVariable) {
      run_node<Real>(node, to, to.varies ? lanes : 1);
    } else if (node.variable == ExpressionVariable::kS) {
      for (std::size_t lane = 0; lane < lanes; ++lane) to.real[lane] = static_cast<Real>(s[lane]);
    } else {
      for (std::size_t lane = 0; lane < (to.varies ? lanes : 1); ++lane)
        to.whole[lane] = variables[static_cast<std::size_t>(node.variable)] + static_cast<std::int32_t>(lane);
    }
  }
}

void ExpressionEvaluator::run_score(const ExpressionPoint& point, std::size_t lanes, const double* s) {
  run<double>(point, lanes, s);
}

double ExpressionEvaluator::score(const ExpressionPoint& point) {
  double s = point.s;
  scores(point, {&s, 1});
  return s;
}

bool ExpressionEvaluator::mask(const ExpressionPoint& point) {
  std::uint8_t visible = 0;
  masks(point, {&visible, 1});
  return visible != 0;
}

void ExpressionEvaluator::scores(const ExpressionPoint& row, std::span<double> s) {
  FC_CHECK(expression_.use() == ExpressionUse::kScore);
  const Values& root = values_[static_cast<std::size_t>(expression_.root())];
  ExpressionPoint from = row;
  for (std::size_t done = 0; done < s.size(); done += kLanes, from.j += static_cast<std::int32_t>(kLanes)) {
    const std::size_t lanes = std::min(kLanes, s.size() - done);
    run<double>(from, lanes, s.data() + done);
    for (std::size_t lane = 0; lane < lanes; ++lane) s[done + lane] = root.real[root.at(lane)];
  }
}

void ExpressionEvaluator::masks(const ExpressionPoint& row, std::span<std::uint8_t> visible) {
  FC_CHECK(expression_.use() == ExpressionUse::kMask);
  const Values& root = values_[static_cast<std::size_t>(expression_.root())];
  ExpressionPoint from = row;
  for (std::size_t done = 0; done < visible.size(); done += kLanes, from.j += static_cast<std::int32_t>(kLanes)) {
    const std::size_t lanes = std::min(kLanes, visible.size() - done);
    run<float>(from, lanes, nullptr);
    for (std::size_t lane = 0; lane < lanes; ++lane) visible[done + lane] = root.truth[root.at(lane)] ? 1 : 0;
  }
}

}  // namespace flashcore
