#include "core/suite.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <set>

#include "core/embedded.h"
#include "core/error.h"
#include "core/files.h"

namespace flashcore {
namespace {

const std::vector<std::string>& problem_keys() {
  static const std::vector<std::string> keys = {"name",    "batch_size", "num_heads", "num_kv_heads",
                                                "seq_len", "seq_len_kv", "head_dim",  "head_dim_v",
                                                "dtype",   "causal",     "layout",    "scale"};
  return keys;
}

// Turns YAML nodes into values; every complaint starts with file and line.
class SuiteReader {
 public:
  explicit SuiteReader(std::string_view origin) : origin_(origin) {}

  Suite read(const YAML::Node& root) const {
    check_keys(root, "suite", {"name", "problems"});
    Suite suite;
    suite.name = text(need(root, "name", "suite"), "name");
    const YAML::Node problems = need(root, "problems", "suite");
    if (!problems.IsSequence())
      fail(problems, "problems is not a list; write '- {name: ..., seq_len: ...}' lines under it");
    if (problems.size() == 0) fail(problems, "problems is empty; give at least one problem");
    std::set<std::string> names;
    for (const YAML::Node& node : problems) {
      suite.problems.push_back(read_problem(node));
      if (!names.insert(suite.problems.back().name).second) {
        fail(node["name"], fmt::format("the problem name '{}' is used twice; names are unique within a suite",
                                       suite.problems.back().name));
      }
    }
    return suite;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, const std::string& reason) const { fail(node.Mark(), reason); }
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& reason) const {
    throw_bad_input("{}:{}: {}", origin_, mark.is_null() ? 1 : mark.line + 1, reason);
  }

  void check_keys(const YAML::Node& node, std::string_view what, const std::vector<std::string>& allowed) const {
    if (!node.IsMap())
      fail(node, fmt::format("a {} is not 'key: value' pairs; its keys are {}", what, fmt::join(allowed, ", ")));
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar())
        fail(entry.first, fmt::format("a key of a {} is not a word; its keys are {}", what, fmt::join(allowed, ", ")));
      const std::string& key = entry.first.Scalar();
      if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
        fail(entry.first,
             fmt::format("unknown key '{}' in a {}; allowed keys are {}", key, what, fmt::join(allowed, ", ")));
      }
      if (!seen.insert(key).second)
        fail(entry.first, fmt::format("the key '{}' is given twice in one {}; give it once", key, what));
    }
  }

  YAML::Node need(const YAML::Node& map, const std::string& key, std::string_view what) const {
    const YAML::Node node = map[key];
    if (!node) fail(map, fmt::format("a {} lacks the key '{}'; add it", what, key));
    return node;
  }

  std::string text(const YAML::Node& node, std::string_view key) const {
    if (!node.IsScalar() || node.Scalar().empty())
      fail(node, fmt::format("{} is not a word; write {}: some_name", key, key));
    return node.Scalar();
  }

  std::int64_t integer(const YAML::Node& node, std::string_view key) const {
    std::int64_t value = 0;
    if (!node.IsScalar() || !YAML::convert<std::int64_t>::decode(node, value)) {
      fail(node, fmt::format("{} is '{}', which is not a whole number of at most 63 bits; write {}: 64", key,
                             node.IsScalar() ? node.Scalar() : "a list or map", key));
    }
    return value;
  }

  // Words that the core's own parsers know, with this file's line in front of what they say.
  template <class Parser>
  auto word(const YAML::Node& node, std::string_view key, const Parser& parser) const {
    const std::string value = text(node, key);
    try {
      return parser(value);
    } catch (const Error& error) {
      fail(node, error.what());
    }
  }

  static Causal parse_causal(const std::string& value) {
    if (value == "true" || value == "bottom_right") return Causal::kBottomRight;
    if (value == "top_left") return Causal::kTopLeft;
    if (value == "false") return Causal::kNone;
    throw_bad_input(
        "causal is '{}', which is not known; use true (the same as bottom_right), false, top_left or bottom_right",
        value);
  }

  NamedProblem read_problem(const YAML::Node& node) const {
    check_keys(node, "problem", problem_keys());
    NamedProblem named;
    named.name = text(need(node, "name", "problem"), "name");
    Problem& p = named.problem;
    const auto size = [&](const std::string& key, std::int64_t otherwise) {
      const YAML::Node value = node[key];
      return value ? integer(value, key) : otherwise;
    };
    p.batch = size("batch_size", 1);
    p.heads_q = integer(need(node, "num_heads", "problem"), "num_heads");
    p.heads_kv = size("num_kv_heads", p.heads_q);
    p.seqlen_q = integer(need(node, "seq_len", "problem"), "seq_len");
    p.seqlen_kv = size("seq_len_kv", p.seqlen_q);
    p.head_dim = integer(need(node, "head_dim", "problem"), "head_dim");
    p.head_dim_v = size("head_dim_v", p.head_dim);
    p.dtype =
        word(need(node, "dtype", "problem"), "dtype", [](const std::string& value) { return parse_dtype(value); });
    if (const YAML::Node causal = node["causal"]) p.causal = word(causal, "causal", parse_causal);
    if (const YAML::Node layout = node["layout"]) {
      p.layout = word(layout, "layout", [](const std::string& value) { return parse_layout(value); });
    }
    if (const YAML::Node scale = node["scale"]) {
      double value = 0;
      if (!scale.IsScalar() || !YAML::convert<double>::decode(scale, value))
        fail(scale, "scale is not a number; write scale: 0.125");
      p.scale = value;
    }
    try {
      p.validate();
    } catch (const Error& error) {
      fail(node, fmt::format("problem '{}': {}", named.name, error.what()));
    }
    return named;
  }

  std::string origin_;
};

}  // namespace

Suite parse_suite(std::string_view yaml, std::string_view origin) {
  try {
    return SuiteReader(origin).read(YAML::Load(std::string(yaml)));
  } catch (const YAML::Exception& error) {
    throw_bad_input("{}:{}: this is not YAML: {}; see suites/quick.yaml for the form", origin,
                    error.mark.is_null() ? 1 : error.mark.line + 1, error.msg);
  }
}

Suite load_suite(std::string_view name_or_path) {
  if (name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(".yaml")) {
    return parse_suite(read_file(std::filesystem::path(name_or_path)), name_or_path);
  }
  const std::string file = fmt::format("{}.yaml", name_or_path);
  const auto found = embedded_suites().find(file);
  if (found == embedded_suites().end()) {
    throw_bad_input("suite '{}' is not known; use one of {}, or the path of a .yaml file", name_or_path,
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
    for (const NamedProblem& named : suite.problems) names.push_back(named.name);
    throw_bad_input("'{}' is no problem of suite {} (it has {}), and not an id: {}", name_or_id, suite.name,
                    fmt::join(names, ", "), error.what());
  }
}

}  // namespace flashcore
