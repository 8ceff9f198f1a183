#pragma once
// A device with a clock of its own, and attention families with planted faults. Time is what the family says it costs,
// plus repeatable noise: tests of timing do not depend on the machine they run on.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/family.h"
#include "kernels/registry.h"

namespace flashcore::test {

struct FakeDeviceOptions {
  double noise = 0.003;   // relative, of one sample
  double drift = 0.0005;  // relative random walk from sample to sample
  Ceilings ceilings{0, 1, 100, 200, 0.1};
  std::string key = "fake";
  std::uint64_t seed = 42;
  double warming = 0;              // relative slowdown from each sample to the next
  double throttle_every_us = 0;    // of virtual time: for half of each such period the clock is lowered; 0: never
  double throttle_slowdown = 0.1;  // while it is
  double outliers = 0;             // share of samples that something interrupts ...
  double outlier_slowdown = 1;     // ... and that take so much longer: 1 is twice
  double placement = 0;            // relative: what the place of a buffer in memory makes of a kernel's time
};

// A machine as one meets them, with the drift of a warming card, a power cap that comes and goes, interruptions and
// places in memory that suit a kernel or do not.
FakeDeviceOptions realistic_device(std::uint64_t seed);

std::unique_ptr<Device> make_fake_device(const FakeDeviceOptions& options = {});

enum class Fault {
  kNone,
  kWrongTail,       // forgets the last partial block of keys
  kMissingMask,     // computes causal problems as full ones
  kMissingRescale,  // keeps old sums when the row maximum grows
  kOutOfBounds,     // writes one element past the end of o
  kLeavesRowUnwritten,
  kWritesFirstCallOnly,
  kReturnsCachedResult,  // remembers its first result for a problem, whatever the inputs
  kMutatesInput,
  kNonDeterministic,  // an error far below any bound, different at each call
  kWritesGaps,        // between the rows of a strided o
  kThreePercentSlower,
  kHalfPercentSlower,
  kTwiceAsSlow,
  kHalvesLargeLogits,  // gives half of o in rows whose largest score is above 40
  kTooFast,            // claims less time than the hardware needs
  kSegfault,
  kHang,
  kDeviceFault,
  kLogsAndAborts,
  kAllEqual,  // 200 configs, all of one cost: nothing to find
};

// Fields block {16, 32, 64}, unroll {1, 2, 4}, spread {0, 1, 2}; block=64 with unroll=4 is infeasible. Cost in virtual
// microseconds: 100 at its best (block=32, unroll=2, spread=1), up to twice that elsewhere. Default: block=16,
// unroll=1, spread=0. `fault`: see above.
std::unique_ptr<Family> make_fake_family(const std::string& name, Fault fault = Fault::kNone);
// Moves the device's clock on: what a launch of a planted family costs.
void spend_us(double us);
// Done at the fake device's next idle(): work of another stream.
void run_when_idle(std::function<void()> work);
double fake_cost_us(const ConfigValues& config);

// One family per fault: "fake_none", "fake_wrong_tail", ... for the life of the object.
class AllFakeFamilies {
 public:
  AllFakeFamilies();

 private:
  std::vector<std::unique_ptr<ScopedFamily>> families_;
};

}  // namespace flashcore::test
