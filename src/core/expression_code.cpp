#include "core/expression_code.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "core/expression_words.h"

namespace flashcore {

namespace {

using Op = ExpressionOp;
using Type = ExpressionType;

std::string value_name(int node) { return fmt::format("t{}", node); }

// Nine digits are enough for any fp32, and an 'f' makes it one.
std::string device_literal(double real) {
  if (std::isinf(real)) return real > 0 ? "-ptx::negative_infinity()" : "ptx::negative_infinity()";
  std::string digits = fmt::format("{:.9g}", static_cast<double>(static_cast<float>(real)));
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits + "f";
}

// Whether x / this and x * (1 / this) differ by rounding only.
bool has_reciprocal(const ExpressionNode& node) {
  const double size = std::abs(static_cast<double>(static_cast<float>(node.real)));
  return node.op == Op::kReal && size > 0x1p-100 && size < 0x1p100;
}

class CodeWriter {
 public:
  CodeWriter(const Expression& expression, const ExpressionBox& box)
      : expression_(expression), ranges_(int_ranges(expression, box)) {}

  std::string value_of(const ExpressionNode& node) const {
    const std::string a = value_name(node.args[0]), b = value_name(node.args[1]);
    switch (node.op) {
      case Op::kWhole: return node.whole == INT32_MIN ? "-2147483647 - 1" : fmt::format("{}", node.whole);
      case Op::kReal: return device_literal(node.real);
      case Op::kVariable:
        return fmt::format("at.{}", kExpressionVariableNames[static_cast<std::size_t>(node.variable)]);
      case Op::kElement: return element(node);
      case Op::kToFloat: return fmt::format("static_cast<float>({})", a);
      case Op::kNot: return "!" + a;
      // Of bools without side effects, and without a jump.
      case Op::kAnd: return a + " & " + b;
      case Op::kOr: return a + " | " + b;
      case Op::kWhere: return fmt::format("{} ? {} : {}", a, b, value_name(node.args[2]));
      default: break;
    }
    if (node.type == Type::kBool) return fmt::format("{} {} {}", a, expression_word(node.op).word, b);
    return node.type == Type::kInt ? int_operation(node, a, b) : float_operation(node, a, b);
  }

 private:
  const ExpressionNode& node_at(int number) const { return expression_.nodes()[static_cast<std::size_t>(number)]; }

  std::string element(const ExpressionNode& node) const {
    const std::string_view type = node.type == Type::kFloat ? "float" : node.type == Type::kInt ? "int" : "bool";
    std::string code = fmt::format("expression::{}_element(tensors[{}]", type, node.tensor);
    for (int x = 0; x < node.count; ++x) code += ", " + value_name(node.args[static_cast<std::size_t>(x)]);
    return code + ")";
  }

  std::string int_operation(const ExpressionNode& node, const std::string& a, const std::string& b) const {
    switch (node.op) {
      case Op::kNegate: return fmt::format("expression::subtract(0, {})", a);
      case Op::kAbs: return fmt::format("{} < 0 ? expression::subtract(0, {}) : {}", a, a, a);
      case Op::kAdd: return fmt::format("expression::add({}, {})", a, b);
      case Op::kSubtract: return fmt::format("expression::subtract({}, {})", a, b);
      case Op::kMultiply: return fmt::format("expression::multiply({}, {})", a, b);
      case Op::kMin: return fmt::format("{} < {} ? {} : {}", a, b, a, b);
      case Op::kMax: return fmt::format("{} > {} ? {} : {}", a, b, a, b);
      default: break;
    }
    // C++ rounds towards 0, which is down where nothing is negative.
    const bool simple = ranges_[static_cast<std::size_t>(node.args[0])].low >= 0 &&
                        ranges_[static_cast<std::size_t>(node.args[1])].low > 0;
    if (node.op == Op::kModulo) return simple ? a + " % " + b : fmt::format("expression::modulo({}, {})", a, b);
    return simple ? a + " / " + b : fmt::format("expression::floor_divide({}, {})", a, b);
  }

  std::string float_operation(const ExpressionNode& node, const std::string& a, const std::string& b) const {
    // The compiler may make one fma of a product and a sum, which rounds once: a mask is the same everywhere.
    const bool exact = expression_.use() == ExpressionUse::kMask;
    switch (node.op) {
      case Op::kNegate: return "-" + a;
      case Op::kAdd: return exact ? fmt::format("ptx::fma({}, 1.0f, {})", a, b) : a + " + " + b;
      case Op::kSubtract: return exact ? fmt::format("ptx::fma({}, 1.0f, -{})", a, b) : a + " - " + b;
      case Op::kMultiply: return exact ? fmt::format("ptx::fma({}, {}, -0.0f)", a, b) : a + " * " + b;
      case Op::kDivide:
        if (!exact && has_reciprocal(node_at(node.args[1])))
          return fmt::format("{} * {}", a, device_literal(1 / node_at(node.args[1]).real));
        return a + " / " + b;
      default: break;
    }
    const std::string name = fmt::format("expression::{}", expression_word(node.op).word);
    return node.count == 1 ? fmt::format("{}({})", name, a) : fmt::format("{}({}, {})", name, a, b);
  }

  const Expression& expression_;
  std::vector<ExpressionIntRange> ranges_;
};

}  // namespace

std::string expression_device_code(const Expression& expression, std::string_view name, const ExpressionBox& box) {
  const auto word = [](Type type) { return type == Type::kInt ? "int" : type == Type::kFloat ? "float" : "bool"; };
  const CodeWriter writer(expression, box);
  std::string code = fmt::format(
      "FC_DEVICE {} {}([[maybe_unused]] const expression::Variables& at,\n"
      "    [[maybe_unused]] const expression::Tensor* tensors) {{\n",
      word(expression.nodes()[static_cast<std::size_t>(expression.root())].type), name);
  int number = 0;
  for (const ExpressionNode& node : expression.nodes())
    code += fmt::format("  [[maybe_unused]] const {} {} = {};\n", word(node.type), value_name(number++),
                        writer.value_of(node));
  return code + fmt::format("  return {};\n}}\n", value_name(expression.root()));
}

}  // namespace flashcore
