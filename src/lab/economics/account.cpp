#include "lab/economics/account.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lab/tune/facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

void add_trial(Cost& cost, const Trial& trial) {
  ++cost.trials;
  if (trial.seconds) cost.seconds += *trial.seconds;
  else ++cost.unknown;
}

bool searches(Phase phase) { return phase == Phase::kDefault || phase == Phase::kSearch || phase == Phase::kHoldout; }

// What a run gained over a baseline is its winner's lead: a finalist that luck may have put ahead is no gain.
std::optional<Trial> winner_of(const std::vector<Trial>& heldout, const std::string& baseline) {
  std::optional<Trial> winner = choose_winner(heldout, baseline);
  if (!winner || !winner->comparison) return std::nullopt;
  return winner;
}

std::vector<Gain> gains_of(const std::vector<const Trial*>& trials) {
  struct Runs {
    std::string latest;
    std::map<std::string, std::vector<Trial>> heldout;  // two searches at once leave theirs in turns
  };
  std::map<std::pair<std::string, std::string>, Runs> runs;  // by problem and baseline
  for (const Trial* t : trials) {
    if (t->phase != Phase::kHoldout || !t->comparison) continue;
    Runs& kept = runs[{t->problem.id(), t->comparison->against}];
    // A later run measured again what an earlier one found; its word counts, also that nothing was gained.
    kept.latest = t->run;
    kept.heldout[t->run].push_back(*t);
  }
  std::vector<Gain> gains;
  for (const auto& [key, kept] : runs) {
    const std::optional<Trial> winner = winner_of(kept.heldout.at(kept.latest), key.second);
    if (!winner) continue;
    gains.push_back(
        {key.first, winner->problem_name, winner->candidate(), key.second, 100 * (winner->comparison->speedup - 1)});
  }
  return gains;
}

json cost_json(const Cost& cost, std::optional<double> price) {
  return {{"trials", cost.trials},
          {"device_seconds", cost.seconds.device},
          {"host_seconds", cost.seconds.host},
          {"trials_without_seconds", cost.unknown},
          {"money", price ? json(cost.money(*price)) : json()}};
}

template <class Word>
json costs_json(const char* key, const std::map<Word, Cost>& costs, std::optional<double> price) {
  json out = json::array();
  for (const auto& [word, cost] : costs) {
    json row = cost_json(cost, price);
    row[key] = to_string(word);
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

double Account::gained_percent() const {
  double sum = 0;
  for (const Gain& gain : gains) sum += gain.percent;
  return sum;
}

std::optional<double> Account::seconds_per_percent() const {
  const double gained = gained_percent();
  if (gained <= 0 || search.unknown == search.trials) return std::nullopt;
  return search.seconds.total() / gained;
}

std::string cost_sentence(const Account& account, std::optional<double> price) {
  std::string out;
  if (const auto seconds = account.seconds_per_percent()) {
    out = fmt::format("Each percent gained took {:.1f} s of the machine", *seconds);
    if (price) out += fmt::format(", money {:.4g}", *seconds / 3600 * *price);
    out += ".";
  } else {
    out = account.gains.empty()
              ? "No search had a winner that was judged FASTER than its baseline, so no percent has a cost."
              : "The search's trials do not say their seconds, so no percent has a cost.";
  }
  if (account.total.unknown > 0)
    out += fmt::format(
        " {} of {} trials do not say their seconds (an older flashcore stored them), and the sums lack "
        "them.",
        account.total.unknown, account.total.trials);
  return out;
}

std::vector<Account> accounts_of(const std::vector<Trial>& trials) {
  std::vector<Account> accounts;
  std::map<std::string, std::vector<const Trial*>> by_device;
  for (const Trial& t : trials) {
    auto& of_device = by_device[t.device.key];
    if (of_device.empty()) {
      accounts.emplace_back().device_key = t.device.key;
      accounts.back().device_name = t.device.name;
    }
    of_device.push_back(&t);
  }
  for (Account& account : accounts) {
    const auto& of_device = by_device.at(account.device_key);
    for (const Trial* t : of_device) {
      add_trial(account.total, *t);
      if (searches(t->phase)) add_trial(account.search, *t);
      add_trial(account.by_phase[t->phase], *t);
      add_trial(account.by_end[t->ended], *t);
    }
    account.gains = gains_of(of_device);
  }
  return accounts;
}

json account_json(const Account& account, std::optional<double> price) {
  json gains = json::array();
  for (const Gain& gain : account.gains)
    gains.push_back({{"problem", gain.problem_id},
                     {"name", gain.problem_name},
                     {"candidate", gain.candidate},
                     {"against", gain.against},
                     {"percent", gain.percent}});
  const auto per_percent = account.seconds_per_percent();
  const json money = per_percent && price ? json(*per_percent / 3600 * *price) : json();
  return {{"device", account.device_key},
          {"name", account.device_name},
          {"total", cost_json(account.total, price)},
          {"phases", costs_json("phase", account.by_phase, price)},
          {"verdicts", costs_json("verdict", account.by_end, price)},
          {"gains", gains},
          {"gained_percent", account.gained_percent()},
          {"seconds_per_percent", per_percent ? json(*per_percent) : json()},
          {"money_per_percent", money}};
}

}  // namespace flashcore
