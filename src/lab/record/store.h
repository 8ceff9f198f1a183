#pragma once
// Store: trials in SQLite (WAL). One transaction per trial; kill -9 loses at most the trial in flight; several
// processes may write at once.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore {

struct TrialQuery {
  std::optional<std::string> run = {}, problem_id = {}, device_key = {}, family = {};
  std::optional<Phase> phase = {};
};

class Store {
 public:
  // Creates the file and its folder if missing. Error kEnvironment if it cannot be written; kBadInput if it is not a
  // flashcore store or comes from a newer version.
  // To read only: the file must exist, nothing is created or changed, and neither it nor its folder need be writable.
  enum class Access { kWrite, kRead };
  explicit Store(const std::filesystem::path& path, Access access = Access::kWrite);
  ~Store();
  // Returns the id given. Error kBadInput for a kernel that is wrong on purpose (wrong_on_purpose.h).
  std::int64_t append(const Trial& trial);
  // The same for whoever has measured and must tell it all the same: where the file cannot be written to (locked for
  // good, a full disk) it gives 0, fault() says why, and nothing is appended from then on.
  std::int64_t append_or_note(const Trial& trial);
  const std::string& fault() const;  // empty: all was stored
  // By id. A trial that cannot be read, or is of a kernel that is wrong on purpose, is passed over and named in
  // `damaged` ("trial 17 (...reason...)"); without `damaged` it is Error kBadInput.
  std::vector<Trial> query(const TrialQuery& query, std::vector<std::string>* damaged = nullptr) const;
  std::filesystem::path path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace flashcore
