// What only a GPU can show. Skipped, with the reason, where there is none.
#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "device/compiler.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"

namespace flashcore {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::cuda_device_count() == 0) GTEST_SKIP() << "no NVIDIA GPU on this machine";
    std::string why;
    if (!cuda::nvrtc_api(&why)) GTEST_SKIP() << "no NVRTC on this machine: " << why;
    device_ = open_device("cuda:0");
  }

  struct Params {
    float* data;
    int count, rounds;
  };
  std::unique_ptr<Module> compile(const std::string& name) {
    const SourceMap sources = {{"test/kernel.cuh", R"(
struct Params { float* data; int count, rounds; };
__global__ void add_one(Params p) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.count) for (int round = 0; round < p.rounds; round++) p.data[i] += 1;
}
__global__ void one_too_far(Params p) { p.data[p.count] = 1; }
__global__ void spin(Params p) {
  const long long begin = clock64();
  while (clock64() - begin < p.rounds) {}
  p.data[0] = 1;
}
__global__ void clustered(Params p) {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(rank));
  if (threadIdx.x == 0) p.data[blockIdx.x] = rank;
}
)"}};
    return device_->load(open_compiler()->compile({"test/kernel.cuh", name, 0, 128, {}}, sources,
                                                  "sm_" + std::to_string(device_->info().limits.arch)));
  }
  static LaunchSpec spec_of(unsigned grid, const Params& params) {
    LaunchSpec spec;
    spec.grid.x = grid;
    spec.block.x = 128;
    spec.params.resize(sizeof(params));
    std::memcpy(spec.params.data(), &params, sizeof(params));
    return spec;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(GpuTest, RunsAKernel) {
  const auto module = compile("add_one");
  const auto buffer = device_->allocate(1000 * sizeof(float), 1024);
  std::vector<float> values(1000, 41);
  device_->upload(buffer->data(), values.data(), buffer->size());
  device_->launch(*module, spec_of(8, {static_cast<float*>(buffer->data()), 1000, 1}));
  device_->download(values.data(), buffer->data(), buffer->size());
  EXPECT_EQ(values, std::vector<float>(1000, 42));
  EXPECT_TRUE(buffer->red_zones_intact());
}

TEST_F(GpuTest, AWriteBehindTheEndShows) {
  const auto module = compile("one_too_far");
  const auto buffer = device_->allocate(100 * sizeof(float), 256);
  device_->launch(*module, spec_of(1, {static_cast<float*>(buffer->data()), 100, 1}));
  device_->synchronize();
  EXPECT_FALSE(buffer->red_zones_intact());
}

TEST_F(GpuTest, ClustersLaunch) {
  if (device_->info().limits.arch < 90) GTEST_SKIP() << "clusters need sm_90";
  const auto module = compile("clustered");
  const auto buffer = device_->allocate(8 * sizeof(float));
  LaunchSpec spec = spec_of(8, {static_cast<float*>(buffer->data()), 8, 1});
  spec.cluster = {2, 1, 1};
  device_->launch(*module, spec);
  std::vector<float> values(8);
  device_->download(values.data(), buffer->data(), buffer->size());
  EXPECT_EQ(values, std::vector<float>(8, 2));
}

// A spin of known cycles: time, clock and cycles must agree in every regime.
TEST_F(GpuTest, TimeTimesClockIsCycles) {
  const auto module = compile("spin");
  const auto buffer = device_->allocate(256);
  constexpr int kCycles = 200000;
  const Launch launch = [&] {
    device_->launch(*module, spec_of(1, {static_cast<float*>(buffer->data()), 1, kCycles}));
  };
  for (const Regime regime : {Regime::kGraph, Regime::kCold, Regime::kWarm}) {
    const auto timer = device_->make_timer({&launch, 1}, regime);
    EXPECT_TRUE(regime != Regime::kGraph || timer->launches_per_sample() > 1) << "about 110 us a launch";
    const Sample sample = timer->sample();
    EXPECT_GT(sample.clock_mhz, 100);
    EXPECT_NEAR(sample.time_us * sample.clock_mhz / kCycles, 1, 0.1)
        << to_string(regime) << ": " << sample.time_us << " us at " << sample.clock_mhz << " MHz";
  }
}

TEST_F(GpuTest, CeilingsArePlausible) {
  const Ceilings& ceilings = device_->ceilings();
  EXPECT_GT(ceilings.empty_launch_us, 0.1);
  EXPECT_LT(ceilings.empty_launch_us, 20);
  EXPECT_GT(ceilings.matmul_tflops_16bit, 10);
  EXPECT_GT(ceilings.read_gbps, 100);
  EXPECT_GT(ceilings.cache_read_gbps, ceilings.read_gbps);
}

TEST_F(GpuTest, EnvironmentIsRead) {
  const EnvironmentReading reading = device_->read_environment();
  EXPECT_GT(reading.clock_sm_mhz, 0);
  EXPECT_GT(reading.power_w, 0);
  EXPECT_GT(reading.temperature_c, 0);
  EXPECT_FALSE(reading.throttle_reasons.empty());
}

}  // namespace
}  // namespace flashcore
