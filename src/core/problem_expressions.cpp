#include "core/problem_expressions.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/expression_division.h"
#include "core/expression_text.h"
#include "core/foreign_text.h"
#include "core/json_text.h"

namespace flashcore {
namespace {

constexpr std::pair<std::string_view, ExpressionType> kElementWords[] = {
    {"float", ExpressionType::kFloat}, {"int", ExpressionType::kInt}, {"bool", ExpressionType::kBool}};

std::string_view word_of(ExpressionUse use) { return use == ExpressionUse::kScore ? "score" : "mask"; }
const std::string& text_of_use(const Problem& problem, ExpressionUse use) {
  return use == ExpressionUse::kScore ? problem.score_text : problem.mask_text;
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n\r") + 1 - first);
}

ExpressionTensor parse_tensor(std::string_view part) {
  const auto refuse = [&] {
    throw_bad_input(
        "tensors: '{}' is no name with what it holds and its number of indices; write it as slope: float[1], with "
        "float, int or bool and 1 to {} indices",
        excerpt(part, 80), kMaxExpressionRank);
  };
  const std::size_t colon = part.find(':'), open = part.find('[');
  if (colon == std::string_view::npos || open == std::string_view::npos || open < colon || !part.ends_with(']'))
    refuse();
  const std::string_view word = without_blanks(part.substr(colon + 1, open - colon - 1));
  const auto* const element =
      std::find_if(std::begin(kElementWords), std::end(kElementWords), [&](const auto& e) { return e.first == word; });
  const auto rank = parse_whole(part.substr(open + 1, part.size() - open - 2));
  if (element == std::end(kElementWords) || !rank || *rank < 1 || *rank > kMaxExpressionRank) refuse();
  return {std::string(without_blanks(part.substr(0, colon))), element->second, static_cast<int>(*rank)};
}

// Those that the two name, the score's first. Error for others.
std::vector<ExpressionTensor> named_tensors(const Problem& problem, std::span<const ExpressionTensor> declared) {
  std::vector<ExpressionTensor> named;
  for (const ExpressionUse use : {ExpressionUse::kScore, ExpressionUse::kMask}) {
    if (text_of_use(problem, use).empty()) continue;
    const Expression expression = Expression::parse(text_of_use(problem, use), use, declared);
    for (const ExpressionTensor& tensor : expression.tensors())
      if (std::find(named.begin(), named.end(), tensor) == named.end()) named.push_back(tensor);
  }
  for (const ExpressionTensor& tensor : declared)
    if (std::find(named.begin(), named.end(), tensor) == named.end())
      throw_bad_input("the tensor '{}' is given, and neither the score nor the mask names it; leave it out",
                      excerpt(tensor.name, 40));
  if (named.size() > kMaxExpressionTensors)
    throw_bad_input("score and mask name {} tensors; at most {} are allowed", named.size(), kMaxExpressionTensors);
  return named;
}

// What the hashes of ids stand for, for as long as the process lives.
class KnownExpressions {
 public:
  struct Known {
    std::string text;
    std::vector<ExpressionTensor> tensors;
  };
  std::string token_of(ExpressionUse use, const std::string& text, std::span<const ExpressionTensor> tensors) {
    const std::string key = fmt::format("{} {} {}", word_of(use), print_tensors(tensors), text);
    const std::lock_guard lock(mutex_);
    const auto [place, is_new] = tokens_.try_emplace(key);
    if (is_new) {
      const Expression expression = Expression::parse(text, use, tensors);
      place->second = expression.token();
      known_.try_emplace({use, place->second}, Known{expression.text(), expression.tensors()});
    }
    return place->second;
  }
  const Known* find(ExpressionUse use, std::string_view token) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find({use, std::string(token)});
    return found == known_.end() ? nullptr : &found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> tokens_;
  std::map<std::pair<ExpressionUse, std::string>, Known> known_;
};
KnownExpressions& known_expressions() {
  static KnownExpressions known;
  return known;
}

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  if (!found->is_string())
    throw_bad_input("the problem's '{}' is {}; it has to be a text", key, excerpt(found->dump()));
  return found->get<std::string>();
}

}  // namespace

std::vector<ExpressionTensor> parse_tensors(std::string_view text) {
  std::vector<ExpressionTensor> tensors;
  if (without_blanks(text).empty()) return tensors;
  while (true) {
    const std::size_t comma = text.find(',');
    tensors.push_back(parse_tensor(without_blanks(text.substr(0, comma))));
    if (tensors.size() > kMaxExpressionTensors)
      throw_bad_input("more than {} tensors are given; at most {} are allowed", kMaxExpressionTensors,
                      kMaxExpressionTensors);
    if (comma == std::string_view::npos) return tensors;
    text.remove_prefix(comma + 1);
  }
}

std::string print_tensors(std::span<const ExpressionTensor> tensors) {
  std::string text;
  for (const ExpressionTensor& tensor : tensors) {
    const auto* const element = std::find_if(std::begin(kElementWords), std::end(kElementWords),
                                             [&](const auto& e) { return e.second == tensor.element; });
    text += fmt::format("{}{}: {}[{}]", text.empty() ? "" : ", ", tensor.name, element->first, tensor.rank);
  }
  return text;
}

std::string canonical_text(std::string_view text, ExpressionUse use, std::span<const ExpressionTensor> tensors) {
  return text.empty() ? "" : Expression::parse(text, use, tensors).text();
}

void set_expressions(Problem& problem, std::string_view score, std::string_view mask,
                     std::span<const ExpressionTensor> tensors) {
  problem.score_text = canonical_text(score, ExpressionUse::kScore, tensors);
  problem.mask_text = canonical_text(mask, ExpressionUse::kMask, tensors);
  problem.tensors = named_tensors(problem, tensors);
}

void check_expressions(const Problem& problem) {
  if (!problem.has_expression() && problem.tensors.empty()) return;
  if (problem.tensors != named_tensors(problem, problem.tensors))
    throw_internal("the tensors of {} and {} are not in the order of the texts", problem.score_text, problem.mask_text);
  for (const ExpressionUse use : {ExpressionUse::kScore, ExpressionUse::kMask})
    FC_CHECK(canonical_text(text_of_use(problem, use), use, problem.tensors) == text_of_use(problem, use));
  tensor_shapes(problem);
}

ExpressionBox expression_box(const Problem& problem) {
  return ExpressionBox::of({problem.batch, problem.heads_q, problem.heads_kv, problem.seqlen_q, problem.seqlen_kv},
                           problem.ragged());
}

namespace {

// Of a ragged batch they depend on lengths.
VisibleKeys visible_keys(const Problem& problem) {
  VisibleKeys visible;
  if (problem.ragged()) return visible;
  const auto band = problem.band();
  if (band.bounded_left) visible.first = band.left_offset;
  if (band.bounded_right) visible.last = band.right_offset;
  return visible;
}

// As many as a tensor of the call may have (Problem::validate): what is allocated and counted does not wrap.
void require_countable(const std::string& name, const ExpressionShape& shape) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  std::int64_t elements = 1;
  for (int x = 0; x < shape.count; ++x) {
    const std::int64_t size = shape.sizes[static_cast<std::size_t>(x)];
    if (size == 0) return;
    if (size > kMost / elements)
      throw_bad_input(
          "the indices of '{}' reach over more than 2^40 elements; at most 2^40 are allowed: let them depend on less",
          name);
    elements *= size;
  }
}

// What `check` refuses by a column, it refuses by the part that is there: the column is one of the canonical text, and
// whoever wrote the function has seen another.
template <typename Check>
auto quoting_the_part(const Expression& expression, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    for (int part = 0; part < static_cast<int>(expression.nodes().size()); ++part) {
      const std::string column = fmt::format("column {} of", expression.nodes()[static_cast<std::size_t>(part)].column);
      if (message.starts_with(column + ' '))
        throw Error(error.kind(),
                    fmt::format("'{}' in{}", excerpt(text_of(expression, part), 80), message.substr(column.size())));
    }
    throw;
  }
}

}  // namespace

std::vector<ExpressionShape> tensor_shapes(const Problem& problem) {
  std::vector<ExpressionShape> shapes(problem.tensors.size());
  const auto widen = [&](const Expression& expression) {
    const std::vector<ExpressionShape> needed = quoting_the_part(expression, [&] {
      check_divisions(expression, expression_box(problem), visible_keys(problem));
      return check_expression(expression, expression_box(problem));
    });
    const std::vector<int> numbers = tensor_numbers(problem, expression);
    for (std::size_t t = 0; t < needed.size(); ++t) {
      ExpressionShape& shape = shapes[static_cast<std::size_t>(numbers[t])];
      shape.count = needed[t].count;
      for (std::size_t x = 0; x < static_cast<std::size_t>(shape.count); ++x)
        shape.sizes[x] = std::max(shape.sizes[x], needed[t].sizes[x]);
    }
  };
  if (problem.has_score_expression()) widen(problem.score_expression());
  if (problem.has_mask_expression()) widen(problem.mask_expression());
  for (std::size_t t = 0; t < shapes.size(); ++t) require_countable(problem.tensors[t].name, shapes[t]);
  return shapes;
}

std::vector<int> tensor_numbers(const Problem& problem, const Expression& expression) {
  std::vector<int> numbers;
  for (const ExpressionTensor& tensor : expression.tensors()) {
    const auto found = std::find(problem.tensors.begin(), problem.tensors.end(), tensor);
    FC_CHECK(found != problem.tensors.end());
    numbers.push_back(static_cast<int>(found - problem.tensors.begin()));
  }
  return numbers;
}

std::size_t bytes_of(ExpressionType element) { return element == ExpressionType::kBool ? 1 : 4; }

std::string print_token(const Problem& problem, ExpressionUse use) {
  const std::string& text = text_of_use(problem, use);
  if (text.empty()) return "";
  return fmt::format("_{}{}", word_of(use), known_expressions().token_of(use, text, problem.tensors));
}

void read_token(IdReader& reader, Problem& problem, ExpressionUse use) {
  const std::string_view word = word_of(use), token = reader.token();
  if (!token.starts_with(word)) return;
  const KnownExpressions::Known* known = known_expressions().find(use, token.substr(word.size()));
  if (!known)
    reader.fail(
        fmt::format("'{}' has the hash of a {} function that was not given before; give the problem in a suite, or as "
                    "JSON with the text: {{\"id\": \"b1_h8_s512_d64_fp16\", \"{}\": \"...\"}}",
                    excerpt(token, 40), word, word));
  reader.take();
  (use == ExpressionUse::kScore ? problem.score_text : problem.mask_text) = known->text;
  for (const ExpressionTensor& tensor : known->tensors)
    if (std::find(problem.tensors.begin(), problem.tensors.end(), tensor) == problem.tensors.end())
      problem.tensors.push_back(tensor);
}

nlohmann::json expressions_json(const Problem& problem) {
  nlohmann::json texts = nlohmann::json::object();
  if (problem.has_score_expression()) texts["score"] = problem.score_text;
  if (problem.has_mask_expression()) texts["mask"] = problem.mask_text;
  if (!problem.tensors.empty()) texts["tensors"] = print_tensors(problem.tensors);
  return texts;
}

std::string problem_text(const std::string& id, const Problem& problem) {
  nlohmann::json text = expressions_json(problem);
  text["id"] = id;
  return text.dump();
}

ProblemText parse_problem_text(std::string_view text) {
  const nlohmann::json given = parse_json(text, "the problem");
  for (const auto& [key, value] : given.items())
    if (key != "id" && key != "score" && key != "mask" && key != "tensors")
      throw_bad_input("the problem has the key '{}', which is not known; use id, score, mask and tensors",
                      excerpt(key, 40));
  ProblemText made{text_at(given, "id"), text_at(given, "score"), text_at(given, "mask"), text_at(given, "tensors")};
  if (made.id.empty() || made.id.starts_with('{'))
    throw_bad_input("the problem has no id; give one beside its functions, as \"id\": \"b1_h8_s512_d64_fp16_causal\"");
  remember_expressions(given);  // the id may have their hashes
  return made;
}

void add_expressions(Problem& problem, const ProblemText& given) {
  if (given.score.empty() && given.mask.empty() && given.tensors.empty()) return;
  Problem functions = problem.without_expressions();
  set_expressions(functions, given.score, given.mask, parse_tensors(given.tensors));
  if (problem.has_expression() && problem != functions)
    throw_bad_input("the problem's id has the hash of another function than the text beside it; leave one of them out");
  problem = functions;
}

void remember_expressions(const nlohmann::json& expressions) {
  Problem functions;
  set_expressions(functions, text_at(expressions, "score"), text_at(expressions, "mask"),
                  parse_tensors(text_at(expressions, "tensors")));
  for (const ExpressionUse use : {ExpressionUse::kScore, ExpressionUse::kMask}) print_token(functions, use);
}

}  // namespace flashcore
