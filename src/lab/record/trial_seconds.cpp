#include "lab/record/trial_seconds.h"

#include <nlohmann/json.hpp>

namespace flashcore {

void to_json(nlohmann::json& j, const TrialSeconds& s) { j = {{"device", s.device}, {"host", s.host}}; }

void from_json(const nlohmann::json& j, TrialSeconds& s) {
  j.at("device").get_to(s.device);
  j.at("host").get_to(s.host);
}

void GateClock::enter(Gate gate) {
  done_ = read();
  gate_ = gate;
  since_ = Clock::now();
}

TrialSeconds GateClock::read() const {
  TrialSeconds all = done_;
  if (!since_) return all;
  const double seconds = std::chrono::duration<double>(Clock::now() - *since_).count();
  (uses_device(gate_) ? all.device : all.host) += seconds;
  return all;
}

}  // namespace flashcore
