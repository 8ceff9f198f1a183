#pragma once
// Tables of tuned candidates, ours and users': {"<device key>": {"<problem id>": "<candidate>"}}.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem.h"

namespace flashcore {

// A table is read whole: Error kBadInput, naming `origin`, for what is no JSON object.
nlohmann::json parse_tuned_table(std::string_view text, const std::string& origin);

struct TunedEntry {
  std::string id;
  Problem problem;
  std::string candidate;
  bool of_user = false;
};
// Those of one device. An entry that cannot be read is passed over and named in `faults`.
void add_tuned_entries(const nlohmann::json& table, const std::string& device_key, bool of_user,
                       std::vector<TunedEntry>& entries, std::vector<std::string>& faults);

}  // namespace flashcore
