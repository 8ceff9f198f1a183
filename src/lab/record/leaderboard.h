#pragma once
// Leaderboard: best per problem and device, from held-out trials only.

#include <string>
#include <vector>

#include "lab/record/freshness.h"
#include "lab/record/trial.h"

namespace flashcore {

struct LeaderboardRow {
  std::string device_key, problem_id, problem_name;
  // The fastest, all that tie with it, the others; the latest held-out trial of each candidate. Both by speed-up where
  // all were raced against one of them (or against the same baseline), by median time otherwise.
  std::vector<Trial> standing;
  int ties = 0;        // how many are indistinguishable from the first (intervals overlap): the next so many
  bool stale = false;  // none of its trials is current
};
// Trials that are not held-out, not correct or without a time are left out. Where a problem has trials of the current
// source, older ones are left out too; where it has none, the old ones are shown, marked stale. Rows by device, then in
// the order in which problems first appear.
std::vector<LeaderboardRow> leaderboard(const std::vector<Trial>& trials, const IsCurrent& is_current);

}  // namespace flashcore
