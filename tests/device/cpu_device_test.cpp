#include "device/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "core/error.h"
#include "core/parallel.h"
#include "device/cpu/ceilings.h"

namespace flashcore {
namespace {

TEST(CpuDevice, DescribesTheMachine) {
  const auto device = open_cpu_device();
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.id, "cpu");
  EXPECT_EQ(info.limits.kind, DeviceKind::kCpu);
  EXPECT_EQ(info.limits.multiprocessors, hardware_threads());
  EXPECT_GE(info.limits.l2_bytes, 1 << 16);
  EXPECT_GT(info.memory_bytes, std::int64_t{1} << 27);
  EXPECT_FALSE(info.name.empty());
  EXPECT_EQ(info.key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << info.key;
}

TEST(CpuDevice, ANameWithoutAModelSaysTheInstructions) {
  EXPECT_EQ(cpu_name("AMD EPYC", "AVX2"), "AMD EPYC (AVX2)");
  EXPECT_EQ(cpu_name("Intel(R) Xeon(R) Processor @ 2.70GHz", "AMX"), "Intel(R) Xeon(R) Processor (AMX) @ 2.70GHz");
  EXPECT_EQ(cpu_name("AMD EPYC 7B13 64-Core Processor", "AVX2"), "AMD EPYC 7B13 64-Core Processor");
  EXPECT_EQ(cpu_name("CPU", "NEON"), "CPU (NEON)");
  EXPECT_EQ(cpu_key(cpu_name("AMD EPYC", "AVX512-BF16"), 2), "cpu_epyc_avx512_bf16_2c");
  EXPECT_EQ(cpu_key(cpu_name("AMD EPYC", "AVX2"), 2), "cpu_epyc_avx2_2c");
}

TEST(CpuDevice, KeyKeepsWhatTellsModelsApart) {
  EXPECT_EQ(cpu_key("Intel(R) Xeon(R) Processor @ 2.70GHz", 2), "cpu_xeon_2c");
  EXPECT_EQ(cpu_key("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 8), "cpu_xeon_platinum_8481c_8c");
  EXPECT_EQ(cpu_key("AMD EPYC 7B13 64-Core Processor", 4), "cpu_epyc_7b13_4c");
  EXPECT_EQ(cpu_key("12th Gen Intel(R) Core(TM) i7-1260P", 16), "cpu_12th_i7_1260p_16c");
  EXPECT_EQ(cpu_key("", 1), "cpu_1c");
}

TEST(CpuDevice, BuffersAreAlignedAndHold) {
  const auto device = open_cpu_device();
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    for (std::size_t red_zone : {std::size_t{0}, std::size_t{100}, std::size_t{4096}}) {
      const auto buffer = device->allocate(bytes, red_zone);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 256, 0u);
      EXPECT_EQ(buffer->size(), bytes);
      device->fill(buffer->data(), 0x5A, bytes);
      std::vector<unsigned char> back(bytes, 0), again(bytes, 7);
      device->download(back.data(), buffer->data(), bytes);
      EXPECT_EQ(back, std::vector<unsigned char>(bytes, 0x5A));
      device->upload(buffer->data(), again.data(), bytes);
      device->synchronize();
      EXPECT_EQ(0, bytes == 0 ? 0 : std::memcmp(buffer->data(), again.data(), bytes));
      EXPECT_TRUE(buffer->red_zones_intact());
    }
  }
}

TEST(CpuDevice, RedZonesSeeASingleByteOnEitherSide) {
  const auto device = open_cpu_device();
  for (std::ptrdiff_t at : {std::ptrdiff_t{-1}, std::ptrdiff_t{-256}, std::ptrdiff_t{1000}, std::ptrdiff_t{1255}}) {
    const auto buffer = device->allocate(1000, 256);
    auto* byte = static_cast<unsigned char*>(buffer->data()) + at;
    *byte ^= 1;
    EXPECT_FALSE(buffer->red_zones_intact()) << at;
    *byte ^= 1;
    EXPECT_TRUE(buffer->red_zones_intact()) << at;
  }
}

TEST(CpuDevice, RunsNoArtifacts) {
  const auto device = open_cpu_device();
  try {
    device->load(Artifact());
    FAIL() << "loaded an artifact";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  }
}

TEST(CpuDevice, TimerCountsOneLaunch) {
  const auto device = open_cpu_device();
  const Launch sleep = [] { std::this_thread::sleep_for(std::chrono::microseconds(500)); };
  for (Regime regime : {Regime::kGraph, Regime::kWarm}) {
    const auto timer = device->make_timer(std::span(&sleep, 1), regime, 3000);
    EXPECT_GE(timer->launches_per_sample(), 1);
    EXPECT_LE(timer->launches_per_sample(), 6);
    EXPECT_GE(timer->sample().time_us, 500.0);  // no sleep is shorter than asked for
  }
}

TEST(CpuDevice, TimerBatchesShortLaunches) {
  const auto device = open_cpu_device();
  int calls = 0;
  const Launch count = [&calls] { ++calls; };
  const auto timer = device->make_timer(std::span(&count, 1), Regime::kGraph, 100);
  calls = 0;
  const Sample sample = timer->sample();
  EXPECT_EQ(calls, timer->launches_per_sample() + 1) << "the first after a pause is not timed";
  EXPECT_GT(calls, 100);
  EXPECT_GT(sample.time_us, 0.0);
  timer->use_launches(7);
  calls = 0;
  timer->sample();
  EXPECT_EQ(timer->launches_per_sample(), 7);
  EXPECT_EQ(calls, 8);
}

TEST(CpuDevice, ColdTimerTakesBuffersInTurn) {
  const auto device = open_cpu_device();
  std::vector<int> order;
  const Launch rotation[] = {[&] { order.push_back(0); }, [&] { order.push_back(1); }, [&] { order.push_back(2); }};
  const auto timer = device->make_timer(rotation, Regime::kCold, 0);
  order.clear();
  for (int i = 0; i < 4; ++i) timer->sample();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 0}));
}

TEST(CpuDevice, CeilingsArePositiveAndConsistent) {
  // Small sizes: the figures are not looked at, only that each loop runs and says something.
  const Ceilings ceilings = measure_cpu_ceilings(1 << 20, std::int64_t{1} << 28);
  EXPECT_GT(ceilings.fma_tflops_fp32, 0.0);
  EXPECT_GT(ceilings.read_gbps, 0.0);
  EXPECT_GE(ceilings.cache_read_gbps, ceilings.read_gbps);
  EXPECT_GT(ceilings.empty_launch_us, 0.0);
  EXPECT_LT(ceilings.empty_launch_us, 10.0);
  EXPECT_GE(ceilings.matmul_tflops_16bit, 0.0);  // none without AMX
}

}  // namespace
}  // namespace flashcore
