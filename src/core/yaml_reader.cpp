#include "core/yaml_reader.h"

#include <fmt/ranges.h>

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

std::string quoted(const YAML::Node& node) {
  return node.IsScalar() ? fmt::format("'{}'", excerpt(node.Scalar())) : std::string("a list, a map or nothing");
}

class DocumentStarts final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { last = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  YAML::Mark last;
};

// YAML::Load would leave it unread in silence, and YAML::LoadAll never ends on a tag without a value ("!t").
std::optional<YAML::Mark> second_document(const std::string& text) {
  if (text.find("\n---") == std::string::npos && text.find("\n...") == std::string::npos) return std::nullopt;
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (parser.HandleNextDocument(starts) && parser.HandleNextDocument(starts)) return starts.last;
  return std::nullopt;
}

}  // namespace

YAML::Node YamlReader::parse(std::string_view text) const {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const std::size_t bad = find_bad_character(text); bad != std::string_view::npos) {
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n') + 1;
    throw_bad_input(
        "{}:{}: this is not YAML: the byte 0x{:02x} is a control character or not UTF-8; save the file as UTF-8 text",
        origin_, line, static_cast<unsigned char>(text[bad]));
  }
  try {
    if (const auto second = second_document(std::string(text)))
      fail(*second, "a second document begins here; give each its own file");
    return YAML::Load(std::string(text));
  } catch (const YAML::Exception& error) {
    fail(error.mark, fmt::format("this is not YAML: {}", excerpt(error.msg)));
  }
}

void YamlReader::fail(const YAML::Node& node, const std::string& reason) const { fail(node.Mark(), reason); }

void YamlReader::fail(const YAML::Mark& mark, const std::string& reason) const {
  throw_bad_input("{}:{}: {}", excerpt(origin_), mark.is_null() ? 1 : mark.line + 1, reason);
}

void YamlReader::check_keys(const YAML::Node& map, std::string_view what, const std::vector<std::string>& allowed,
                            const std::vector<std::string>& synonyms) const {
  const std::string keys = fmt::format("{}", fmt::join(allowed, ", "));
  if (!map.IsMap()) fail(map, fmt::format("{} is not 'key: value' pairs; its keys are {}", what, keys));
  std::set<std::string> seen;
  for (const auto& entry : map) {
    if (!entry.first.IsScalar())
      fail(entry.first, fmt::format("a key of {} is not a word; its keys are {}", what, keys));
    const std::string& key = entry.first.Scalar();
    const auto among = [&](const std::vector<std::string>& words) {
      return std::find(words.begin(), words.end(), key) != words.end();
    };
    if (!among(allowed) && !among(synonyms))
      fail(entry.first, fmt::format("unknown key '{}' in {}; allowed keys are {}", excerpt(key), what, keys));
    if (!seen.insert(key).second)
      fail(entry.first, fmt::format("the key '{}' is given twice in {}; give it once", key, what));
  }
}

YAML::Node YamlReader::need(const YAML::Node& map, const std::string& key, std::string_view what) const {
  const YAML::Node node = map[key];
  if (!node) fail(map, fmt::format("{} lacks the key '{}'; add it", what, key));
  return node;
}

std::string YamlReader::text_of(const YAML::Node& node, const std::string& key) const {
  if (!node.IsScalar() || node.Scalar().empty()) fail(node, fmt::format("{} is not a text; write {}: words", key, key));
  // Escapes in quotes ("\0") bring what the file itself may not hold.
  if (find_bad_character(node.Scalar()) != std::string::npos)
    fail(node, fmt::format("{} is {}, which holds a control character; leave it out", key, quoted(node)));
  return node.Scalar();
}

std::string YamlReader::text(const YAML::Node& map, const std::string& key, std::string_view what) const {
  return text_of(need(map, key, what), key);
}

std::string YamlReader::text_or(const YAML::Node& map, const std::string& key, const std::string& otherwise) const {
  return map[key] ? text(map, key, key) : otherwise;
}

std::string YamlReader::source_text(const YAML::Node& map, const std::string& key) const {
  const YAML::Node node = map[key];
  if (!node || node.IsNull()) return "";
  if (!node.IsScalar()) fail(node, fmt::format("{} is not a text", key));
  return node.Scalar();
}

double YamlReader::number_of(const YAML::Node& scalar, std::string_view key) const {
  if (const auto value = scalar.IsScalar() ? parse_finite(scalar.Scalar()) : std::nullopt) return *value;
  fail(scalar, fmt::format("{} is {}, which is not a number (decimal, without zeros or '+' in front); write {}: 1.05",
                           key, quoted(scalar), key));
}

double YamlReader::number(const YAML::Node& map, const std::string& key, std::string_view what) const {
  return number_of(need(map, key, what), key);
}

double YamlReader::number_or(const YAML::Node& map, const std::string& key, double otherwise) const {
  return map[key] ? number(map, key, key) : otherwise;
}

std::int64_t YamlReader::whole_of(const YAML::Node& scalar, std::string_view key) const {
  if (const auto value = scalar.IsScalar() ? parse_whole(scalar.Scalar()) : std::nullopt) return *value;
  fail(scalar, fmt::format("{} is {}, which is not a whole decimal number of at most 63 bits (without zeros or '+' in "
                           "front); write {}: 64",
                           key, quoted(scalar), key));
}

std::int64_t YamlReader::whole(const YAML::Node& map, const std::string& key, std::string_view what) const {
  return whole_of(need(map, key, what), key);
}

std::int64_t YamlReader::whole_or(const YAML::Node& map, const std::string& key, std::int64_t otherwise) const {
  return map[key] ? whole(map, key, key) : otherwise;
}

std::string YamlReader::word(const YAML::Node& map, const std::string& key, const std::vector<std::string>& words,
                             const std::string& otherwise) const {
  const std::string value = text_or(map, key, otherwise);
  if (std::find(words.begin(), words.end(), value) == words.end())
    fail(map[key], fmt::format("{} is '{}'; it is one of {}", key, excerpt(value), fmt::join(words, ", ")));
  return value;
}

std::vector<std::string> YamlReader::texts(const YAML::Node& map, const std::string& key, std::string_view what) const {
  const YAML::Node node = need(map, key, what);
  if (!node.IsSequence() || node.size() == 0)
    fail(node, fmt::format("{} is {}; write {}: [one, two]", key, node.IsSequence() ? "empty" : "not a list", key));
  std::vector<std::string> values;
  for (const YAML::Node& item : node) values.push_back(text_of(item, "an item of " + key));
  return values;
}

std::vector<YAML::Node> YamlReader::items(const YAML::Node& map, const std::string& key, std::string_view what,
                                          std::string_view form) const {
  const YAML::Node list = need(map, key, what);
  if (!list.IsSequence()) fail(list, fmt::format("{} is not a list; write '- {}' lines under it", key, form));
  if (list.size() == 0) fail(list, fmt::format("{} is empty; give at least one '- {}'", key, form));
  return {list.begin(), list.end()};
}

}  // namespace flashcore
