#include "core/expression_code.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/expression_words.h"

namespace flashcore {

namespace {

using Op = ExpressionOp;
using Type = ExpressionType;

constexpr std::string_view kArguments =
    "[[maybe_unused]] const expression::Variables& at, [[maybe_unused]] const expression::Tensor* tensors";

std::string value_name(int node) { return fmt::format("t{}", node); }

// Nine digits are enough for any fp32, and an 'f' makes it one.
std::string device_literal(double real) {
  if (std::isinf(real)) return real > 0 ? "-ptx::negative_infinity()" : "ptx::negative_infinity()";
  std::string digits = fmt::format("{:.9g}", static_cast<double>(static_cast<float>(real)));
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits + "f";
}

std::string_view device_type(Type type) { return type == Type::kInt ? "int" : type == Type::kFloat ? "float" : "bool"; }

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
    std::string code = fmt::format("expression::{}_element(tensors[{}]", device_type(node.type), node.tensor);
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
  const CodeWriter writer(expression, box);
  std::string code =
      fmt::format("FC_DEVICE {} {}({}) {{\n",
                  device_type(expression.nodes()[static_cast<std::size_t>(expression.root())].type), name, kArguments);
  int number = 0;
  for (const ExpressionNode& node : expression.nodes())
    code += fmt::format("  [[maybe_unused]] const {} {} = {};\n", device_type(node.type), value_name(number++),
                        writer.value_of(node));
  return code + fmt::format("  return {};\n}}\n", value_name(expression.root()));
}

namespace {

// Of what a node depends, as bits.
constexpr unsigned kOnRow = 1, kOnKey = 2, kOnBoth = kOnRow | kOnKey;

class RangeWriter {
 public:
  RangeWriter(const Expression& mask, const ExpressionBox& box) : mask_(mask), writer_(mask, box) {
    for (const ExpressionNode& node : mask.nodes()) {
      unsigned on = node.op != Op::kVariable                  ? 0
                    : node.variable == ExpressionVariable::kI ? kOnRow
                    : node.variable == ExpressionVariable::kJ ? kOnKey
                                                              : 0;
      for (int a = 0; a < node.count; ++a) on |= depends_[arg(node, a)];
      depends_.push_back(on);
    }
    const auto is_asked = [&](int number) {
      const std::size_t at = static_cast<std::size_t>(number);
      const unsigned on = depends_[at];
      if (mask.nodes()[at].type == Type::kFloat || (on != kOnRow && on != kOnKey)) return;
      std::vector<int>& list = on == kOnRow ? of_row_ : of_key_;
      if (std::find(list.begin(), list.end(), number) == list.end()) list.push_back(number);
    };
    for (std::size_t n = 0; n < depends_.size(); ++n) {
      if (depends_[n] != kOnBoth) continue;
      for (int a = 0; a < mask.nodes()[n].count; ++a) is_asked(static_cast<int>(arg(mask.nodes()[n], a)));
    }
    is_asked(mask.root());
  }

  std::string code(std::string_view name) const {
    std::string text = fmt::format("struct {} {{\n", name);
    text += values("of_row", "kOfRow", of_row_, kOnRow) + values("of_key", "kOfKey", of_key_, kOnKey);
    text += fmt::format(
        "  FC_DEVICE static expression::Truth of_block({},\n"
        "      [[maybe_unused]] const expression::Range* rows, [[maybe_unused]] const expression::Range* keys) {{\n",
        kArguments);
    for (std::size_t n = 0; n < depends_.size(); ++n) {
      const ExpressionNode& node = mask_.nodes()[n];
      if (depends_[n] == 0) {
        text += fmt::format("    [[maybe_unused]] const {} {} = {};\n", device_type(node.type),
                            value_name(static_cast<int>(n)), writer_.value_of(node));
        if (node.type != Type::kFloat)
          text += fmt::format("    [[maybe_unused]] const {} {} = expression::{}({});\n", range_type(node), range(n),
                              node.type == Type::kBool ? "truth_of" : "range_of", value_name(static_cast<int>(n)));
      } else if (node.type != Type::kFloat) {
        text += fmt::format("    [[maybe_unused]] const {} {} = {};\n", range_type(node), range(n), range_of(n));
      }
    }
    return text + fmt::format("    return {};\n  }}\n}};\n", range(static_cast<std::size_t>(mask_.root())));
  }

 private:
  static std::size_t arg(const ExpressionNode& node, int a) {
    return static_cast<std::size_t>(node.args[static_cast<std::size_t>(a)]);
  }
  static std::string range(std::size_t number) { return fmt::format("r{}", number); }
  static std::string_view range_type(const ExpressionNode& node) {
    return node.type == Type::kBool ? "expression::Truth" : "expression::Range";
  }

  // What is asked of one row or key, from what it depends on.
  std::string values(std::string_view name, std::string_view count, const std::vector<int>& asked,
                     unsigned allowed) const {
    std::string text =
        fmt::format("  enum : int {{ {} = {} }};\n  FC_DEVICE static void {}({}, [[maybe_unused]] int* values) {{\n",
                    count, asked.size(), name, kArguments);
    if (!asked.empty()) {
      for (std::size_t n = 0; n < depends_.size(); ++n)
        if ((depends_[n] & ~allowed) == 0)
          text += fmt::format("    [[maybe_unused]] const {} {} = {};\n", device_type(mask_.nodes()[n].type),
                              value_name(static_cast<int>(n)), writer_.value_of(mask_.nodes()[n]));
    }
    for (std::size_t a = 0; a < asked.size(); ++a)
      text += fmt::format("    values[{}] = {};\n", a, value_name(asked[a]));
    return text + "  }\n";
  }

  std::string range_of(std::size_t number) const {
    const ExpressionNode& node = mask_.nodes()[number];
    const bool is_bool = node.type == Type::kBool;
    for (const auto& [list, name] : {std::pair(&of_row_, "rows"), std::pair(&of_key_, "keys")}) {
      const auto found = std::find(list->begin(), list->end(), static_cast<int>(number));
      if (found == list->end()) continue;
      const std::string value = fmt::format("{}[{}]", name, found - list->begin());
      return is_bool ? fmt::format("expression::truth_of({})", value) : value;
    }
    const std::string unknown = fmt::format("expression::{}()", is_bool ? "any_truth" : "any_int");
    // What nobody asks for, and elements: only where they lie is known.
    if (depends_[number] != kOnBoth || node.op == Op::kElement) return unknown;
    std::string arguments;
    for (int a = 0; a < node.count; ++a) {
      if (mask_.nodes()[arg(node, a)].type == Type::kFloat) return unknown;
      arguments += (a > 0 ? ", " : "") + range(arg(node, a));
    }
    const char* function = [&] {
      switch (node.op) {
        case Op::kNegate: return "negate";
        case Op::kNot: return "negate";
        case Op::kAdd: return "add";
        case Op::kSubtract: return "subtract";
        case Op::kMultiply: return "multiply";
        case Op::kMin: return "min";
        case Op::kMax: return "max";
        case Op::kAbs: return "abs";
        case Op::kLess: return "less";
        case Op::kLessEqual: return "less_equal";
        case Op::kGreater: return "greater";
        case Op::kGreaterEqual: return "greater_equal";
        case Op::kEqual: return "equal";
        case Op::kNotEqual: return "not_equal";
        case Op::kAnd: return "both";
        case Op::kOr: return "either";
        case Op::kWhere: return "where";
        default: return "";
      }
    }();
    return *function == '\0' ? unknown : fmt::format("expression::{}({})", function, arguments);
  }

  const Expression& mask_;
  CodeWriter writer_;
  std::vector<unsigned> depends_;     // by node
  std::vector<int> of_row_, of_key_;  // nodes whose ranges over rows, or over keys, decide the others
};

}  // namespace

std::string expression_range_code(const Expression& mask, std::string_view name, const ExpressionBox& box) {
  return RangeWriter(mask, box).code(name);
}

}  // namespace flashcore
