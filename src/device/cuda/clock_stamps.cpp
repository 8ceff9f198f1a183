#include "device/cuda/clock_stamps.h"

#include <algorithm>
#include <cstring>

namespace flashcore::cuda {

double median_clock_mhz(std::span<const Stamp> before, std::span<const Stamp> after) {
  std::vector<double> clocks;
  for (std::size_t sm = 0; sm < std::min(before.size(), after.size()); ++sm) {
    if (before[sm].nanoseconds == 0 || after[sm].nanoseconds <= before[sm].nanoseconds ||
        after[sm].cycles <= before[sm].cycles)
      continue;
    clocks.push_back(1e3 * static_cast<double>(after[sm].cycles - before[sm].cycles) /
                     static_cast<double>(after[sm].nanoseconds - before[sm].nanoseconds));
  }
  if (clocks.empty()) return 0;
  const auto middle = clocks.begin() + static_cast<std::ptrdiff_t>(clocks.size() / 2);
  std::nth_element(clocks.begin(), middle, clocks.end());
  return *middle;
}

ClockStamps::ClockStamps(std::shared_ptr<const Context> context, std::shared_ptr<const CudaModule> kernel,
                         int multiprocessors)
    : context_(std::move(context)),
      kernel_(std::move(kernel)),
      multiprocessors_(static_cast<std::size_t>(multiprocessors)),
      buffer_(context_, 2 * multiprocessors_ * sizeof(Stamp), 0) {}

void ClockStamps::begin(double hold_us) {
  context_->check(context_->use().memset_bytes(buffer_.address(), 0, buffer_.size(), context_->stream()),
                  "clearing the clock stamps");
  stamp(0, hold_us);
}

void ClockStamps::end() { stamp(1, 0); }

void ClockStamps::stamp(int which, double hold_us) {
  const StampParams params{buffer_.address() + static_cast<std::size_t>(which) * multiprocessors_ * sizeof(Stamp),
                           static_cast<std::uint32_t>(multiprocessors_), static_cast<std::uint32_t>(hold_us * 1e3)};
  LaunchSpec spec;
  // As many blocks as SMs, on an idle GPU: the scheduler gives each SM one. Forcing that with a large shared memory
  // would make every SM change its split of L1 and shared memory inside the timed interval.
  spec.grid.x = static_cast<unsigned>(multiprocessors_);
  spec.block.x = 32;
  spec.params.resize(sizeof(params));
  std::memcpy(spec.params.data(), &params, sizeof(params));
  kernel_->launch(spec);
}

double ClockStamps::clock_mhz() const {
  std::vector<Stamp> stamps(2 * multiprocessors_);
  download(*context_, stamps.data(), buffer_.address(), buffer_.size());
  const std::span<const Stamp> all(stamps);
  return median_clock_mhz(all.first(multiprocessors_), all.last(multiprocessors_));
}

}  // namespace flashcore::cuda
