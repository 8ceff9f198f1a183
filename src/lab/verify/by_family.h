#pragma once
// What files of many cases say for each kernel family: how many passed, and what those were compiled from.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "core/hash.h"
#include "lab/verify/judged_file.h"

namespace flashcore {

struct Counts {
  std::int64_t passed = 0, failed = 0;
  void add(bool has_passed) { ++(has_passed ? passed : failed); }
};
using CountsBy = std::map<std::string, Counts>;
// {"sm90_fwd": {"passed": 12, "failed": 0}, ...}
nlohmann::json json_of(const CountsBy& counts);

// "sm90_fwd" of "sm90_fwd:block_m=128,...".
std::string family_of(const std::string& candidate);

// One hash for each family, of what all of its cases are compiled from and how they are launched: a file of thousands
// of rows need not repeat what most of them share. Cases are added in order of their index.
class FamilySources {
 public:
  void add(const std::string& candidate, const PlacedProblem& problem, const DeviceLimits& limits);
  std::map<std::string, std::string> hashes() const;

  // Whether the file's "sources" are these. A family in `redrawn` is stale already, for its cases are others now.
  void compare(JudgedFile& file, const std::set<std::string>& redrawn) const;

 private:
  std::map<std::string, Hasher> hashers_;
};

}  // namespace flashcore
