#include "lab/tune/facts.h"

#include <algorithm>
#include <set>

#include "lab/record/checks.h"
#include "lab/record/funnel_stage.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

// Chance that any of the finalists beats the default by luck.
constexpr double kAlpha = 0.05;

const Trial* fastest_of(const std::vector<Trial>& trials, const std::string& candidate) {
  const Trial* best = nullptr;
  for (const Trial& t : trials)
    if (t.candidate() == candidate && is_ranked(t) && (!best || t.timing->p50_us < best->timing->p50_us)) best = &t;
  return best;
}

// p of a difference, after the first processes, beyond which the others are not worth their time: a candidate that is
// really 2% faster is given up in one of a hundred runs where processes differ by 0.5%.
constexpr double kHopeless = 0.3;

}  // namespace

bool may_win(const Comparison& comparison) { return comparison.speedup > 1 && comparison.p_value < kHopeless; }

void count_funnel(const std::vector<Trial>& trials, TuneResult::Entry& entry) {
  for (const Trial& t : trials) {
    if (t.phase != Phase::kDefault && t.phase != Phase::kSearch) continue;
    const FunnelStage stage = funnel_stage_of(t);
    ++entry.proposed;
    entry.valid += stage >= FunnelStage::kValid;
    entry.compiled += stage >= FunnelStage::kCompiled;
    entry.correct += stage >= FunnelStage::kCorrect;
    entry.raced += stage >= FunnelStage::kRaced;
    entry.led += stage >= FunnelStage::kLed;
  }
}

std::vector<Trial> choose_finalists(const std::vector<Trial>& trials, const std::string& baseline, int count) {
  std::vector<Trial> ranked;
  for (const Trial& t : trials)
    if (is_ranked(t) && t.candidate() != baseline) ranked.push_back(t);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Trial& a, const Trial& b) { return a.timing->p50_us < b.timing->p50_us; });
  std::vector<Trial> chosen;
  std::set<std::string> seen;
  for (Trial& t : ranked)
    if (static_cast<int>(chosen.size()) < count && seen.insert(t.candidate()).second) chosen.push_back(std::move(t));
  return chosen;
}

std::optional<Trial> choose_winner(const std::vector<Trial>& heldout, const std::string& baseline) {
  std::vector<const Trial*> challengers;
  std::vector<double> p_values;
  const Trial* winner = nullptr;
  for (const Trial& t : heldout) {
    if (!is_ranked(t)) continue;
    if (t.candidate() == baseline) {
      winner = &t;
    } else if (t.comparison && t.comparison->blocks > 0) {
      challengers.push_back(&t);
      // Who was given up still counts among those that luck could have chosen.
      p_values.push_back(t.comparison->processes >= kWinnerProcesses ? t.comparison->p_value : 1);
    }
  }
  const std::vector<double> adjusted = holm(p_values);
  double best = 1;
  for (std::size_t i = 0; i < challengers.size(); ++i) {
    const Comparison& c = *challengers[i]->comparison;
    // A lead within the margin is none, however sure it is: dispatch does not change for it.
    if (c.verdict != SpeedVerdict::kFaster || c.ci95_low <= 1 || adjusted[i] >= kAlpha || c.speedup <= best) continue;
    best = c.speedup;
    winner = challengers[i];
  }
  return winner ? std::optional(*winner) : std::nullopt;
}

std::optional<Trial> closest_to_win(const std::vector<Trial>& heldout, const std::string& baseline) {
  const Trial* closest = nullptr;
  for (const Trial& t : heldout) {
    if (!is_ranked(t) || t.candidate() == baseline || !t.comparison || t.comparison->blocks == 0) continue;
    if (t.comparison->speedup > (closest ? closest->comparison->speedup : 1)) closest = &t;
  }
  return closest ? std::optional(*closest) : std::nullopt;
}

double shrinkage_of(const std::vector<Trial>& discovery, const Trial& winner, const std::string& baseline) {
  const Trial* found = fastest_of(discovery, winner.candidate());
  const Trial* base = fastest_of(discovery, baseline);
  if (!found || !base || !winner.comparison || winner.candidate() == baseline) return 0;
  const double discovered = base->timing->p50_us / found->timing->p50_us;
  return (discovered - winner.comparison->speedup) / discovered;
}

std::vector<std::string> inert_fields(const ConfigSpace& space,
                                      const std::vector<std::pair<ConfigValues, std::string>>& identities) {
  if (!is_on(Check::kInertParameters)) return {};
  const std::size_t count = space.fields().size();
  std::vector<int> equal(count), different(count);
  for (std::size_t a = 0; a < identities.size(); ++a)
    for (std::size_t b = a + 1; b < identities.size(); ++b) {
      std::size_t differing = 0, field = 0;
      for (std::size_t f = 0; f < count; ++f)
        if (identities[a].first[f] != identities[b].first[f]) {
          ++differing;
          field = f;
        }
      if (differing != 1) continue;
      ++(identities[a].second == identities[b].second ? equal : different)[field];
    }
  std::vector<std::string> inert;
  for (std::size_t f = 0; f < count; ++f)
    if (equal[f] > 0 && different[f] == 0) inert.push_back(space.fields()[f].name);
  return inert;
}

}  // namespace flashcore
