#include "lab/record/leaderboard.h"

#include <algorithm>
#include <map>
#include <optional>

namespace flashcore {
namespace {

// Speed-up over the baseline all of a row share; the baseline's own is 1.
struct Relative {
  double speedup, low, high;
};

std::optional<std::string> common_baseline(const std::vector<Trial>& standing) {
  std::optional<std::string> baseline;
  for (const Trial& t : standing) {
    if (!t.comparison) continue;
    if (baseline && *baseline != t.comparison->against) return std::nullopt;
    baseline = t.comparison->against;
  }
  for (const Trial& t : standing)
    if (!t.comparison && (!baseline || t.candidate() != *baseline)) return std::nullopt;
  return baseline;
}

Relative relative_of(const Trial& t) {
  if (!t.comparison) return {1, 1, 1};
  return {t.comparison->speedup, t.comparison->ci95_low, t.comparison->ci95_high};
}

bool overlap(double a_low, double a_high, double b_low, double b_high) { return a_low <= b_high && b_low <= a_high; }

void rank(LeaderboardRow& row) {
  const bool relative = common_baseline(row.standing).has_value();
  std::stable_sort(row.standing.begin(), row.standing.end(), [&](const Trial& a, const Trial& b) {
    return relative ? relative_of(a).speedup > relative_of(b).speedup : a.timing->p50_us < b.timing->p50_us;
  });
  const Trial& first = row.standing.front();
  const auto tied = [&](const Trial& t) {
    if (!relative) return overlap(first.timing->p10_us, first.timing->p90_us, t.timing->p10_us, t.timing->p90_us);
    const Relative a = relative_of(first), b = relative_of(t);
    return overlap(a.low, a.high, b.low, b.high);
  };
  // Widths differ: who has a wide interval may tie from behind somebody who does not.
  const auto second = row.standing.begin() + 1;
  row.ties = static_cast<int>(std::stable_partition(second, row.standing.end(), tied) - second);
}

// `trials`: ranked held-out trials of one problem on one device, oldest first.
LeaderboardRow row_of(const std::vector<const Trial*>& trials, const IsCurrent& is_current) {
  std::vector<const Trial*> current;
  for (const Trial* t : trials)
    if (is_current(*t)) current.push_back(t);
  const bool fresh = !current.empty();
  LeaderboardRow row;
  row.stale = !fresh;
  row.device_key = trials.back()->device.key;
  row.problem_id = trials.back()->problem.id();
  row.problem_name = trials.back()->problem_name;
  std::map<std::string, const Trial*> latest;
  for (const Trial* t : fresh ? current : trials) latest[t->candidate()] = t;
  for (const auto& [candidate, trial] : latest) row.standing.push_back(*trial);
  rank(row);
  return row;
}

}  // namespace

std::vector<LeaderboardRow> leaderboard(const std::vector<Trial>& trials, const IsCurrent& is_current) {
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, std::vector<const Trial*>> groups;
  for (const Trial& t : trials) {
    if (t.phase != Phase::kHoldout || !is_ranked(t)) continue;
    const std::pair key(t.device.key, t.problem.id());
    if (!groups.count(key)) order.push_back(key);
    groups[key].push_back(&t);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<LeaderboardRow> rows;
  for (const auto& key : order) rows.push_back(row_of(groups[key], is_current));
  return rows;
}

}  // namespace flashcore
