#include "lab/record/digest.h"

#include <fmt/format.h>

#include "core/foreign_text.h"
#include "core/hash.h"

namespace flashcore {

std::string digest_of(const nlohmann::json& object) {
  nlohmann::json content = object;
  content.erase(kDigest);
  // As whoever writes the file does: a character that is no UTF-8 becomes U+FFFD.
  return Hasher().add(content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).sha256_hex();
}

void seal(nlohmann::json& object) { object[kDigest] = digest_of(object); }

void seal_results(nlohmann::json& document, bool all_rows) {
  for (nlohmann::json& row : document.at("results"))
    if (row.is_object() && (all_rows || row.contains(kDigest))) seal(row);
  seal(document);
}

std::vector<std::string> find_edited(const nlohmann::json& document) {
  std::vector<std::string> edited;
  for (const nlohmann::json& row : document.at("results")) {
    if (!row.is_object() || seal_of(row) != Seal::kBroken) continue;
    const nlohmann::json id = row.value("problem", nlohmann::json()), name = row.value("name", nlohmann::json());
    edited.push_back(fmt::format("{} ({}): its text is not what the program wrote: its digest is of another one",
                                 excerpt(id.is_string() ? id.get<std::string>() : "?"),
                                 excerpt(name.is_string() ? name.get<std::string>() : "?")));
  }
  if (seal_of(document) == Seal::kBroken && edited.empty())
    edited.emplace_back(
        "the file's text is not what the program wrote: a row was added or taken out, or what is no row has changed");
  return edited;
}

Seal seal_of(const nlohmann::json& object) {
  const auto found = object.find(kDigest);
  if (found == object.end()) return Seal::kNone;
  return *found == nlohmann::json(digest_of(object)) ? Seal::kIntact : Seal::kBroken;
}

}  // namespace flashcore
