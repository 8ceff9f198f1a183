#pragma once
// What a trial cost, in wall-clock seconds of the process that ran it.

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "lab/record/outcome.h"

namespace flashcore {

// `device`: of the gates that use the device. The fp64 reference and the pauses between samples are in them, because
// nobody else has the device meanwhile. `host`: of the gates before, the compiler's above all.
struct TrialSeconds {
  double device = 0, host = 0;
  double total() const { return device + host; }
  TrialSeconds& operator+=(const TrialSeconds& other) {
    device += other.device;
    host += other.host;
    return *this;
  }
};
void to_json(nlohmann::json& json, const TrialSeconds& seconds);
void from_json(const nlohmann::json& json, TrialSeconds& seconds);

constexpr bool uses_device(Gate gate) {
  return gate == Gate::kCorrectness || gate == Gate::kPerformance || gate == Gate::kCounters;
}

// Runs while a trial goes through its gates.
class GateClock {
 public:
  void enter(Gate gate);
  TrialSeconds read() const;

 private:
  using Clock = std::chrono::steady_clock;
  TrialSeconds done_;
  Gate gate_ = Gate::kStart;
  std::optional<Clock::time_point> since_;
};

}  // namespace flashcore
