#include "core/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/hash.h"

namespace flashcore {

namespace {

using Op = ExpressionOp;
using Type = ExpressionType;

// What is not exact in fp32, and so would be another mask on another device.
bool is_inexact(Op op) { return op >= Op::kExp && op <= Op::kSqrt; }
bool is_comparison(Op op) { return op >= Op::kLess && op <= Op::kNotEqual; }

}  // namespace

std::string_view expression_type_words(Type type) {
  return type == Type::kInt ? "an int" : type == Type::kFloat ? "a float" : "a condition";
}

bool Expression::uses(ExpressionVariable variable) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const ExpressionNode& node) { return node.op == Op::kVariable && node.variable == variable; });
}

std::string Expression::token() const {
  Hasher hasher;
  hasher.add(use_ == ExpressionUse::kScore ? "score" : "mask").add(text());
  for (const ExpressionTensor& tensor : tensors_)
    hasher.add(fmt::format("{} {} {}", tensor.name, static_cast<int>(tensor.element), tensor.rank));
  return hasher.hex().substr(0, 12);
}

ExpressionBuilder::ExpressionBuilder(const Expression& from) {
  made_.use_ = from.use_;
  made_.tensors_ = from.tensors_;
  for (const ExpressionNode& node : from.nodes_) add(node);
  FC_CHECK(made_.nodes_.size() == from.nodes_.size());
}

void ExpressionBuilder::fail(int column, const std::string& sentence) const {
  throw_bad_input("column {} of the {}: {}", column, made_.use_ == ExpressionUse::kScore ? "score" : "mask", sentence);
}

int ExpressionBuilder::add(const ExpressionNode& node) {
  const auto [at, is_new] =
      known_.try_emplace(Key{node.op, node.variable, node.whole, std::bit_cast<std::uint64_t>(node.real), node.tensor,
                             node.count, node.args},
                         static_cast<int>(made_.nodes_.size()));
  if (is_new) made_.nodes_.push_back(node);
  return at->second;
}

int ExpressionBuilder::whole(std::int32_t value, int column) {
  ExpressionNode node;
  node.whole = value;
  node.column = column;
  return add(node);
}

int ExpressionBuilder::real(double value, int column) {
  ExpressionNode node;
  node.op = Op::kReal;
  node.type = Type::kFloat;
  node.real = value;
  node.column = column;
  return add(node);
}

int ExpressionBuilder::variable(ExpressionVariable variable, int column) {
  if (variable == ExpressionVariable::kS && made_.use_ == ExpressionUse::kMask)
    fail(column,
         "a mask cannot ask for the score s, which hidden pairs do not have; it has b, h, hk, i, j, seqlen_q "
         "and seqlen_kv, and a score may say where(s > 0, s, -inf)");
  ExpressionNode node;
  node.op = Op::kVariable;
  node.type = variable == ExpressionVariable::kS ? Type::kFloat : Type::kInt;
  node.variable = variable;
  node.column = column;
  return add(node);
}

int ExpressionBuilder::element(const ExpressionTensor& tensor, std::span<const int> indices, int column) {
  const std::string name = excerpt(tensor.name, 40);
  if (indices.size() != static_cast<std::size_t>(tensor.rank))
    fail(column, fmt::format("'{}' takes {} {}, and was given {}", name, tensor.rank,
                             tensor.rank == 1 ? "index" : "indices", indices.size()));
  ExpressionNode node;
  node.op = Op::kElement;
  node.type = tensor.element;
  node.column = column;
  for (const int index : indices) {
    const ExpressionNode& of = this->node(index);
    if (of.type != Type::kInt)
      // A node's column is where its text stood first, which may be before this.
      fail(std::max(of.column, column),
           fmt::format("an index of '{}' is {}, and has to be an int", name, expression_type_words(of.type)));
    node.args[static_cast<std::size_t>(node.count++)] = index;
  }
  const auto at = std::find_if(made_.tensors_.begin(), made_.tensors_.end(),
                               [&](const ExpressionTensor& known) { return known.name == tensor.name; });
  node.tensor = static_cast<int>(at - made_.tensors_.begin());
  if (at == made_.tensors_.end()) made_.tensors_.push_back(tensor);
  return add(node);
}

int ExpressionBuilder::to_float(int number) {
  const ExpressionNode of = node(number);
  if (of.type == Type::kFloat) return number;
  FC_CHECK(of.type == Type::kInt);
  if (of.op == Op::kWhole) return real(of.whole, of.column);
  ExpressionNode cast;
  cast.op = Op::kToFloat;
  cast.type = Type::kFloat;
  cast.count = 1;
  cast.args[0] = number;
  cast.column = of.column;
  return add(cast);
}

void ExpressionBuilder::require(bool right, int number, std::string_view word, std::string_view wanted,
                                int column) const {
  if (!right)
    fail(column,
         fmt::format("'{}' takes {}, and was given {}", word, wanted, expression_type_words(node(number).type)));
}

void ExpressionBuilder::unify(std::span<int> numbers, bool floats, std::string_view word, int column) {
  for (const int number : numbers) {
    require(node(number).type != Type::kBool, number, word, "numbers (where(c, 1, 0) is the number of a condition)",
            column);
    floats |= node(number).type == Type::kFloat;
  }
  if (!floats) return;
  for (int& number : numbers) number = to_float(number);
}

int ExpressionBuilder::operation(Op op, std::span<const int> args, std::string_view word, int column) {
  if (made_.use_ == ExpressionUse::kMask && is_inexact(op))
    fail(column, fmt::format("'{}' is rounded differently by each device, and a mask has to be the same on all; a mask "
                             "has + - * / // %, min, max, abs, where, comparisons, &&, || and !",
                             word));
  ExpressionNode made;
  made.op = op;
  made.column = column;
  made.count = static_cast<int>(args.size());
  std::copy(args.begin(), args.end(), made.args.begin());
  const std::span<int> given = std::span<int>(made.args).first(args.size());
  switch (op) {
    case Op::kNot:
    case Op::kAnd:
    case Op::kOr:
      for (const int number : given)
        require(node(number).type == Type::kBool, number, word, "conditions (such as i < j)", column);
      made.type = Type::kBool;
      break;
    case Op::kWhere: {
      require(node(given[0]).type == Type::kBool, given[0], word, "a condition first (such as i < j)", column);
      if (node(given[1]).type != Type::kBool || node(given[2]).type != Type::kBool)
        unify(given.subspan(1), false, word, column);
      made.type = node(given[1]).type;
      break;
    }
    case Op::kFloorDivide:
    case Op::kModulo:
      for (const int number : given)
        require(node(number).type == Type::kInt, number, word, op == Op::kModulo ? "ints" : "ints ('/' divides floats)",
                column);
      if (node(given[1]).op == Op::kWhole && node(given[1]).whole == 0)
        fail(column, fmt::format("'{}' divides by 0", word));
      made.type = Type::kInt;
      break;
    default:
      unify(given, is_inexact(op) || op == Op::kDivide, word, column);
      if (op == Op::kDivide && node(given[1]).op == Op::kReal && node(given[1]).real == 0)
        fail(column, "'/' divides by 0");
      made.type = is_comparison(op) ? Type::kBool : node(given[0]).type;
  }
  return add(made);
}

Expression ExpressionBuilder::finish(int root) && {
  if (made_.use_ == ExpressionUse::kScore) {
    if (node(root).type == Type::kBool)
      fail(1, "a score is a number, and this is a condition; where(c, s, -inf) hides what c does not allow");
    root = to_float(root);
  } else if (node(root).type != Type::kBool) {
    fail(1,
         fmt::format("a mask is a condition (such as j <= i), and this is {}", expression_type_words(node(root).type)));
  }
  // Numbered anew from the root, left to right, so that the way it was made leaves no trace: a literal that became a
  // float, a node that a derivative no longer needs.
  Expression kept;
  kept.use_ = made_.use_;
  std::vector<int> place(made_.nodes_.size(), -1), tensor_place(made_.tensors_.size(), -1), pending = {root};
  while (!pending.empty()) {
    const auto at = static_cast<std::size_t>(pending.back());
    ExpressionNode node = made_.nodes_[at];
    const std::span<int> args = std::span<int>(node.args).first(static_cast<std::size_t>(node.count));
    const std::size_t before = pending.size();
    for (std::size_t a = args.size(); a-- > 0;)
      if (place[static_cast<std::size_t>(args[a])] < 0) pending.push_back(args[a]);
    if (pending.size() != before) continue;
    pending.pop_back();
    if (place[at] >= 0) continue;  // it waited twice
    for (int& arg : args) arg = place[static_cast<std::size_t>(arg)];
    if (node.op == Op::kElement) {
      int& to = tensor_place[static_cast<std::size_t>(node.tensor)];
      if (to < 0) {
        to = static_cast<int>(kept.tensors_.size());
        kept.tensors_.push_back(made_.tensors_[static_cast<std::size_t>(node.tensor)]);
      }
      node.tensor = to;
    }
    place[at] = static_cast<int>(kept.nodes_.size());
    kept.nodes_.push_back(node);
  }
  kept.root_ = place[static_cast<std::size_t>(root)];
  return kept;
}

}  // namespace flashcore
