#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/expression.h"
#include "core/expression_words.h"
#include "core/foreign_text.h"

namespace flashcore {

namespace {

// What hostile text may cost. Every recursion of the parser passes through kMaxNesting; the rest bounds time and what
// is printed. The canonical text has no more words than what was parsed, so it stays within the same limits.
constexpr std::size_t kMaxCharacters = 65536, kMaxWords = 1024, kMaxName = 32;
constexpr int kMaxNesting = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// What other languages write between two values.
constexpr std::pair<std::string_view, std::string_view> kOperatorsOfOthers[] = {
    {"=", "'==' compares"},
    {"&", "'&&' joins conditions"},
    {"|", "'||' joins conditions"},
    {"and", "'&&' joins conditions"},
    {"or", "'||' joins conditions"},
    {"^", "x * x is a square, in a score exp2(log2(x) * y) a power of x > 0, and a && !b || !a && b the exclusive or"},
    {"**", "x * x is a square, and in a score exp2(log2(x) * y) a power of x > 0"},
    {"?", "where(c, a, b) chooses"},
    {"if", "where(c, a, b) chooses"},
};

struct Word {
  enum Kind { kName, kWholeNumber, kRealNumber, kSign, kEnd } kind = kEnd;
  std::string_view text;
  int column = 0;
};

class Parser {
 public:
  Parser(std::string_view text, ExpressionUse use, std::span<const ExpressionTensor> tensors)
      : text_(text), tensors_(tensors), builder_(use) {
    split();
  }

  Expression run() {
    if (now().kind == Word::kEnd) builder_.fail(1, "there is no expression");
    const int root = binary(1);
    if (now().kind != Word::kEnd) unexpected("an operator or the end");
    return std::move(builder_).finish(root);
  }

 private:
  const Word& now() const { return words_[at_]; }
  bool is(std::string_view sign) const { return now().kind == Word::kSign && now().text == sign; }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    const std::string given =
        now().kind == Word::kEnd ? "the text ends" : fmt::format("there is '{}'", excerpt(now().text, 40));
    builder_.fail(now().column, fmt::format("{} where {} should be", given, wanted));
  }

  // Before the types of what stands left of it are judged, which it is meant to change.
  void refuse_operators_of_others() const {
    if (now().kind != Word::kSign && now().kind != Word::kName) return;
    for (const auto& [word, advice] : kOperatorsOfOthers)
      if (now().text == word) builder_.fail(now().column, fmt::format("'{}' is no operator here; {}", word, advice));
  }

  void expect(std::string_view sign) {
    if (!is(sign)) unexpected(fmt::format("'{}'", sign));
    ++at_;
  }

  void split() {
    if (text_.size() > kMaxCharacters)
      builder_.fail(static_cast<int>(kMaxCharacters) + 1,
                    fmt::format("the text has {} characters; {} are allowed", text_.size(), kMaxCharacters));
    std::size_t at = 0;
    while (true) {
      while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t' || text_[at] == '\n' || text_[at] == '\r'))
        ++at;
      const int column = static_cast<int>(at) + 1;
      if (words_.size() >= kMaxWords)
        builder_.fail(column, fmt::format("there are more than {} words and signs", kMaxWords));
      if (at == text_.size()) {
        words_.push_back({Word::kEnd, {}, column});
        return;
      }
      const Word::Kind kind = measure(at);
      words_.push_back({kind,
                        text_.substr(static_cast<std::size_t>(column) - 1, at - static_cast<std::size_t>(column) + 1),
                        column});
    }
  }

  // Moves `at` past the word there.
  Word::Kind measure(std::size_t& at) const {
    const auto next = [&](std::size_t ahead = 0) { return at + ahead < text_.size() ? text_[at + ahead] : '\0'; };
    if (begins_name(next())) {
      while (begins_name(next()) || is_digit(next())) ++at;
      return Word::kName;
    }
    if (is_digit(next()) || (next() == '.' && is_digit(next(1)))) {
      bool whole = true;
      while (is_digit(next())) ++at;
      if (next() == '.') {
        whole = false;
        ++at;
        while (is_digit(next())) ++at;
      }
      const bool has_sign = next(1) == '+' || next(1) == '-';
      if ((next() == 'e' || next() == 'E') && is_digit(next(has_sign ? 2 : 1))) {
        whole = false;
        at += has_sign ? 2 : 1;
        while (is_digit(next())) ++at;
      }
      if (begins_name(next()))
        builder_.fail(static_cast<int>(at) + 1,
                      fmt::format("'{}' follows a number; an operator has to be between them", text_.substr(at, 1)));
      return whole ? Word::kWholeNumber : Word::kRealNumber;
    }
    static constexpr std::string_view kSigns[] = {"&&", "||", "==", "!=", "<=", ">=", "//", "**", "+", "-",
                                                  "*",  "/",  "%",  "<",  ">",  "!",  "(",  ")",  "[", "]",
                                                  ",",  "=",  "&",  "|",  "?",  ":",  "^",  "."};
    for (const std::string_view sign : kSigns) {
      if (!text_.substr(at).starts_with(sign)) continue;
      at += sign.size();
      return Word::kSign;
    }
    builder_.fail(static_cast<int>(at) + 1, fmt::format("'{}' has no meaning here", excerpt(text_.substr(at, 1), 40)));
  }

  // Whoever calls itself counts itself.
  struct Nesting {
    Parser& parser;
    explicit Nesting(Parser& of) : parser(of) {
      if (++parser.nesting_ > kMaxNesting)
        parser.builder_.fail(parser.now().column, fmt::format("more than {} levels of nesting", kMaxNesting));
    }
    ~Nesting() { --parser.nesting_; }
  };

  const ExpressionWord* infix() const {
    if (now().kind != Word::kSign) return nullptr;
    for (const ExpressionWord& word : expression_words())
      if (word.form == ExpressionForm::kInfix && word.word == now().text) return &word;
    return nullptr;
  }

  int binary(int binding) {
    int left = unary();
    while (const ExpressionWord* word = infix()) {
      if (word->binding < binding) break;
      const int column = now().column;
      ++at_;
      const int args[] = {left, binary(word->binding + 1)};
      const ExpressionWord* next = infix();
      if (word->binding == kComparisonBinding && next && next->binding == kComparisonBinding)
        builder_.fail(now().column, "a comparison cannot be compared again; write a < b && b < c");
      left = builder_.operation(word->op, args, word->word, column);
    }
    refuse_operators_of_others();
    return left;
  }

  int unary() {
    if (!is("-") && !is("!")) return primary();
    const Nesting nesting(*this);
    const Word sign = now();
    ++at_;
    const int args[] = {unary()};
    return builder_.operation(sign.text == "-" ? ExpressionOp::kNegate : ExpressionOp::kNot, args, sign.text,
                              sign.column);
  }

  int primary() {
    const Word word = now();
    if (word.kind == Word::kWholeNumber || word.kind == Word::kRealNumber) {
      ++at_;
      return number(word);
    }
    if (word.kind == Word::kName) {
      ++at_;
      return named(word);
    }
    if (!is("(")) unexpected("a number, a name or '('");
    const Nesting nesting(*this);
    ++at_;
    const int inside = binary(1);
    expect(")");
    return inside;
  }

  int number(const Word& word) {
    if (word.kind == Word::kWholeNumber) {
      std::int32_t value = 0;
      const auto [end, error] = std::from_chars(word.text.data(), word.text.data() + word.text.size(), value);
      if (error != std::errc())
        builder_.fail(word.column, fmt::format("{} does not fit an int, which ends at 2147483647; {}.0 is a float",
                                               excerpt(word.text, 40), excerpt(word.text, 40)));
      return builder_.whole(value, word.column);
    }
    double value = 0;
    const auto [end, error] = std::from_chars(word.text.data(), word.text.data() + word.text.size(), value);
    // A device has it as fp32.
    if (error != std::errc() || std::isinf(static_cast<float>(value)) || (value != 0 && static_cast<float>(value) == 0))
      builder_.fail(word.column, fmt::format("{} is no fp32 number: those end at 3.4e38, and begin at 1.5e-45",
                                             excerpt(word.text, 40)));
    return builder_.real(value, word.column);
  }

  int named(const Word& word) {
    const std::string name = excerpt(word.text, 40);
    if (word.text.size() > kMaxName)
      builder_.fail(word.column, fmt::format("the name '{}' is longer than {} characters", name, kMaxName));
    const auto* const variable = std::find(kExpressionVariableNames.begin(), kExpressionVariableNames.end(), word.text);
    if (variable != kExpressionVariableNames.end()) {
      if (is("(") || is("[")) builder_.fail(now().column, fmt::format("'{}' is a variable, and takes no index", name));
      return builder_.variable(static_cast<ExpressionVariable>(variable - kExpressionVariableNames.begin()),
                               word.column);
    }
    if (word.text == "inf") return builder_.real(std::numeric_limits<double>::infinity(), word.column);
    for (const ExpressionWord& function : expression_words())
      if (function.form == ExpressionForm::kFunction && function.word == word.text) return call(function, word);
    for (const ExpressionTensor& tensor : tensors_) {
      if (tensor.name != word.text) continue;
      if (!is("["))
        builder_.fail(word.column, fmt::format("'{}' is a tensor and needs its {} in brackets, {}[i]", name,
                                               tensor.rank == 1 ? "index" : "indices", name));
      return builder_.element(tensor, arguments("]"), word.column);
    }
    if (is("(")) {
      std::string known;
      for (const ExpressionWord& function : expression_words())
        if (function.form == ExpressionForm::kFunction)
          known += fmt::format("{}{}", known.empty() ? "" : ", ", function.word);
      builder_.fail(word.column, fmt::format("'{}' is no function; there are {}", name, known));
    }
    std::string known;
    for (const ExpressionTensor& tensor : tensors_) known += fmt::format(", {}", excerpt(tensor.name, 40));
    builder_.fail(word.column, fmt::format("'{}' is no variable and no tensor that was given; there are {}{}", name,
                                           fmt::join(kExpressionVariableNames, ", "), excerpt(known, 400)));
  }

  int call(const ExpressionWord& function, const Word& word) {
    if (!is("(")) unexpected(fmt::format("'(' after {}", function.word));
    const std::vector<int> args = arguments(")");
    if (static_cast<int>(args.size()) != function.count)
      builder_.fail(word.column, fmt::format("'{}' takes {} argument{}, and was given {}", function.word,
                                             function.count, function.count == 1 ? "" : "s", args.size()));
    return builder_.operation(function.op, args, function.word, word.column);
  }

  // From the opening bracket past the closing one.
  std::vector<int> arguments(std::string_view closing) {
    const Nesting nesting(*this);
    ++at_;
    std::vector<int> args;
    while (true) {
      args.push_back(binary(1));
      if (is(closing)) break;
      if (!is(",")) unexpected(fmt::format("',' or '{}'", closing));
      ++at_;
    }
    ++at_;
    return args;
  }

  std::string_view text_;
  std::span<const ExpressionTensor> tensors_;
  ExpressionBuilder builder_;
  std::vector<Word> words_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

// What is given, not what is written.
void check_tensors(std::span<const ExpressionTensor> tensors) {
  std::set<std::string_view> names;
  for (const ExpressionTensor& tensor : tensors) {
    const std::string name = excerpt(tensor.name, 40);
    const bool is_name =
        !tensor.name.empty() && tensor.name.size() <= kMaxName && begins_name(tensor.name[0]) &&
        std::all_of(tensor.name.begin(), tensor.name.end(), [](char c) { return begins_name(c) || is_digit(c); });
    if (!is_name)
      throw_bad_input(
          "'{}' is no name for a tensor of an expression: a letter or '_', then letters, digits and '_', at most {}",
          name, kMaxName);
    const bool taken = tensor.name == "inf" ||
                       std::count(kExpressionVariableNames.begin(), kExpressionVariableNames.end(), tensor.name) ||
                       std::any_of(expression_words().begin(), expression_words().end(),
                                   [&](const ExpressionWord& word) { return word.word == tensor.name; });
    if (taken || !names.insert(tensor.name).second)
      throw_bad_input("a tensor of an expression cannot be called '{}', which is taken; choose another name", name);
    if (tensor.rank < 1 || tensor.rank > kMaxExpressionRank)
      throw_bad_input("the tensor '{}' of an expression takes {} indices; 1 to {} are allowed", name, tensor.rank,
                      kMaxExpressionRank);
  }
}

}  // namespace

Expression Expression::parse(std::string_view text, ExpressionUse use, std::span<const ExpressionTensor> tensors) {
  check_tensors(tensors);
  return Parser(text, use, tensors).run();
}

}  // namespace flashcore
