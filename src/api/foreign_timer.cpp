#include "api/foreign_timer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "device/cuda/cuda_timer.h"
#include "device/repeated_sample.h"

namespace flashcore::api {
namespace {

constexpr double kLongestMs = 60'000;

void check_duration(const char* name, double value, double longest) {
  if (!(value >= 0 && value <= longest)) throw_bad_input("{} is {}; allowed are 0 to {}", name, value, longest);
}

ForeignWork read_work(const fc_timed_work* work) {
  if (!work) throw_bad_input("work is null; give an fc_timed_work that began as FC_TIMED_WORK_INIT");
  if (work->struct_size != sizeof(fc_timed_work))
    throw_bad_input("work->struct_size is {}; this library's fc_timed_work has {} bytes: begin with FC_TIMED_WORK_INIT",
                    work->struct_size, sizeof(fc_timed_work));
  if (work->launches < 1) throw_bad_input("work->launches is {}; give at least 1", work->launches);
  check_duration("work->sample_us", work->sample_us, 1e3 * kLongestMs);
  ForeignWork foreign{.graph = work->graph, .launches = work->launches, .sample_us = work->sample_us};
  if (work->call)
    foreign.call = [call = work->call, user = work->user] {
      if (const int code = call(user); code != 0) throw_bad_input("the timed function returned {} instead of 0", code);
    };
  return foreign;
}

}  // namespace

ForeignTimer::ForeignTimer(std::shared_ptr<Context> context, const fc_timed_work* work)
    : context_(std::move(context)), timer_(context_->device().make_foreign_timer(read_work(work))) {}

Sample ForeignTimer::sample(double warm_up_ms, double measure_ms) {
  check_duration("warm_up_ms", warm_up_ms, kLongestMs);
  check_duration("measure_ms", measure_ms, kLongestMs);
  const std::lock_guard lock(mutex_);
  return sample_for([this] { return timer_->sample(); }, warm_up_ms, measure_ms,
                    [this] { return context_->device().now_seconds(); });
}

int ForeignTimer::launches_for(double sample_us) {
  check_duration("sample_us", sample_us, 1e3 * kLongestMs);
  if (!context_->on_gpu()) return timer_->launches_per_sample();
  double fastest_us = sample(0, 0).time_us;
  for (int i = 0; i < 2; ++i) fastest_us = std::min(fastest_us, sample(0, 0).time_us);
  return cuda::choose_launches(fastest_us, sample_us > 0 ? sample_us : cuda::kDefaultSampleUs);
}

}  // namespace flashcore::api
