#include "kernels/tuned_table.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "core/operands.h"

namespace flashcore {

nlohmann::json parse_tuned_table(std::string_view text, const std::string& origin) {
  nlohmann::json table = parse_json(text, origin);
  if (!table.is_object())
    throw_bad_input("{} is no tuned table (JSON by device and problem); move it away, and tune again", origin);
  return table;
}

void add_tuned_entries(const nlohmann::json& table, const std::string& device_key, bool of_user,
                       std::vector<TunedEntry>& entries, std::vector<std::string>& faults) {
  const auto found = table.find(device_key);
  if (found == table.end()) return;
  if (!found->is_object()) return faults.push_back(fmt::format("'{}' is no object of problem ids", device_key));
  for (const auto& [id, candidate] : found->items()) {
    try {
      if (!candidate.is_string()) throw_bad_input("its candidate is not a text");
      entries.push_back({id, PlacedProblem::parse(id).problem(), candidate.get<std::string>(), of_user});
    } catch (const Error& e) {
      faults.push_back(fmt::format("'{}': {}", excerpt(id), e.what()));
    }
  }
}

}  // namespace flashcore
