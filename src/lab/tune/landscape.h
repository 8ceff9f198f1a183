#pragma once
// A recorded landscape: how every config of a family that was tried on a problem ended, and how long it took. Tuning
// runs replay on it without a GPU, which is how search strategies are tested and compared.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/config_space.h"
#include "lab/record/trial.h"
#include "lab/tune/stop_loss.h"

namespace flashcore {

struct LandscapePoint {
  ConfigValues config;
  Ended ended = Ended::kNotYet;
  std::optional<double> p50_us;  // none: rejected
};
struct Landscape {
  std::string problem_id, device_key, source_hash, family;
  ConfigSpace space;
  ConfigValues first;  // the default config
  std::vector<LandscapePoint> points;
  double best_us() const;  // of all points
};
// {"schema": "flashcore.landscape/1", "landscapes": [...]}; each with "fields", "default" and "points". Error
// kBadInput.
nlohmann::json landscapes_json(const std::vector<Landscape>& landscapes);
std::vector<Landscape> parse_landscapes(const nlohmann::json& document, const std::string& origin);

// From the default and search trials of a store, in their order: one per problem and family that has at least two timed
// configs. Times are relative to the incumbents that candidates were raced against, so that drift is not recorded.
std::vector<Landscape> landscapes_of(const std::vector<Trial>& trials, const DeviceLimits& limits);

struct ReplayOptions {
  std::string strategy = "evolution";
  int budget = 50;  // trials
  std::uint64_t seed = 1;
  double noise = 0.01;  // relative, of one discovery measurement
  int finalists = 5;
  std::optional<StopLoss> stop_loss = {};
  double trial_seconds = 1;  // what each costs
};
struct Replay {
  int trials = 0;
  bool stopped_at_loss = false;     // before its budget was spent
  double found_us = 0;              // true time of what wins after the finalists are measured again
  std::vector<double> best_so_far;  // true time of the incumbent after each trial; infinite before there is one
  double regret(const Landscape& landscape) const { return found_us / landscape.best_us() - 1; }
};
// A whole tuning run on the landscape: the strategy proposes among its points and is told noisy times; the best few are
// measured again with a third of the noise.
Replay replay(const Landscape& landscape, const ReplayOptions& options);

}  // namespace flashcore
