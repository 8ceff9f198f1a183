#pragma once
// A user's score and mask functions as parts of a Problem: how they get there, what their tensors are, and how an id,
// which has only their hashes, is read.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/expression_range.h"
#include "core/id_reader.h"
#include "core/problem.h"

namespace flashcore {

// "slope: float[1], document: int[2]": what each holds and how many indices it takes; float is fp32, int is int32, bool
// a byte. Error kBadInput with the part that is wrong and what is allowed.
std::vector<ExpressionTensor> parse_tensors(std::string_view text);
std::string print_tensors(std::span<const ExpressionTensor> tensors);

// The one way of writing it; empty: none. Error kBadInput as Expression::parse.
std::string canonical_text(std::string_view text, ExpressionUse use, std::span<const ExpressionTensor> tensors);
// Makes them the problem's. Empty: none. Error kBadInput as Expression::parse, and for a tensor that neither names.
void set_expressions(Problem& problem, std::string_view score, std::string_view mask,
                     std::span<const ExpressionTensor> tensors);
// Part of Problem::validate: what may leave a tensor, and what does not go together yet.
void check_expressions(const Problem& problem);

ExpressionBox expression_box(const Problem& problem);
// Of Problem::tensors: the shapes that they have at least, and by default.
std::vector<ExpressionShape> tensor_shapes(const Problem& problem);
// Where in Problem::tensors the tensors of one of its expressions are.
std::vector<int> tensor_numbers(const Problem& problem, const Expression& expression);
std::size_t bytes_of(ExpressionType element);  // 4, or 1 of a condition

// Parts of an id: "_score1b0c3a1f9e2d". What is printed can be read from then on, in this process.
std::string print_token(const Problem& problem, ExpressionUse use);
// Error kBadInput on a hash that this process has not met.
void read_token(IdReader& reader, Problem& problem, ExpressionUse use);

// {"id": ..., "score": ..., "mask": ..., "tensors": ...} in one line: what Problem::parse reads in any process. `id` is
// that of the problem without expressions.
std::string problem_text(const std::string& id, const Problem& problem);
struct ProblemText {
  std::string id, score, mask, tensors;
};
// Error kBadInput for what is no such JSON.
ProblemText parse_problem_text(std::string_view text);
// Error kBadInput where the problem has other functions already, from its id.
void add_expressions(Problem& problem, const ProblemText& given);

// {"score": ..., "mask": ..., "tensors": ...} of what there is; and that read, so that its hashes are known.
nlohmann::json expressions_json(const Problem& problem);
void remember_expressions(const nlohmann::json& expressions);

}  // namespace flashcore
