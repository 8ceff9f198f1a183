#pragma once
// When another trial of a search is expected to gain less than it costs. docs/economics.md derives the model.

#include <optional>
#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore {

struct StopLoss {
  double seconds_per_percent = 0;  // what a percent of speed is worth, in seconds of the machine
};
// From money: what a percent is worth, over what an hour of the machine costs.
constexpr StopLoss stop_loss_of_money(double worth, double price_per_hour) { return {3600 * worth / price_per_hour}; }

// No verdict before so many trials, and never from fewer: the window of the recent ones.
inline constexpr int kStopLossWindow = 16;

// What the next trial of a search is expected to gain, from those before it.
struct ExpectedGain {
  int trials = 0, window = 0;
  int records = 0;           // in the window: trials that were faster than all before them
  double probability = 0;    // that the next one is
  double size_percent = 0;   // by how much, if it is
  double trial_seconds = 0;  // what it costs: the mean of those in the window that say it
  double percent() const { return probability * size_percent; }
  double worth_seconds(const StopLoss& rule) const { return percent() * rule.seconds_per_percent; }
  bool is_loss(const StopLoss& rule) const { return worth_seconds(rule) < trial_seconds; }
  // "24 trials: the next one would be a new best with a probability of 7.1%, by 0.8%; ..."
  std::string sentence(const StopLoss& rule) const;
};

// The trials of one search, in order.
class SearchHistory {
 public:
  // `log_speed`: the logarithm of its speed relative to anything that stays the same; none: it did not pass.
  void add(std::optional<double> log_speed, std::optional<double> seconds);
  // The same from a trial. One that was raced has the speed of the other times its speed-up, so that the clock's drift
  // is no gain; one that says nothing of its speed counts as one that did not pass.
  void add(const Trial& trial);
  // None while there are too few.
  std::optional<ExpectedGain> next() const;

 private:
  struct Point {
    std::optional<double> log_speed;
    std::optional<double> seconds;  // none: an older flashcore did not say
  };
  std::vector<Point> points_;
  std::vector<std::pair<std::string, double>> speeds_;  // candidate -> log speed
};

}  // namespace flashcore
