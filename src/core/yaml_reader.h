#pragma once
// The one reader of YAML: suites, experiments, patches and planted faults. Its complaints name file and line.

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace flashcore {

class YamlReader {
 public:
  explicit YamlReader(std::string_view origin) : origin_(origin) {}

  // One document. Error kBadInput if the text is no YAML, is not UTF-8, or holds control characters (yaml-cpp takes
  // U+0004 for the end of the file) or more than one document.
  YAML::Node parse(std::string_view text) const;

  // Every accessor: Error kBadInput, "file:line: what was found; what is allowed".
  [[noreturn]] void fail(const YAML::Node& node, const std::string& reason) const;
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& reason) const;
  // `synonyms`: further keys that are allowed and not named where another is refused.
  void check_keys(const YAML::Node& map, std::string_view what, const std::vector<std::string>& allowed,
                  const std::vector<std::string>& synonyms = {}) const;
  YAML::Node need(const YAML::Node& map, const std::string& key, std::string_view what) const;
  // Never empty, and without control characters other than line breaks.
  std::string text(const YAML::Node& map, const std::string& key, std::string_view what) const;
  std::string text_or(const YAML::Node& map, const std::string& key, const std::string& otherwise) const;
  // Unchanged, and empty if it is missing.
  std::string source_text(const YAML::Node& map, const std::string& key) const;
  // Finite and decimal.
  double number(const YAML::Node& map, const std::string& key, std::string_view what) const;
  double number_or(const YAML::Node& map, const std::string& key, double otherwise) const;
  double number_of(const YAML::Node& scalar, std::string_view key) const;
  // Decimal: 010, which YAML 1.1 reads as eight and people as ten, is refused.
  std::int64_t whole(const YAML::Node& map, const std::string& key, std::string_view what) const;
  std::int64_t whole_or(const YAML::Node& map, const std::string& key, std::int64_t otherwise) const;
  std::int64_t whole_of(const YAML::Node& scalar, std::string_view key) const;
  // One of `words`.
  std::string word(const YAML::Node& map, const std::string& key, const std::vector<std::string>& words,
                   const std::string& otherwise) const;
  std::vector<std::string> texts(const YAML::Node& map, const std::string& key, std::string_view what) const;
  // The items of a list, at least one. `form` is an item's, for the complaint: "{file, from, to}".
  std::vector<YAML::Node> items(const YAML::Node& map, const std::string& key, std::string_view what,
                                std::string_view form) const;

  // What `parse()` returns. Its Error kBadInput gets the node's file and line, and `before`, in front.
  template <class Parse>
  auto locate(const YAML::Node& node, const Parse& parse, std::string_view before = "") const {
    try {
      return parse();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kBadInput) throw;
      fail(node, fmt::format("{}{}", before, error.what()));
    }
  }
  // The same for each item of a list of texts: complaints name the item's own line. `parse` takes a std::string.
  template <class Parse>
  auto locate_each(const YAML::Node& map, const std::string& key, std::string_view what, const Parse& parse) const {
    const std::vector<std::string> values = texts(map, key, what);
    std::vector<decltype(parse(values.front()))> parsed;
    for (std::size_t i = 0; i < values.size(); ++i)
      parsed.push_back(locate(map[key][i], [&] { return parse(values[i]); }));
    return parsed;
  }

  const std::string& origin() const { return origin_; }

 private:
  std::string text_of(const YAML::Node& node, const std::string& key) const;

  std::string origin_;
};

}  // namespace flashcore
