#pragma once
// What the trials of a store cost and what they gained: pure functions. docs/economics.md explains the figures.

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore {

struct Cost {
  int trials = 0;
  TrialSeconds seconds;
  int unknown = 0;  // trials that do not say their seconds: an older flashcore stored them
  double device_minutes() const { return seconds.device / 60; }
  double host_minutes() const { return seconds.host / 60; }
  // Of an hour of the machine. It is paid for while the compiler works, too.
  double money(double price_per_hour) const { return seconds.total() / 3600 * price_per_hour; }
};

// What a tuning run found for one problem: its winner, by the rule of choose_winner() (tune/facts.h).
struct Gain {
  std::string problem_id, problem_name, candidate, against;
  double percent = 0;
};

struct Account {
  std::string device_key, device_name;
  Cost total;
  Cost search;  // of the trials that look for something faster: default, search, holdout
  std::map<Phase, Cost> by_phase;
  std::map<Ended, Cost> by_end;
  // Of each problem and each baseline that candidates were held against; the latest run's where several did.
  std::vector<Gain> gains;
  double gained_percent() const;  // their sum
  // Seconds of `search` for each percent gained; none where nothing was gained.
  std::optional<double> seconds_per_percent() const;
};

// One per device, in the order in which devices first appear.
std::vector<Account> accounts_of(const std::vector<Trial>& trials);

// "Each percent gained took 12.3 s of the machine." and the like, with what the sums lack.
std::string cost_sentence(const Account& account, std::optional<double> price_per_hour = std::nullopt);

// `price_per_hour`: in any currency; none: no money is named.
nlohmann::json account_json(const Account& account, std::optional<double> price_per_hour);

}  // namespace flashcore
