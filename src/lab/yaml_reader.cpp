#include "lab/yaml_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"

namespace flashcore {

YAML::Node YamlReader::parse(std::string_view text) const {
  try {
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    throw_bad_input("{}:{}: this is not YAML: {}", origin_, error.mark.is_null() ? 1 : error.mark.line + 1, error.msg);
  }
}

void YamlReader::fail(const YAML::Node& node, const std::string& reason) const {
  const YAML::Mark mark = node.Mark();
  throw_bad_input("{}:{}: {}", origin_, mark.is_null() ? 1 : mark.line + 1, reason);
}

void YamlReader::check_keys(const YAML::Node& map, std::string_view what,
                            const std::vector<std::string>& allowed) const {
  if (!map.IsMap())
    fail(map, fmt::format("{} is not 'key: value' pairs; its keys are {}", what, fmt::join(allowed, ", ")));
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end())
      fail(entry.first,
           fmt::format("unknown key '{}' in {}; allowed keys are {}", key, what, fmt::join(allowed, ", ")));
    if (!seen.insert(key).second)
      fail(entry.first, fmt::format("the key '{}' is given twice in {}; give it once", key, what));
  }
}

YAML::Node YamlReader::need(const YAML::Node& map, const std::string& key, std::string_view what) const {
  const YAML::Node node = map[key];
  if (!node) fail(map, fmt::format("{} lacks the key '{}'; add it", what, key));
  return node;
}

std::string YamlReader::text(const YAML::Node& map, const std::string& key, std::string_view what) const {
  const YAML::Node node = need(map, key, what);
  if (!node.IsScalar() || node.Scalar().empty()) fail(node, fmt::format("{} is not a text; write {}: words", key, key));
  return node.Scalar();
}

std::string YamlReader::text_or(const YAML::Node& map, const std::string& key, const std::string& otherwise) const {
  return map[key] ? text(map, key, key) : otherwise;
}

double YamlReader::number(const YAML::Node& map, const std::string& key, std::string_view what) const {
  const YAML::Node node = need(map, key, what);
  double value = 0;
  if (!node.IsScalar() || !YAML::convert<double>::decode(node, value))
    fail(node, fmt::format("{} is not a number; write {}: 1.05", key, key));
  return value;
}

double YamlReader::number_or(const YAML::Node& map, const std::string& key, double otherwise) const {
  return map[key] ? number(map, key, key) : otherwise;
}

std::string YamlReader::word(const YAML::Node& map, const std::string& key, const std::vector<std::string>& words,
                             const std::string& otherwise) const {
  const std::string value = text_or(map, key, otherwise);
  if (std::find(words.begin(), words.end(), value) == words.end())
    fail(map[key], fmt::format("{} is '{}'; it is one of {}", key, value, fmt::join(words, ", ")));
  return value;
}

std::vector<std::string> YamlReader::texts(const YAML::Node& map, const std::string& key, std::string_view what) const {
  const YAML::Node node = need(map, key, what);
  if (!node.IsSequence() || node.size() == 0)
    fail(node, fmt::format("{} is not a list; write {}: [one, two]", key, key));
  std::vector<std::string> values;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) fail(item, fmt::format("an item of {} is not a text", key));
    values.push_back(item.Scalar());
  }
  return values;
}

}  // namespace flashcore
