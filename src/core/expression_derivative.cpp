#include "core/expression_derivative.h"

#include <numbers>

#include "core/error.h"

namespace flashcore {

namespace {

using Op = ExpressionOp;

// Operations on floats that leave out what changes nothing. Of x * 0 this says 0 also where x is not finite: there the
// true derivative has no s in it.
class Calculus {
 public:
  explicit Calculus(const Expression& score) : builder_(score) {}

  int constant(double value) { return builder_.real(value); }
  bool is(int number, double value) const {
    const ExpressionNode& node = builder_.node(number);
    return node.op == Op::kReal && node.real == value;
  }
  int make(Op op, std::initializer_list<int> args) {
    return builder_.operation(op, std::span<const int>(args.begin(), args.size()), "the derivative");
  }
  int add(int a, int b) { return is(a, 0) ? b : is(b, 0) ? a : make(Op::kAdd, {a, b}); }
  int subtract(int a, int b) { return is(b, 0) ? a : is(a, 0) ? negate(b) : make(Op::kSubtract, {a, b}); }
  int negate(int a) {
    const ExpressionNode& node = builder_.node(a);
    if (node.op == Op::kReal) return constant(node.real == 0 ? 0 : -node.real);
    return node.op == Op::kNegate ? node.args[0] : make(Op::kNegate, {a});
  }
  int multiply(int a, int b) {
    if (is(a, 0) || is(b, 0)) return constant(0);
    return is(a, 1) ? b : is(b, 1) ? a : make(Op::kMultiply, {a, b});
  }
  int divide(int a, int b) { return is(a, 0) || is(b, 1) ? a : make(Op::kDivide, {a, b}); }
  int where(int condition, int a, int b) { return a == b ? a : make(Op::kWhere, {condition, a, b}); }

  int derivative_of(const ExpressionNode& node, int self, const std::vector<int>& of);
  Expression finish(int root) && { return std::move(builder_).finish(root); }

 private:
  ExpressionBuilder builder_;
};

int Calculus::derivative_of(const ExpressionNode& node, int self, const std::vector<int>& of) {
  if (node.type != ExpressionType::kFloat) return constant(0);
  const int x = node.args[0], y = node.args[1];
  const int dx = node.count > 0 ? of[static_cast<std::size_t>(x)] : 0;
  const int dy = node.count > 1 ? of[static_cast<std::size_t>(y)] : 0;
  switch (node.op) {
    case Op::kVariable: return constant(1);  // s alone is a float
    case Op::kNegate: return negate(dx);
    case Op::kAbs: return where(make(Op::kLess, {x, constant(0)}), negate(dx), dx);
    case Op::kExp: return multiply(self, dx);
    case Op::kExp2: return multiply(multiply(constant(std::numbers::ln2), self), dx);
    case Op::kLog: return divide(dx, x);
    case Op::kLog2: return divide(multiply(constant(std::numbers::log2e), dx), x);
    case Op::kTanh: return is(dx, 0) ? dx : multiply(subtract(constant(1), multiply(self, self)), dx);
    case Op::kSqrt: return is(dx, 0) ? dx : divide(multiply(constant(0.5), dx), self);
    case Op::kAdd: return add(dx, dy);
    case Op::kSubtract: return subtract(dx, dy);
    case Op::kMultiply: return add(multiply(dx, y), multiply(x, dy));
    case Op::kDivide: return divide(subtract(dx, multiply(self, dy)), y);
    case Op::kMin: return where(make(Op::kLess, {x, y}), dx, dy);
    case Op::kMax: return where(make(Op::kGreater, {x, y}), dx, dy);
    case Op::kWhere: return where(x, dy, of[static_cast<std::size_t>(node.args[2])]);
    default: return constant(0);  // literals, elements, ints
  }
}

}  // namespace

Expression expression_derivative(const Expression& score) {
  FC_CHECK(score.use() == ExpressionUse::kScore);
  Calculus calculus(score);
  std::vector<int> of;
  for (const ExpressionNode& node : score.nodes())
    of.push_back(calculus.derivative_of(node, static_cast<int>(of.size()), of));
  return std::move(calculus).finish(of[static_cast<std::size_t>(score.root())]);
}

}  // namespace flashcore
