#include "lab/tune/user_table.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "kernels/family.h"
#include "kernels/tuned_table.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {

void check_user_table() {
  const std::filesystem::path path = user_table_path();
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) parse_tuned_table(read_file(path), path.string());
}

std::size_t enter_user_table(const std::vector<Trial>& winners) {
  if (winners.empty()) return 0;
  const std::filesystem::path path = user_table_path();
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw_environment("cannot create the folder {} of the tuned table: {}; set FLASHCORE_TUNED to a file elsewhere",
                      path.parent_path().string(), error.message());
  // Two runs that end at once: the later one reads what the earlier one wrote.
  const FileLock lock(path.string() + ".lock");
  nlohmann::json table = nlohmann::json::object();
  if (std::filesystem::exists(path)) {
    table = parse_tuned_table(read_file(path), path.string());
  }
  for (const Trial& winner : winners) {
    if (is_wrong_on_purpose(winner.family)) throw_bad_input("{} {}", winner.candidate(), kWrongIsNoCandidate);
    nlohmann::json& of_device = table[winner.device.key];
    if (!of_device.is_object()) of_device = nlohmann::json::object();  // dispatch could not read it either
    of_device[PlacedProblem(winner.problem.problem(), Layout::kBhsd).portable()] = winner.candidate();
  }
  write_file_atomically(path, table.dump(1) + "\n");
  return winners.size();
}

}  // namespace flashcore
