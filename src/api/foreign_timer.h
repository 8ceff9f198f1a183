#pragma once
// The timer of fc_timer_create: work of the caller's, by the device's own timer.

#include <memory>
#include <mutex>

#include "api/context.h"
#include "flashcore/flashcore.h"

namespace flashcore::api {

class ForeignTimer {
 public:
  // Error kBadInput for a struct that is none, and for work that the device cannot time.
  ForeignTimer(std::shared_ptr<Context> context, const fc_timed_work* work);

  Sample sample(double warm_up_ms, double measure_ms);
  int launches_for(double sample_us);
  const Context& context() const { return *context_; }

 private:
  std::shared_ptr<Context> context_;
  std::mutex mutex_;  // one sample at a time
  std::unique_ptr<Timer> timer_;
};

}  // namespace flashcore::api
