#pragma once
// Leaderboard: best per problem and device, from held-out trials only.

#include <string>
#include <vector>

#include "lab/trial.h"

namespace flashcore {

struct LeaderboardRow {
  std::string device_key, problem_id, problem_name;
  std::vector<Trial> standing;  // fastest first; the latest held-out trial of each candidate
  int ties = 0;                 // how many of the next are indistinguishable from the first (intervals overlap)
  bool stale = false;           // measured on another source_hash than the current one
};
std::vector<LeaderboardRow> leaderboard(const std::vector<Trial>& trials, const std::string& current_source_hash);

}  // namespace flashcore
