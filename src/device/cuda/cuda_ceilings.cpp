#include "device/cuda/cuda_ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/cuda/cuda_device.h"

namespace flashcore::cuda {
namespace {

constexpr int kBursts = 5;
constexpr double kBurstUs = 3000;
constexpr std::size_t kReadBytes = std::size_t{4} << 30;
constexpr unsigned kBlocksPerMultiprocessor = 8;

template <class Params>
LaunchSpec make_spec(unsigned grid, unsigned block, unsigned shared_bytes, const Params& params) {
  LaunchSpec spec;
  spec.grid.x = grid;
  spec.block.x = block;
  spec.shared_bytes = shared_bytes;
  spec.params.resize(sizeof(params));
  std::memcpy(spec.params.data(), &params, sizeof(params));
  return spec;
}

// The shortest of several bursts of one launch, each after an idle gap and an unmeasured launch that wakes the clocks.
double best_burst_us(CudaDevice& device, double idle_ms, const Launch& launch) {
  const std::unique_ptr<Timer> timer = device.make_timer({&launch, 1}, Regime::kWarm, 0);
  double best_us = 0;
  for (int burst = 0; burst < kBursts; ++burst) {
    device.idle(idle_ms);
    timer->sample();
    const double time_us = timer->sample().time_us;
    if (time_us > 0 && (best_us == 0 || time_us < best_us)) best_us = time_us;
  }
  return best_us;
}

bool multiplies_by_wgmma(const DeviceLimits& limits) { return limits.arch == 90; }

double matmul_tflops(CudaDevice& device, double idle_ms) {
  const DeviceLimits& limits = device.info().limits;
  const bool hopper = multiplies_by_wgmma(limits);
  const auto module = device.microkernel(hopper ? Microkernel::kWgmma : Microkernel::kMma);
  const auto shared =
      static_cast<unsigned>(microkernel_source(hopper ? Microkernel::kWgmma : Microkernel::kMma).dynamic_shared_bytes);
  MatmulParams params{};  // no sink: nothing is written unless iterations is all ones
  params.iterations = 256;
  const Launch launch = [&] {
    module->launch(make_spec(static_cast<unsigned>(limits.multiprocessors), kMatmulThreads, shared, params));
  };
  const std::unique_ptr<Timer> timer = device.make_timer({&launch, 1}, Regime::kWarm, 0);
  const double trial_us = std::max(1.0, timer->sample().time_us);
  params.iterations = static_cast<std::uint32_t>(std::clamp(256 * kBurstUs / trial_us, 256.0, 1e7));
  const double time_us = best_burst_us(device, idle_ms, launch);
  const double flops =
      (hopper ? kWgmmaFlopsPerIteration : kMmaFlopsPerIteration) * params.iterations * limits.multiprocessors;
  return time_us > 0 ? flops / time_us / 1e6 : 0;
}

double read_gbps(CudaDevice& device, double idle_ms, const CudaBuffer& buffer, std::size_t bytes, unsigned rounds) {
  const double time_us = best_burst_us(device, idle_ms, [&] { enqueue_read(device, buffer, bytes, rounds); });
  return time_us > 0 ? static_cast<double>(bytes) * rounds / time_us / 1e3 : 0;
}

void fill_random(CudaDevice& device, const CudaBuffer& buffer) {
  const FillParams params{buffer.address(), buffer.size() / 4};
  const unsigned grid = kBlocksPerMultiprocessor * static_cast<unsigned>(device.info().limits.multiprocessors);
  device.microkernel(Microkernel::kFill)->launch(make_spec(grid, kFillThreads, 0, params));
  device.synchronize();
}

double empty_launch_us(CudaDevice& device) {
  const auto module = device.microkernel(Microkernel::kEmpty);
  LaunchSpec spec;
  spec.grid.x = static_cast<unsigned>(device.info().limits.multiprocessors);
  spec.block.x = 32;
  const Launch launch = [&] { module->launch(spec); };
  const std::unique_ptr<Timer> timer = device.make_timer({&launch, 1}, Regime::kGraph, 0);
  double best_us = timer->sample().time_us;
  for (int i = 0; i < 4 * kBursts; ++i) best_us = std::min(best_us, timer->sample().time_us);
  return best_us;
}

}  // namespace

std::string words_of_matmul(const DeviceLimits& limits) {
  const bool hopper = multiplies_by_wgmma(limits);
  const MultiplyShape& shape = hopper ? kWgmmaShape : kMmaShape;
  return fmt::format("{} m{}n{}k{} of bf16, {}", hopper ? "wgmma" : "mma.sync", shape.m, shape.n, shape.k,
                     hopper ? "by two warpgroups of a CTA on operands that lie in shared memory"
                            : "by eight warps of a CTA on operands that lie in registers");
}

void enqueue_read(CudaDevice& device, const CudaBuffer& buffer, std::size_t bytes, unsigned rounds) {
  ReadParams params{};
  params.data = buffer.address();
  params.vectors = bytes / 16;
  params.sink = buffer.address();
  params.rounds = rounds;
  const unsigned grid = kBlocksPerMultiprocessor * static_cast<unsigned>(device.info().limits.multiprocessors);
  device.microkernel(Microkernel::kRead)->launch(make_spec(grid, kReadThreads, 0, params));
}

Ceilings measure_ceilings(CudaDevice& device, double idle_ms) {
  Ceilings ceilings;
  ceilings.empty_launch_us = empty_launch_us(device);
  ceilings.matmul_tflops_16bit = matmul_tflops(device, idle_ms);
  {
    const CudaBuffer buffer(device.context(), std::min(kReadBytes, device.free_memory() / 4) / 256 * 256, 0);
    fill_random(device, buffer);
    ceilings.read_gbps = read_gbps(device, idle_ms, buffer, buffer.size(), 1);
    const auto cache = static_cast<std::size_t>(device.info().limits.l2_bytes);
    for (const std::size_t bytes : {cache / 4 / 256 * 256, cache / 2 / 256 * 256})
      if (bytes > 0 && bytes <= buffer.size())
        ceilings.cache_read_gbps = std::max(ceilings.cache_read_gbps, read_gbps(device, idle_ms, buffer, bytes, 64));
  }
  return ceilings;
}

}  // namespace flashcore::cuda
