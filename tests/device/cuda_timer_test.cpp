#include "device/cuda/cuda_timer.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "device/fake_driver.h"

namespace flashcore::cuda {
namespace {

using flashcore::testing::FakeGpu;

class CudaTimerTest : public ::testing::Test {
 protected:
  Launch launch_of(const std::string& name) {
    modules_.push_back(gpu_->load(FakeGpu::artifact(name)));
    Module* module = modules_.back().get();
    LaunchSpec spec;
    spec.block.x = 32;
    return [this, module, spec] { gpu_->launch(*module, spec); };
  }
  int launches(const std::string& kernel, bool captured) {
    int count = 0;
    for (const auto& launch : gpu_.driver().launches) count += launch.kernel == kernel && launch.captured == captured;
    return count;
  }

  FakeGpu gpu_;
  std::vector<std::unique_ptr<Module>> modules_;
};

TEST(LaunchCount, MakesASampleLongEnough) {
  EXPECT_EQ(choose_launches(10, 500), 50);
  EXPECT_EQ(choose_launches(9.9, 500), 51);
  EXPECT_EQ(choose_launches(9.999, 500), 50) << "short by less than the events resolve";
  EXPECT_EQ(choose_launches(1, 500), kMaxLaunchesPerGraph);
  EXPECT_EQ(choose_launches(4000, 500), 1);
  EXPECT_EQ(choose_launches(0, 500), kMaxLaunchesPerGraph);
}

TEST(Hold, CoversTheHostWithinBounds) {
  EXPECT_GT(choose_hold_us(100), 100);
  EXPECT_GE(choose_hold_us(0), 20);
  EXPECT_LE(choose_hold_us(1e9), 2000);
}

TEST(MedianClock, IsCyclesOverTimeOfTheMiddleSm) {
  const std::vector<Stamp> before = {{1000, 1000}, {0, 5000}, {7, 0}, {100, 9000}, {0, 1000}};
  const std::vector<Stamp> after = {{2500, 2000}, {17000, 15000}, {7000, 9000}, {50, 19000}, {0, 0}};
  // 1500 MHz and 1700 MHz; then: never stamped before, ran backwards, never stamped after.
  EXPECT_DOUBLE_EQ(median_clock_mhz(before, after), 1700);
  EXPECT_DOUBLE_EQ(median_clock_mhz({before.data(), 1}, {after.data(), 1}), 1500);
  EXPECT_EQ(median_clock_mhz({}, {}), 0);
}

TEST_F(CudaTimerTest, TheNumberOfLaunchesCanBeGiven) {
  const Launch launch = launch_of("forward");
  const auto timer = gpu_->make_timer({&launch, 1}, Regime::kGraph, 500);
  const int before = launches("forward", true);
  timer->use_launches(77);
  EXPECT_EQ(timer->launches_per_sample(), 77);
  EXPECT_EQ(launches("forward", true) - before, 77) << "captured anew";
  timer->use_launches(77);
  EXPECT_EQ(launches("forward", true) - before, 77) << "and not without need";
  timer->use_launches(100000);
  EXPECT_EQ(timer->launches_per_sample(), kMaxLaunchesPerGraph);
  const auto warm = gpu_->make_timer({&launch, 1}, Regime::kWarm, 500);
  warm->use_launches(77);
  EXPECT_EQ(warm->launches_per_sample(), 1);
}

TEST_F(CudaTimerTest, GraphReplaysManyLaunches) {
  const Launch launch = launch_of("forward");
  const auto timer = gpu_->make_timer({&launch, 1}, Regime::kGraph, 500);
  EXPECT_EQ(timer->launches_per_sample(), 50);
  EXPECT_EQ(launches("forward", true), 50);
  const int before = gpu_.driver().count("graph_launch"), direct = launches("forward", false);
  const Sample sample = timer->sample();
  EXPECT_NEAR(sample.time_us, 10, 1e-3);
  EXPECT_NEAR(sample.clock_mhz, 1500, 15);
  EXPECT_EQ(gpu_.driver().count("graph_launch"), before + 1);
  EXPECT_EQ(launches("forward", false), direct) << "a sample launches nothing but the graph";
  EXPECT_EQ(gpu_.driver().count("graph_destroy"), 1);
}

TEST_F(CudaTimerTest, GraphTakesTheRotationInTurn) {
  const std::vector<Launch> rotation = {launch_of("one"), launch_of("two")};
  const auto timer = gpu_->make_timer(rotation, Regime::kGraph, 200);
  EXPECT_EQ(timer->launches_per_sample(), 20);
  EXPECT_EQ(launches("one", true), 10);
  EXPECT_EQ(launches("two", true), 10);
}

TEST_F(CudaTimerTest, ColdFlushesAndRotates) {
  const std::vector<Launch> rotation = {launch_of("one"), launch_of("two")};
  const auto timer = gpu_->make_timer(rotation, Regime::kCold, 500);
  EXPECT_EQ(timer->launches_per_sample(), 1);
  gpu_.driver().launches.clear();
  const int resets = gpu_.driver().count("reset_persisting_l2");
  EXPECT_NEAR(timer->sample().time_us, 10, 1e-3) << "the flush is not timed";
  EXPECT_NEAR(timer->sample().time_us, 10, 1e-3);
  EXPECT_GE(launches("read", false), 2);
  EXPECT_EQ(launches("one", false) + launches("two", false), launches("read", false)) << "one flush per launch";
  EXPECT_GE(launches("one", false), 1);
  EXPECT_GE(launches("two", false), 1);
  EXPECT_GE(gpu_.driver().count("reset_persisting_l2"), resets + 2);
  EXPECT_EQ(gpu_.driver().launches[0].kernel, "read");
  EXPECT_EQ(gpu_.driver().launches[1].kernel, "stamp");
}

TEST_F(CudaTimerTest, WarmTimesOneLaunch) {
  const Launch launch = launch_of("forward");
  const auto timer = gpu_->make_timer({&launch, 1}, Regime::kWarm, 500);
  EXPECT_EQ(timer->launches_per_sample(), 1);
  EXPECT_NEAR(timer->sample().time_us, 10, 1e-3);
  EXPECT_EQ(launches("read", false), 0);
}

// A carve-out of L2 outlives a flush, and is missing for everybody who is timed.
TEST_F(CudaTimerTest, NoPartOfTheCacheIsSetAsideWhileItTimes) {
  const Launch launch = launch_of("forward");
  for (const Regime regime : {Regime::kGraph, Regime::kCold, Regime::kWarm}) {
    gpu_.driver().persisting_l2_bytes = 16 << 20;
    const auto timer = gpu_->make_timer({&launch, 1}, regime, 500);
    EXPECT_EQ(gpu_.driver().persisting_l2_bytes, 0u) << to_string(regime);
  }
  const auto cold = gpu_->make_timer({&launch, 1}, Regime::kCold, 500);
  gpu_.driver().persisting_l2_bytes = 16 << 20;  // by somebody, between two samples
  cold->sample();
  EXPECT_EQ(gpu_.driver().persisting_l2_bytes, 0u);
  gpu_.driver().failures["context_set_limit"] = cuda::CUresult{801};  // not supported: nothing persists
  EXPECT_NO_THROW(cold->sample());
}

TEST_F(CudaTimerTest, AStallOfTheHostIsNotMeasuredAsDeviceTime) {
  const Launch inner = launch_of("forward");
  int calls = 0;
  // The third launch, the first of a sample, comes late: the GPU would have waited for it.
  const Launch launch = [&] {
    if (++calls == 3) std::this_thread::sleep_for(std::chrono::milliseconds(20)), gpu_.driver().time_us += 20000;
    inner();
  };
  const auto timer = gpu_->make_timer({&launch, 1}, Regime::kWarm, 500);
  while (calls < 2) inner();
  EXPECT_NEAR(timer->sample().time_us, 10, 1e-3);
}

TEST_F(CudaTimerTest, AFaultDuringASampleIsADeviceFault) {
  const Launch launch = launch_of("forward");
  const auto timer = gpu_->make_timer({&launch, 1}, Regime::kGraph, 500);
  gpu_.driver().failures["stream_synchronize"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THROW(timer->sample(), DeviceFault);
}

TEST_F(CudaTimerTest, AFailureWhileCapturingEndsTheCapture) {
  const Launch inner = launch_of("forward");
  const Launch launch = [&] {
    if (gpu_.driver().capturing) throw std::runtime_error("planned");
    inner();
  };
  EXPECT_THROW(gpu_->make_timer({&launch, 1}, Regime::kGraph, 500), std::runtime_error);
  EXPECT_FALSE(gpu_.driver().capturing);
  EXPECT_EQ(gpu_.driver().count("graph_destroy"), 1);
  EXPECT_EQ(gpu_.driver().count("event_destroy"), 2);
  EXPECT_NO_THROW(gpu_->synchronize());
}

// A graph that PyTorch captured, say: the fake driver's graphs are all one.
TEST_F(CudaTimerTest, AGraphOfSomebodyElsesIsTimedAsOurs) {
  const Launch launch = launch_of("forward");
  const auto ours = gpu_->make_timer({&launch, 1}, Regime::kGraph, 500);
  int graph = 0;
  const int destroyed = gpu_.driver().count("graph_exec_destroy");
  {
    const auto theirs = gpu_->make_foreign_timer({.graph = &graph, .launches = ours->launches_per_sample()});
    EXPECT_EQ(theirs->launches_per_sample(), ours->launches_per_sample());
    const Sample sample = theirs->sample();
    EXPECT_NEAR(sample.time_us, ours->sample().time_us, 1e-3);
    EXPECT_NEAR(sample.clock_mhz, 1500, 15);
  }
  EXPECT_EQ(gpu_.driver().count("graph_exec_destroy"), destroyed) << "it stays its owner's";
  EXPECT_THROW(gpu_->make_foreign_timer({}), Error);
}

TEST_F(CudaTimerTest, ASampleInWhichTheHostFellBehindIsTakenAgain) {
  int graph = 0;
  gpu_.driver().captured = 50;
  const auto timer = gpu_->make_foreign_timer({.graph = &graph, .launches = 50});
  const int before = gpu_.driver().count("graph_launch");
  gpu_.driver().slow_submits = 1;
  EXPECT_NEAR(timer->sample().time_us, 10, 1e-3);
  EXPECT_GE(gpu_.driver().count("graph_launch"), before + 2);
}

TEST_F(CudaTimerTest, AHostThatFallsBehindIsAnErrorAndNoTime) {
  int graph = 0;
  gpu_.driver().slow_submits = 1000;
  EXPECT_THROW(gpu_->make_foreign_timer({.graph = &graph, .launches = 50}), Error);
}

TEST_F(CudaTimerTest, NothingToTimeIsAnError) { EXPECT_THROW(gpu_->make_timer({}, Regime::kGraph, 500), Error); }

}  // namespace
}  // namespace flashcore::cuda
