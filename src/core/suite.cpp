#include "core/suite.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "core/embedded.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/yaml_reader.h"

namespace flashcore {
namespace {

constexpr std::string_view kSuite = "a suite", kProblem = "a problem";
// Names stand in tables and in the names of files.
constexpr std::size_t kMaxName = 100;

const std::vector<std::string>& problem_keys() {
  static const std::vector<std::string> keys = {"name",    "batch_size", "num_heads", "num_kv_heads",
                                                "seq_len", "seq_len_kv", "head_dim",  "head_dim_v",
                                                "dtype",   "causal",     "layout",    "scale"};
  return keys;
}

class SuiteReader {
 public:
  explicit SuiteReader(std::string_view origin) : reader_(origin) {}

  Suite read(std::string_view yaml) const {
    const YAML::Node root = reader_.parse(yaml);
    reader_.check_keys(root, kSuite, {"name", "problems"});
    Suite suite;
    suite.name = reader_.text(root, "name", kSuite);
    const YAML::Node problems = reader_.need(root, "problems", kSuite);
    if (!problems.IsSequence())
      reader_.fail(problems, "problems is not a list; write '- {name: ..., seq_len: ...}' lines under it");
    if (problems.size() == 0) reader_.fail(problems, "problems is empty; give at least one problem");
    std::set<std::string> names;
    for (const YAML::Node& node : problems) {
      suite.problems.push_back(read_problem(node));
      if (!names.insert(suite.problems.back().name).second) {
        reader_.fail(node["name"], fmt::format("the problem name '{}' is used twice; names are unique within a suite",
                                               suite.problems.back().name));
      }
    }
    return suite;
  }

 private:
  // Words that the core's own parsers know, with this file's line in front of what they say.
  template <class Parser>
  auto word(const YAML::Node& map, const std::string& key, const Parser& parser) const {
    const std::string value = reader_.text(map, key, kProblem);
    try {
      return parser(value);
    } catch (const Error& error) {
      reader_.fail(map[key], error.what());
    }
  }

  static Mask parse_causal(const std::string& value) {
    if (value == "true" || value == "bottom_right") return Mask::causal();
    if (value == "top_left") return Mask::causal(Alignment::kTopLeft);
    if (value == "false") return Mask();
    throw_bad_input(
        "causal is '{}', which is not known; use true (the same as bottom_right), false, top_left or bottom_right",
        excerpt(value));
  }

  NamedProblem read_problem(const YAML::Node& node) const {
    reader_.check_keys(node, kProblem, problem_keys());
    NamedProblem named;
    named.name = reader_.text(node, "name", kProblem);
    if (named.name.size() > kMaxName)
      reader_.fail(node["name"], fmt::format("name has {} bytes; at most {} are allowed: '{}'", named.name.size(),
                                             kMaxName, excerpt(named.name, 40)));
    Problem& p = named.problem;
    p.batch = reader_.whole_or(node, "batch_size", 1);
    p.heads_q = reader_.whole(node, "num_heads", kProblem);
    p.heads_kv = reader_.whole_or(node, "num_kv_heads", p.heads_q);
    p.seqlen_q = reader_.whole(node, "seq_len", kProblem);
    p.seqlen_kv = reader_.whole_or(node, "seq_len_kv", p.seqlen_q);
    p.head_dim = reader_.whole(node, "head_dim", kProblem);
    p.head_dim_v = reader_.whole_or(node, "head_dim_v", p.head_dim);
    p.dtype = word(node, "dtype", [](const std::string& value) { return parse_dtype(value); });
    if (node["causal"]) p.mask = word(node, "causal", parse_causal);
    if (node["layout"]) p.layout = word(node, "layout", [](const std::string& value) { return parse_layout(value); });
    if (node["scale"]) p.scale = reader_.number(node, "scale", kProblem);
    try {
      p.validate();
    } catch (const Error& error) {
      reader_.fail(node, fmt::format("problem '{}': {}", named.name, error.what()));
    }
    return named;
  }

  YamlReader reader_;
};

}  // namespace

Suite parse_suite(std::string_view yaml, std::string_view origin) { return SuiteReader(origin).read(yaml); }

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
    const Problem problem = Problem::parse(name_or_id);
    return {problem.id(), problem};
  } catch (const Error& error) {
    std::vector<std::string> names;
    for (const NamedProblem& named : suite.problems)
      if (names.size() < 20) names.push_back(named.name);
    throw_bad_input("'{}' is no problem of suite {} (it has {}{}), and not an id: {}", excerpt(name_or_id), suite.name,
                    fmt::join(names, ", "), suite.problems.size() > names.size() ? ", ..." : "", error.what());
  }
}

}  // namespace flashcore
