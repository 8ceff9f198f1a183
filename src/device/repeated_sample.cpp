#include "device/repeated_sample.h"

namespace flashcore {

Sample sample_for(const std::function<Sample()>& sampler, double warm_up_ms, double measure_ms,
                  const std::function<double()>& now_seconds) {
  const auto milliseconds_since = [&](double start) { return 1e3 * (now_seconds() - start); };
  double start = now_seconds();
  while (milliseconds_since(start) < warm_up_ms) sampler();
  Sample mean;
  int samples = 0;
  start = now_seconds();
  do {
    const Sample one = sampler();
    mean.time_us += one.time_us;
    mean.clock_mhz += one.clock_mhz;
    ++samples;
  } while (milliseconds_since(start) < measure_ms);
  mean.time_us /= samples;
  mean.clock_mhz /= samples;
  return mean;
}

}  // namespace flashcore
