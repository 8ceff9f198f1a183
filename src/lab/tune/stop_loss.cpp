#include "lab/tune/stop_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace flashcore {
namespace {

constexpr std::size_t kFewestSpeeds = 4;

double percent_of(double log_ratio) { return 100 * std::expm1(log_ratio); }

// The mean excess of the best quarter over its edge. The excesses over a high threshold are nearly exponential, and an
// exponential tail has no memory: beyond the best so far it goes on with the same mean.
double tail_of(std::vector<double> speeds) {
  const std::size_t quarter = std::max<std::size_t>(2, speeds.size() / 4);
  if (speeds.size() <= quarter) return 0;
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  double excess = 0;
  for (std::size_t i = 0; i < quarter; ++i) excess += speeds[i] - speeds[quarter];
  return excess / static_cast<double>(quarter);
}

}  // namespace

std::string ExpectedGain::sentence(const StopLoss& rule) const {
  return fmt::format(
      "{} trials, {} of the last {} a new best: the next is one with a probability of {:.1f}%, by {:.2f}%, which is "
      "worth {:.2g} s of the machine; a trial costs {:.2g} s",
      trials, records, window, 100 * probability, size_percent, worth_seconds(rule), trial_seconds);
}

void SearchHistory::add(std::optional<double> log_speed, std::optional<double> seconds) {
  points_.push_back({log_speed, seconds});
}

void SearchHistory::add(const Trial& trial) {
  std::optional<double> speed;
  if (trial.comparison && trial.comparison->speedup > 0) {
    const auto other = std::find_if(speeds_.begin(), speeds_.end(),
                                    [&](const auto& known) { return known.first == trial.comparison->against; });
    if (other != speeds_.end()) speed = other->second + std::log(trial.comparison->speedup);
  }
  if (!speed && is_ranked(trial) && trial.timing->p50_us > 0) speed = -std::log(trial.timing->p50_us);
  if (speed) speeds_.emplace_back(trial.candidate(), *speed);
  add(speed, trial.seconds ? std::optional(trial.seconds->total()) : std::nullopt);
}

std::optional<ExpectedGain> SearchHistory::next() const {
  const auto count = static_cast<int>(points_.size());
  // Half of the search: what it proposes now is not what it proposed at first.
  const int window = std::max(kStopLossWindow, count / 2);
  if (count < window) return std::nullopt;
  ExpectedGain gain{.trials = count, .window = window};
  double best = -std::numeric_limits<double>::infinity(), gained = 0;
  std::vector<double> recent;
  int known_costs = 0;
  for (int i = 0; i < count; ++i) {
    const Point& point = points_[static_cast<std::size_t>(i)];
    const bool in_window = i >= count - window;
    if (in_window && point.seconds) {
      gain.trial_seconds += *point.seconds;
      ++known_costs;
    }
    if (!point.log_speed) continue;
    if (in_window) recent.push_back(*point.log_speed);
    if (*point.log_speed > best) {
      if (in_window && std::isfinite(best)) {
        ++gain.records;
        gained += *point.log_speed - best;
      }
      best = *point.log_speed;
    }
  }
  // A few trials that passed tell no spread, and without any seconds there is no cost: no verdict.
  if (known_costs == 0 || recent.size() < kFewestSpeeds) return std::nullopt;
  gain.trial_seconds /= known_costs;
  // Laplace's rule of succession: without a record, 1 / (window + 2), as of equal chances it would be.
  gain.probability = (gain.records + 1.0) / (window + 2.0);
  const double of_records = gain.records > 0 ? gained / gain.records : 0;
  gain.size_percent = percent_of(std::max(of_records, tail_of(recent)));
  return gain;
}

}  // namespace flashcore
