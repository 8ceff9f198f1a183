#include "cli/stored.h"

#include <filesystem>

#include "core/error.h"

namespace flashcore::cli {

std::vector<Trial> stored_trials(const std::string& store, const TrialQuery& query) {
  std::error_code error;
  if (!std::filesystem::exists(store, error))
    throw_bad_input("--store {}: there is no such file; run flashcore tune first, or name another store", store);
  return Store(store).query(query);
}

}  // namespace flashcore::cli
