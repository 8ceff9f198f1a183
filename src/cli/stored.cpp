#include "cli/stored.h"

#include <filesystem>

#include "cli/common.h"
#include "core/error.h"

namespace flashcore::cli {

std::vector<Trial> stored_trials(const std::string& store, const TrialQuery& query) {
  std::error_code error;
  if (!std::filesystem::exists(store, error))
    throw_bad_input("--store {}: there is no such file; run flashcore tune first, or name another store", store);
  std::vector<std::string> damaged;
  std::vector<Trial> trials = Store(store, Store::Access::kRead).query(query, &damaged);
  for (const std::string& which : damaged) print_warning(which + " is damaged and passed over");
  return trials;
}

}  // namespace flashcore::cli
