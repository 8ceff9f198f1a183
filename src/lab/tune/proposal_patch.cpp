#include "lab/tune/proposal_patch.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/hash.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxPatchFiles = 64, kMaxPatchBytes = 1 << 20, kMaxReplacements = 1000, kMaxExtended = 64,
                      kMaxPatchPath = 200;

const std::string& inline_text(const json& value, const std::string& what) {
  if (!value.is_string()) throw_bad_input("{} is {}, not a text", what, value.type_name());
  const std::string& text = value.get_ref<const std::string&>();
  if (find_bad_character(text) != std::string::npos)
    throw_bad_input("{} holds a control character or is not UTF-8; give plain source text", what);
  return text;
}

std::string inline_path(const std::string& path, const Patch& patch) {
  const bool plain = path.size() <= kMaxPatchPath && std::all_of(path.begin(), path.end(), [](char c) {
                       return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/';
                     });
  if (!plain || path.empty())
    throw_bad_input("'{}' is no path of a source; give at most {} letters, digits, '_', '.' and '/'", excerpt(path),
                    kMaxPatchPath);
  return patch.full_path(path);
}

void inline_files(const json& files, Patch& patch, std::size_t& bytes) {
  if (!files.is_object()) throw_bad_input("files is {}, not an object of path and text", files.type_name());
  if (files.size() > kMaxPatchFiles)
    throw_bad_input("files has {} entries; at most {} are allowed", files.size(), kMaxPatchFiles);
  for (const auto& [path, value] : files.items()) {
    const std::string& text = inline_text(value, fmt::format("files['{}']", excerpt(path)));
    bytes += text.size();
    if (!patch.files.emplace(inline_path(path, patch), text).second)
      throw_bad_input("files names {} twice, once without its folder; give it once", excerpt(path));
  }
}

void inline_replacements(const json& list, Patch& patch, std::size_t& bytes) {
  constexpr const char* kWants = "give a list of {\"file\", \"from\", \"to\"}";
  if (!list.is_array()) throw_bad_input("replace is {}; {}", list.type_name(), kWants);
  if (list.size() > kMaxReplacements)
    throw_bad_input("replace has {} entries; at most {} are allowed", list.size(), kMaxReplacements);
  for (const json& item : list) {
    if (!item.is_object() || item.size() != 3 || !item.contains("file") || !item.contains("from") ||
        !item.contains("to"))
      throw_bad_input("an entry of replace is {}; {}", excerpt(item.dump(-1, ' ', true)), kWants);
    Patch::Replacement r{inline_path(inline_text(item["file"], "replace: file"), patch),
                         inline_text(item["from"], "replace: from"), inline_text(item["to"], "replace: to")};
    bytes += r.from.size() + r.to.size();
    patch.replace.push_back(std::move(r));
  }
}

void inline_extended(const json& extend, Patch& patch) {
  if (!extend.is_object()) throw_bad_input("extend is {}, not an object of field and values", extend.type_name());
  for (const auto& [field, values] : extend.items()) {
    if (!values.is_array() || values.empty() || values.size() > kMaxExtended)
      throw_bad_input("extend['{}'] is not a list of 1 to {} integers", excerpt(field), kMaxExtended);
    for (const json& value : values) {
      const auto number = value.is_number_integer() ? parse_whole(value.dump()) : std::nullopt;
      if (!number || *number < 0 || *number > std::numeric_limits<int>::max())
        throw_bad_input("extend['{}'] holds {}; use integers from 0 to 2147483647", excerpt(field),
                        excerpt(value.dump(-1, ' ', true)));
      patch.extend[field].push_back(static_cast<int>(*number));
    }
  }
}

}  // namespace

std::optional<Patch> inline_patch(const json& answer, const std::string& family) {
  if (!answer.contains("files") && !answer.contains("replace") && !answer.contains("extend")) return std::nullopt;
  Patch patch;
  patch.family = family;
  patch.trusted = is_code_trusted();
  std::size_t bytes = 0;
  if (answer.contains("files")) inline_files(answer["files"], patch, bytes);
  if (answer.contains("replace")) inline_replacements(answer["replace"], patch, bytes);
  if (answer.contains("extend")) inline_extended(answer["extend"], patch);
  if (bytes > kMaxPatchBytes)
    throw_bad_input("the patch has {} bytes of text; at most {} are allowed", bytes, kMaxPatchBytes);
  if (patch.files.empty() && patch.replace.empty() && patch.extend.empty())
    throw_bad_input("the patch changes nothing; give files, replace or extend");
  if (answer.contains("name")) patch.name = inline_text(answer["name"], "name");
  else patch.name = "p" + Hasher().add(json(patch).dump()).hex().substr(0, 12);
  return patch;
}

}  // namespace flashcore
