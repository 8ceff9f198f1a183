#pragma once
// The SM clock during a sample: cycles over time, both read on the device.

#include <memory>
#include <span>

#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_module.h"
#include "device/cuda/microkernels.h"

namespace flashcore::cuda {

// Median over the SMs that stamped both times of cycles over nanoseconds, in MHz; 0 if there is none. An SM whose clock
// or counter stood still or ran backwards does not count.
double median_clock_mhz(std::span<const Stamp> before, std::span<const Stamp> after);

// A pair of stamp launches around what is timed. They stay outside of the timing events: the work between must not pay
// for them.
class ClockStamps {
 public:
  ClockStamps(std::shared_ptr<const Context> context, std::shared_ptr<const CudaModule> kernel, int multiprocessors);

  // Enqueues the first stamp, which keeps the GPU busy for `hold_us` meanwhile: the host uses that time to enqueue the
  // work, so that the GPU never waits for the host between the events.
  void begin(double hold_us);
  void end();
  double clock_mhz() const;  // waits for the stream

 private:
  void stamp(int which, double hold_us);

  std::shared_ptr<const Context> context_;
  std::shared_ptr<const CudaModule> kernel_;
  std::size_t multiprocessors_;
  CudaBuffer buffer_;  // Stamp[2][multiprocessors]
};

}  // namespace flashcore::cuda
