#pragma once
// The one table of what a Problem is made of. From it come the id and its parser, suites, JSON, the checks of each
// value, the distance between problems, fuzzing and shrinking, docs/problem.md, and the check that C and Python have
// every field. A new field is one entry here, and what computes with it.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/draws.h"
#include "core/id_reader.h"
#include "core/problem.h"

namespace flashcore {

// monostate: no value, which only a field that may go without one takes.
using FieldValue = std::variant<std::monostate, std::int64_t, double, std::string>;
std::string field_text(const FieldValue& value);  // "none" for no value

struct ProblemField {
  enum class Kind { kWhole, kNumber, kWord, kText };
  // A member of Traits (kernels/tile/traits.h), by name: kernels are compiled for this value of it.
  struct CompiledFor {
    std::string_view trait;
    int (*value)(const Problem&);
  };

  std::string_view name = {};                  // in C, C++ and JSON, and in suites too
  std::string_view suite_key = {};             // what suites usually call it
  std::vector<std::string_view> aliases = {};  // further names that suites may use
  Kind kind = Kind::kWhole;
  std::vector<CompiledFor> compiled_for = {};  // none: a parameter of each launch, or
  bool own_kernels = false;                    // kernels of another name (kernels/transposed_v.h)
  bool optional = false;                       // may have no value: in suites -1 or "none"
  bool required = false;                       // must be given; a field that is not has the default
  std::string_view default_text = {};          // of the reference page
  std::int64_t lowest = 0, highest = 0;        // kWhole
  std::vector<std::string_view> words = {};    // kWord: values
  std::string_view token = {};                 // kWhole, kNumber: what comes before the value in an id
  std::string_view form = {};                  // of its part of an id, "[_hk<kv heads>]"
  std::string_view python = {};                // the argument or array of flashcore.attention that says it
  std::string_view doc = {};

  FieldValue (*get)(const Problem&) = nullptr;
  // Error kBadInput where the value contradicts a field that came before it in the table.
  void (*set)(Problem&, const FieldValue&) = nullptr;
  // The value that it has where nobody gives one; fields before it in the table have theirs.
  FieldValue (*otherwise)(const Problem&) = nullptr;
  // Its part of an id, with the '_' before it, and how it is read. Null: `token` and the value, left out where that is
  // what the field has otherwise.
  std::string (*print)(const Problem&) = nullptr;
  void (*read)(IdReader&, Problem&) = nullptr;
  // How far it takes two problems from sharing a config: see problem_distance.
  double (*distance)(const Problem&, const Problem&) = nullptr;
  // A random value, given the fields that were drawn before. Null: drawn with an earlier field.
  void (*draw)(Problem&, Draws&) = nullptr;
  // Problems that are simpler in this field, boldest first. Null: none.
  std::vector<Problem> (*simpler)(const Problem&) = nullptr;
  // How much there is to look at: sizes count a thousand each, features (`complexity` of a few) twenty.
  double (*complexity)(const Problem&) = nullptr;
};

// In the order of the id. Every field is drawn, set and checked in this order.
std::span<const ProblemField> problem_fields();
// Of that member of Traits. Some field of the table has it.
int compiled_value(std::string_view trait, const Problem& problem);
const ProblemField* find_problem_field(std::string_view name_or_key);

// For whoever was given both words. Error kBadInput where a causal mask is aligned otherwise.
void require_one_alignment(std::string_view causal, std::string_view alignment);
// Error kBadInput naming the field, its value and what is allowed. What several fields must have in common is
// Problem::validate's.
void check_fields(const Problem& problem);

// Ids as Problem::id and Problem::parse have them; `extra` comes before the scale, where ids name a layout.
std::string print_id(const Problem& problem, std::string_view extra = {});
Problem read_id(std::string_view id, const std::function<void(IdReader&)>& read_extra = {});
std::string id_form();

// How far two problems are from sharing a config: the sum over sizes of |log2 of their ratio|; infinite where the
// kernel itself would be another one (element size, head dims, which sides the mask bounds).
double problem_distance(const Problem& a, const Problem& b);

Problem random_problem(Draws& draws);
std::vector<Problem> simpler_problems(const Problem& problem);
double complexity(const Problem& problem);

// {"dtype": "bf16", "batch": 1, ...}: every field, null where there is no value.
nlohmann::json problem_json(const Problem& problem);
// The table itself: what docs/problem.md is made of, and what the mirrors are checked against.
nlohmann::json problem_fields_json();
std::string problem_reference_page();

}  // namespace flashcore
