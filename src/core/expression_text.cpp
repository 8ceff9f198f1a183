// How an expression is written: the one canonical text.
#include "core/expression_text.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "core/expression_words.h"

namespace flashcore {

namespace {

// What is still to be written: a node that has to bind at least as strongly as `binding`, or these characters.
struct PendingText {
  int node = -1;
  int binding = 0;
  std::string_view characters = {};
};

std::string literal_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

int binding_of(const ExpressionNode& node) {
  if (node.op == ExpressionOp::kReal && std::signbit(node.real)) return kUnaryBinding;
  return expression_word(node.op).binding;
}

}  // namespace

std::string Expression::text() const { return text_of(*this, root_); }

std::string text_of(const Expression& expression, int part) {
  // Of parsed text this is never reached. A derivative shares nodes, and written out it may be longer than memory.
  constexpr std::size_t kMost = 1 << 20;
  std::string text;
  std::vector<PendingText> pending = {{part, 0, {}}};
  const auto later = [&](int node, int binding) { pending.push_back({node, binding, {}}); };
  const auto later_text = [&](std::string_view characters) { pending.push_back({-1, 0, characters}); };
  while (!pending.empty()) {
    const PendingText now = pending.back();
    pending.pop_back();
    if (now.node < 0) {
      text += now.characters;
      continue;
    }
    if (text.size() > kMost) throw_internal("an expression is longer than {} bytes when it is written out", kMost);
    const ExpressionNode& node = expression.nodes()[static_cast<std::size_t>(now.node)];
    const ExpressionWord& word = expression_word(node.op);
    const int binding = binding_of(node);
    if (binding < now.binding) {
      text += '(';
      later_text(")");
    }
    // The last to be written goes onto the stack first.
    switch (word.form) {
      case ExpressionForm::kOther:
        if (node.op == ExpressionOp::kToFloat) {
          later(node.args[0], now.binding);
        } else if (node.op == ExpressionOp::kWhole) {
          text += fmt::format("{}", node.whole);
        } else if (node.op == ExpressionOp::kReal) {
          text += literal_text(node.real);
        } else if (node.op == ExpressionOp::kVariable) {
          text += kExpressionVariableNames[static_cast<std::size_t>(node.variable)];
        } else {
          text += expression.tensors()[static_cast<std::size_t>(node.tensor)].name + "[";
          later_text("]");
        }
        break;
      case ExpressionForm::kPrefix:
        text += word.word;
        later(node.args[0], binding);
        break;
      case ExpressionForm::kInfix:
        later(node.args[1], binding + 1);
        later_text(" ");
        later_text(word.word);
        later_text(" ");
        later(node.args[0], binding == kComparisonBinding ? binding + 1 : binding);
        break;
      case ExpressionForm::kFunction:
        text += std::string(word.word) + "(";
        later_text(")");
        break;
    }
    if (word.form == ExpressionForm::kFunction || node.op == ExpressionOp::kElement) {
      for (int a = node.count; a-- > 0;) {
        later(node.args[static_cast<std::size_t>(a)], 0);
        if (a > 0) later_text(", ");
      }
    }
  }
  return text;
}

}  // namespace flashcore
