#pragma once
// What a user writes of a score or a mask, "30 * tanh(s / 30) + slope[h] * (j - i)", as one tree. From it come the
// values of the reference (expression_value.h), the device code (expression_code.h), the decision of a tile
// (expression_range.h), the derivative (expression_derivative.h) and the token of an id. docs/expressions.md has the
// grammar and the rules.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace flashcore {

// kInt: 32 bits, wrapping. kFloat: fp32 on a device and in masks; fp64 where the reference computes a score.
enum class ExpressionType : std::uint8_t { kInt, kFloat, kBool };
// A score gives a number, from s among others. A mask gives a condition, not from s: a hidden pair's score is never
// computed.
enum class ExpressionUse : std::uint8_t { kScore, kMask };

enum class ExpressionVariable : std::uint8_t { kS, kB, kH, kHk, kI, kJ, kSeqlenQ, kSeqlenKv };
inline constexpr std::size_t kExpressionVariables = 8;
inline constexpr std::array<std::string_view, kExpressionVariables> kExpressionVariableNames = {
    "s", "b", "h", "hk", "i", "j", "seqlen_q", "seqlen_kv"};

enum class ExpressionOp : std::uint8_t {
  kWhole,     // an integer literal
  kReal,      // a float literal, inf among them
  kVariable,  // s is a float, the others are ints
  kElement,   // of a tensor; its arguments are the indices
  kToFloat,   // of an int; not written
  kNegate,
  kNot,
  kAbs,
  kExp,
  kExp2,
  kLog,
  kLog2,
  kTanh,
  kSqrt,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,       // of floats
  kFloorDivide,  // of ints, rounded down
  kModulo,       // what kFloorDivide leaves; it has the divisor's sign
  kMin,          // NaN if one of the two is
  kMax,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kAnd,
  kOr,
  kWhere,  // both values are computed
};

inline constexpr int kMaxExpressionRank = 4;

struct ExpressionNode {
  ExpressionOp op = ExpressionOp::kWhole;
  ExpressionType type = ExpressionType::kInt;
  ExpressionVariable variable = ExpressionVariable::kS;  // kVariable
  std::int32_t whole = 0;                                // kWhole
  double real = 0;                                       // kReal
  int tensor = 0;                                        // kElement
  int count = 0;                                         // of arguments
  std::array<int, kMaxExpressionRank> args = {};         // nodes before this one
  int column = 0;                                        // where it is written, from 1
};

// What a tensor holds and how many indices it takes. Ints have 32 bits, floats are fp32, conditions are bytes.
struct ExpressionTensor {
  std::string name;
  ExpressionType element = ExpressionType::kFloat;
  int rank = 1;
  bool operator==(const ExpressionTensor&) const = default;
};

// Equal subtrees are one node, and arguments come before what uses them: everything that reads an expression is a loop
// over the nodes, and no text, however deep, can overflow a stack.
class Expression {
 public:
  // Error kBadInput with the column, what was given and what is allowed. Only `tensors` may be named.
  static Expression parse(std::string_view text, ExpressionUse use, std::span<const ExpressionTensor> tensors = {});

  ExpressionUse use() const { return use_; }
  const std::vector<ExpressionNode>& nodes() const { return nodes_; }
  int root() const { return root_; }  // kFloat in a score, kBool in a mask
  // Those that it names, in the order of the text. ExpressionNode::tensor counts in them.
  const std::vector<ExpressionTensor>& tensors() const { return tensors_; }
  bool uses(ExpressionVariable variable) const;

  // One way of writing it: without blanks and parentheses that change nothing. Parsed, it is the same expression.
  std::string text() const;
  // Twelve hex digits of a hash of text() and of what its tensors hold. File-safe, and the same on every machine.
  std::string token() const;

 private:
  friend class ExpressionBuilder;
  ExpressionUse use_ = ExpressionUse::kScore;
  std::vector<ExpressionNode> nodes_;
  std::vector<ExpressionTensor> tensors_;
  int root_ = 0;
};

// Makes nodes, with the types' rules. Of equal nodes there is one.
class ExpressionBuilder {
 public:
  explicit ExpressionBuilder(ExpressionUse use) { made_.use_ = use; }
  // Begins with all nodes of `from`, which keep their numbers.
  explicit ExpressionBuilder(const Expression& from);

  int whole(std::int32_t value, int column = 0);
  int real(double value, int column = 0);
  int variable(ExpressionVariable variable, int column = 0);
  int element(const ExpressionTensor& tensor, std::span<const int> indices, int column = 0);
  // `word` is how the operation is written, for messages.
  int operation(ExpressionOp op, std::span<const int> args, std::string_view word, int column = 0);

  const ExpressionNode& node(int number) const { return made_.nodes_[static_cast<std::size_t>(number)]; }
  int to_float(int number);
  // Without the nodes that the root does not need.
  Expression finish(int root) &&;
  // Of the text that is parsed: "column 7 of the mask: ".
  [[noreturn]] void fail(int column, const std::string& sentence) const;

 private:
  int add(const ExpressionNode& node);
  // Error unless all of them are numbers; floats, if one of them is or has to be.
  void unify(std::span<int> numbers, bool floats, std::string_view word, int column);
  void require(bool right, int number, std::string_view word, std::string_view wanted, int column) const;

  using Key = std::tuple<ExpressionOp, ExpressionVariable, std::int32_t, std::uint64_t, int, int, std::array<int, 4>>;
  Expression made_;
  std::map<Key, int> known_;
};

// "an int", "a float", "a condition"
std::string_view expression_type_words(ExpressionType type);

}  // namespace flashcore
