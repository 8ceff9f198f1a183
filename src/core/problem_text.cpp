// What the table of problem_fields.h is turned into: ids, JSON, distances, random and simpler problems, the reference.

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/problem_expressions.h"
#include "core/problem_fields.h"

namespace flashcore {
namespace {

std::string id_part(const ProblemField& field, const Problem& problem) {
  if (field.print) return field.print(problem);
  const FieldValue value = field.get(problem);
  const bool usual = std::holds_alternative<std::monostate>(value) ||
                     (!field.required && field.otherwise && value == field.otherwise(problem));
  return usual ? "" : fmt::format("_{}{}", field.token, field_text(value));
}

void read_part(const ProblemField& field, IdReader& reader, Problem& problem) {
  if (field.read) return field.read(reader, problem);
  if (field.kind == ProblemField::Kind::kNumber) {
    const auto number = reader.real(field.token);
    return field.set(problem, number ? FieldValue(*number) : field.otherwise(problem));
  }
  if (field.required) return field.set(problem, reader.need_number(field.token));
  const auto number = reader.number(field.token);
  field.set(problem, number ? FieldValue(*number) : field.otherwise(problem));
}

const char* type_text(const ProblemField& field) {
  switch (field.kind) {
    case ProblemField::Kind::kWhole: return "whole";
    case ProblemField::Kind::kNumber: return "number";
    case ProblemField::Kind::kWord: return "word";
    case ProblemField::Kind::kText: return "text";
  }
  throw_internal("unknown kind {} of field {}", static_cast<int>(field.kind), field.name);
}

std::string allowed_text(const ProblemField& field) {
  if (!field.words.empty()) return fmt::format("{}", fmt::join(field.words, ", "));
  if (field.kind == ProblemField::Kind::kNumber) return "1e-6 to 1e6";
  if (field.kind == ProblemField::Kind::kText) return "docs/expressions.md, or none";
  return fmt::format("{} to {}{}", field.lowest, field.highest, field.optional ? ", or -1 for no bound" : "");
}

// Lines of at most 130 columns and an empty one.
std::string paragraph(std::string_view text) {
  constexpr std::size_t kColumns = 130;
  std::string lines;
  while (text.size() > kColumns) {
    const std::size_t end = text.rfind(' ', kColumns);
    lines += fmt::format("{}\n", text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines + fmt::format("{}\n\n", text);
}

nlohmann::json json_of(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> nlohmann::json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) return nullptr;
        else return v;
      },
      value);
}

}  // namespace

std::string field_text(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) return "none";
        else return fmt::format("{}", v);
      },
      value);
}

const ProblemField* find_problem_field(std::string_view name_or_key) {
  for (const ProblemField& field : problem_fields()) {
    const bool alias = std::find(field.aliases.begin(), field.aliases.end(), name_or_key) != field.aliases.end();
    if (alias || field.name == name_or_key || field.suite_key == name_or_key) return &field;
  }
  return nullptr;
}

int compiled_value(std::string_view trait, const Problem& problem) {
  for (const ProblemField& field : problem_fields()) {
    for (const auto& [name, value] : field.compiled_for) {
      if (name == trait) return value(problem);
    }
  }
  throw_internal("no field of a problem says what kernels have as '{}' (compiled_for in core/problem_fields.cpp)",
                 trait);
}

void check_fields(const Problem& problem) {
  for (const ProblemField& field : problem_fields()) {
    if (field.kind != ProblemField::Kind::kWhole) continue;
    const FieldValue value = field.get(problem);
    const auto* whole = std::get_if<std::int64_t>(&value);
    if (whole && (*whole < field.lowest || *whole > field.highest))
      throw_bad_input("{} is {}, which is not allowed; use a value from {}", field.name, *whole, allowed_text(field));
  }
}

std::string print_id(const Problem& problem, std::string_view extra) {
  std::string id;
  for (const ProblemField& field : problem_fields()) {
    if (field.name == "scale") id += extra;
    id += id_part(field, problem);
  }
  return id;
}

Problem read_id(std::string_view id, const std::function<void(IdReader&)>& read_extra) {
  if (id.starts_with('{')) {
    const ProblemText given = parse_problem_text(id);
    Problem problem = read_id(given.id, read_extra);
    add_expressions(problem, given);
    problem.validate();
    return problem;
  }
  IdReader reader(id, id_form());
  Problem problem;
  for (const ProblemField& field : problem_fields()) {
    const bool last = field.name == "scale";
    if (last && read_extra) read_extra(reader);
    if (last && (reader.token() == "bshd" || reader.token() == "strided"))
      reader.fail(
          fmt::format("'{}' names a layout, which is no part of a problem, or is in the wrong place; leave it out",
                      reader.token()));
    read_part(field, reader, problem);
  }
  reader.need_end();
  problem.validate();
  return problem;
}

std::string id_form() {
  std::string form;
  for (const ProblemField& field : problem_fields()) {
    if (field.name == "scale") form += "[_bshd|_strided]";
    form += field.form;
  }
  return form + ", for example b1_h32_hk8_s4096_d128_bf16_causal";
}

double problem_distance(const Problem& a, const Problem& b) {
  double distance = 0;
  for (const ProblemField& field : problem_fields())
    if (field.distance) distance += field.distance(a, b);
  return distance;
}

Problem random_problem(Draws& draws) {
  Problem problem;
  for (const ProblemField& field : problem_fields())
    if (field.draw) field.draw(problem, draws);
  return problem;
}

std::vector<Problem> simpler_problems(const Problem& problem) {
  std::vector<Problem> simpler;
  for (const ProblemField& field : problem_fields()) {
    if (!field.simpler) continue;
    for (Problem& p : field.simpler(problem)) {
      if (p.mask.none()) p.mask = Mask();
      simpler.push_back(std::move(p));
    }
  }
  return simpler;
}

double complexity(const Problem& problem) {
  double sum = 0;
  for (const ProblemField& field : problem_fields())
    if (field.complexity) sum += field.complexity(problem);
  return sum;
}

nlohmann::json problem_json(const Problem& problem) {
  nlohmann::json json;
  for (const ProblemField& field : problem_fields()) json[std::string(field.name)] = json_of(field.get(problem));
  return json;
}

nlohmann::json problem_fields_json() {
  nlohmann::json list = nlohmann::json::array();
  for (const ProblemField& field : problem_fields()) {
    list.push_back({{"name", field.name},
                    {"suite_key", field.suite_key},
                    {"aliases", field.aliases},
                    {"type", type_text(field)},
                    {"optional", field.optional},
                    {"required", field.required},
                    {"default", field.required ? nlohmann::json() : nlohmann::json(field.default_text)},
                    {"allowed", allowed_text(field)},
                    {"specialises", !field.compiled_for.empty() || field.own_kernels},
                    {"id", field.form},
                    {"python", field.python},
                    {"doc", field.doc}});
  }
  return list;
}

std::string problem_reference_page() {
  std::string page = "# The fields of a problem\n\n" +
                     paragraph(
                         "Made by `flashcore problem` from the table in `src/core/problem_fields.cpp`; a "
                         "test asks whether it is fresh.") +
                     "An id is\n\n```\n" + id_form() + "\n```\n\n" +
                     paragraph(
                         "Suites are lists of problems with the keys below; each may also have the name that C has for "
                         "the field. How operands lie in memory is no part of a problem: ids and suites may name it "
                         "beside (`layout`: bhsd, bshd or strided).") +
                     "| field (C, JSON) | in suites | type | allowed | default | in ids | kernels | Python |\n"
                     "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const ProblemField& field : problem_fields()) {
    std::string keys = fmt::format("`{}`", field.suite_key);
    for (const std::string_view alias : field.aliases) keys += fmt::format(", `{}`", alias);
    std::string form(field.form);
    for (std::size_t at = 0; (at = form.find('|', at)) != std::string::npos; at += 2) form.replace(at, 1, "\\|");
    page +=
        fmt::format("| `{}` | {} | {} | {} | {} | `{}` | {} | `{}` |\n", field.name, keys, type_text(field),
                    allowed_text(field), field.required ? "must be given" : field.default_text, form,
                    !field.compiled_for.empty() || field.own_kernels ? "compiled for it" : "at run time", field.python);
  }
  page += "\n";
  for (const ProblemField& field : problem_fields())
    page += paragraph(fmt::format("**{}**: {}", field.name, field.doc));
  page.pop_back();  // of two line breaks at the end
  return page;
}

}  // namespace flashcore
