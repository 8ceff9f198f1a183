#include "lab/tune/proposal.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "lab/record/wrong_on_purpose.h"
#include "lab/tune/proposal_patch.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kForm =
    R"(give {"candidate": "family:key=value,..."} or {"family": "...", "config": {"key": value}}, and with a kernel )"
    R"(also "patch": "folder", or "name", "files", "replace" and "extend")";
constexpr std::array<std::string_view, 9> kKeys = {"candidate", "family",  "config", "patch",  "name",
                                                   "files",     "replace", "extend", "comment"};

constexpr std::size_t kMaxText = 4096;

std::string text_of(const json& answer, const char* key) {
  const auto found = answer.find(key);
  if (found == answer.end() || !found->is_string()) throw_bad_input("'{}' is missing or not a text; {}", key, kForm);
  const std::string text = found->get<std::string>();
  if (text.size() > kMaxText)
    throw_bad_input("the {} has {} characters; at most {} are allowed", key, text.size(), kMaxText);
  if (find_bad_character(text) != std::string::npos)
    throw_bad_input("'{}' is '{}', which holds a control character; {}", key, excerpt(text), kForm);
  return text;
}

std::string config_of(const json& answer) {
  const auto config = answer.find("config");
  if (config == answer.end()) return "";
  if (!config->is_object()) throw_bad_input("config is {}, not an object; {}", config->type_name(), kForm);
  std::string text;
  for (const auto& [key, value] : config->items()) {
    // The library's own conversion cuts 1.5 to 1, 2^32 + 1 to 1, and takes true for 1.
    const auto number = value.is_number_integer() ? parse_whole(value.dump()) : std::nullopt;
    if (!number || *number != static_cast<int>(*number))
      throw_bad_input("{} is {}, not an integer of 32 bits; {}", excerpt(key), excerpt(value.dump()), kForm);
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key, *number);
  }
  return text;
}

}  // namespace

std::optional<Proposal> parse_proposal(std::string_view line) {
  const json answer = parse_json(line, "the answer");
  if (!answer.is_object()) throw_bad_input("the answer is {}, not an object; {}", answer.type_name(), kForm);
  if (const auto done = answer.find("done"); done != answer.end() && *done == true) return std::nullopt;
  // A misspelt "replace" would be measured as the kernel without its patch.
  for (const auto& [key, value] : answer.items())
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      throw_bad_input("'{}' is no key of an answer; {}", excerpt(key), kForm);
  Proposal proposal;
  std::string family, config;
  if (answer.contains("candidate")) {
    const std::string text = text_of(answer, "candidate");
    const std::size_t colon = std::min(text.find(':'), text.size());
    family = text.substr(0, colon);
    config = text.substr(std::min(colon + 1, text.size()));
  } else {
    family = text_of(answer, "family");
    config = config_of(answer);
  }
  proposal.patch = inline_patch(answer, family);
  if (answer.contains("patch")) {
    if (proposal.patch)
      throw_bad_input("'patch' names a folder, and the answer brings a patch itself; give one of them");
    const std::filesystem::path folder = text_of(answer, "patch");
    proposal.patch = load_patch(folder, family, folder.filename().string());
  }
  if (proposal.patch) family = proposal.patch->family_name();
  else if (answer.contains("name")) throw_bad_input("'name' names a patch, and there is none; {}", kForm);
  proposal.candidate = family + (config.empty() ? "" : ":" + config);
  if (is_wrong_on_purpose(proposal.candidate))
    throw_bad_input(
        "'{}' is no candidate: names of patches that begin with {} are of variants that are wrong on purpose; use "
        "another name",
        excerpt(family), kWrongPrefix);
  return proposal;
}

}  // namespace flashcore
