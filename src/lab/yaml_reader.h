#pragma once
// YAML with complaints that name file and line: what experiments, patches and planted faults are read with.

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

class YamlReader {
 public:
  explicit YamlReader(std::string origin) : origin_(std::move(origin)) {}

  // Error kBadInput if the text is no YAML.
  YAML::Node parse(std::string_view text) const;

  // Every accessor: Error kBadInput, "file:line: what was found; what is allowed".
  [[noreturn]] void fail(const YAML::Node& node, const std::string& reason) const;
  void check_keys(const YAML::Node& map, std::string_view what, const std::vector<std::string>& allowed) const;
  YAML::Node need(const YAML::Node& map, const std::string& key, std::string_view what) const;
  std::string text(const YAML::Node& map, const std::string& key, std::string_view what) const;
  std::string text_or(const YAML::Node& map, const std::string& key, const std::string& otherwise) const;
  double number(const YAML::Node& map, const std::string& key, std::string_view what) const;
  double number_or(const YAML::Node& map, const std::string& key, double otherwise) const;
  // One of `words`.
  std::string word(const YAML::Node& map, const std::string& key, const std::vector<std::string>& words,
                   const std::string& otherwise) const;
  std::vector<std::string> texts(const YAML::Node& map, const std::string& key, std::string_view what) const;
  const std::string& origin() const { return origin_; }

 private:
  std::string origin_;
};

}  // namespace flashcore
