#include "core/suite.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "core/embedded.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/id_reader.h"
#include "core/near_names.h"
#include "core/problem_fields.h"
#include "core/yaml_reader.h"

namespace flashcore {
namespace {

constexpr std::string_view kSuite = "a suite", kProblem = "a problem";
// Names appear in tables and in the names of files.
constexpr std::size_t kMaxName = 100;
constexpr std::size_t kNamesShown = 8;  // where an unknown one was asked for

const std::vector<std::string>& problem_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = {"name"};
    for (const ProblemField& field : problem_fields()) all.emplace_back(field.suite_key);
    all.emplace_back("layout");
    return all;
  }();
  return keys;
}

// Every name that a key may have, the usual one first.
std::vector<std::string> names_of(const ProblemField& field) {
  std::vector<std::string> names = {std::string(field.suite_key)};
  if (field.name != field.suite_key) names.emplace_back(field.name);
  for (const std::string_view alias : field.aliases) names.emplace_back(alias);
  return names;
}

FieldValue field_value(const YamlReader& reader, const YAML::Node& map, const std::string& key,
                       const ProblemField& field) {
  if (field.kind == ProblemField::Kind::kWord) return reader.text(map, key, kProblem);
  if (field.kind == ProblemField::Kind::kText) {
    const std::string text = reader.text(map, key, kProblem);
    return text == "none" ? FieldValue(std::monostate()) : FieldValue(text);
  }
  if (field.optional && map[key].IsScalar() && map[key].Scalar() == "none") return std::monostate();
  if (field.kind == ProblemField::Kind::kNumber) return reader.number(map, key, kProblem);
  const std::int64_t whole = reader.whole(map, key, kProblem);
  return field.optional && whole == -1 ? FieldValue(std::monostate()) : FieldValue(whole);
}

void read_field(const YamlReader& reader, const YAML::Node& map, const ProblemField& field, Problem& problem) {
  std::string given;
  for (const std::string& name : names_of(field)) {
    if (!map[name]) continue;
    if (!given.empty())
      reader.fail(map[name], fmt::format("{} and {} are two names of one key; give one of them", given, name));
    given = name;
  }
  if (!given.empty()) {
    const FieldValue value = field_value(reader, map, given, field);
    reader.locate(map[given], [&] { field.set(problem, value); });
  } else if (field.required) {
    reader.need(map, std::string(field.suite_key), kProblem);
  } else if (!field.optional) {
    field.set(problem, field.otherwise(problem));
  }
}

NamedProblem read_problem(const YamlReader& reader, const YAML::Node& node) {
  std::vector<std::string> synonyms;
  for (const ProblemField& field : problem_fields())
    for (const std::string& name : names_of(field)) synonyms.push_back(name);
  reader.check_keys(node, kProblem, problem_keys(), synonyms);
  NamedProblem named;
  named.name = reader.text(node, "name", kProblem);
  if (named.name.size() > kMaxName)
    reader.fail(node["name"], fmt::format("name has {} bytes; at most {} are allowed: '{}'", named.name.size(),
                                          kMaxName, excerpt(named.name, 40)));
  for (const ProblemField& field : problem_fields()) read_field(reader, node, field, named.problem);
  if (node["causal"] && node["window_alignment"])
    reader.locate(node["window_alignment"],
                  [&] { require_one_alignment(node["causal"].Scalar(), node["window_alignment"].Scalar()); });
  if (const YAML::Node layout = node["layout"]) {
    const std::string word = reader.text(node, "layout", kProblem);
    named.problem.layout = reader.locate(layout, [&] { return parse_layout(word); });
  }
  reader.locate(
      node, [&] { named.problem.validate(); }, fmt::format("problem '{}': ", named.name));
  return named;
}

}  // namespace

Suite parse_suite(std::string_view yaml, std::string_view origin) {
  const YamlReader reader(origin);
  const YAML::Node root = reader.parse(yaml);
  reader.check_keys(root, kSuite, {"name", "problems"});
  Suite suite;
  suite.name = reader.text(root, "name", kSuite);
  std::set<std::string> names;
  for (const YAML::Node& node : reader.items(root, "problems", kSuite, "{name: ..., seq_len: ...}")) {
    suite.problems.push_back(read_problem(reader, node));
    if (!names.insert(suite.problems.back().name).second) {
      reader.fail(node["name"], fmt::format("the problem name '{}' is used twice; names are unique within a suite",
                                            suite.problems.back().name));
    }
  }
  return suite;
}

Suite load_suite(std::string_view name_or_path) {
  if (name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(".yaml")) {
    return parse_suite(read_file(std::filesystem::path(name_or_path)), name_or_path);
  }
  const std::string file = fmt::format("{}.yaml", name_or_path);
  const auto found = embedded_suites().find(file);
  if (found == embedded_suites().end()) {
    throw_bad_input("suite '{}' is not known; use one of {}, or the path of a .yaml file", excerpt(name_or_path),
                    fmt::join(shipped_suites(), ", "));
  }
  return parse_suite(found->second, file);
}

std::vector<std::string> shipped_suites() {
  std::vector<std::string> names;
  for (const auto& [file, text] : embedded_suites()) names.push_back(std::filesystem::path(file).stem().string());
  return names;
}

NamedProblem find_problem(const Suite& suite, std::string_view name_or_id) {
  for (const NamedProblem& named : suite.problems) {
    if (named.name == name_or_id) return named;
  }
  for (const NamedProblem& named : suite.problems) {
    if (named.problem.id() == name_or_id) return named;
  }
  try {
    const PlacedProblem problem = PlacedProblem::parse(name_or_id);
    return {problem.id(), problem};
  } catch (const Error& error) {
    if (name_or_id.starts_with('{')) throw_bad_input("{}: {}", excerpt(name_or_id), error.what());
    std::vector<std::string> names;
    for (const NamedProblem& named : suite.problems) names.push_back(named.name);
    // The form of all ids is a page.
    const std::string why = error.what();
    const std::string near = did_you_mean(name_or_id, names);
    const std::size_t count = names.size();
    if (count > kNamesShown) names.resize(kNamesShown);
    throw_bad_input(
        "'{}' is no problem of suite {}, and not an id: {}{}; the suite has {}{}, and docs/problem.md the form of an "
        "id",
        excerpt(name_or_id), suite.name, why.substr(0, why.find(kFormFollows)), near, fmt::join(names, ", "),
        count > names.size() ? fmt::format(" and {} more", count - names.size()) : "");
  }
}

}  // namespace flashcore
