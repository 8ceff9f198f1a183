#include "device/cpu/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "device/cpu/aligned_memory.h"
#include "device/cpu/bf16_units.h"
#include "device/cpu/simd_targets.h"
#include "device/cpu/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/ceilings.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flashcore {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Two FMA units of latency 4 to 6 need 8 to 12 results in flight; 12 and the two factors still fit 16 registers.
constexpr int kChains = 12;

// Returns the floating-point operations done: 2 per lane of each multiply-add.
double fma_loop(std::int64_t iterations, float* sink) {
  const hn::ScalableTag<float> d;
  // The fixed point of x * 0.5 + 0.5 is 1: no overflow and no subnormals, which would change the speed.
  const auto half = hn::Set(d, 0.5f);
  hn::Vec<decltype(d)> chain[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(d, static_cast<float>(i));
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], half, half);
  }
  auto sum = hn::Zero(d);
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum = hn::Add(sum, chain[i]);
  *sink = hn::GetLane(sum);
  return 2.0 * kChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(iterations);
}

float read_loop(const float* HWY_RESTRICT data, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, e = a, f = a;
  for (std::size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(d, data + i));
    b = hn::Add(b, hn::Load(d, data + i + lanes));
    e = hn::Add(e, hn::Load(d, data + i + 2 * lanes));
    f = hn::Add(f, hn::Load(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::Add(hn::Add(a, b), hn::Add(e, f)));
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace flashcore
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashcore {
HWY_EXPORT(fma_loop);
HWY_EXPORT(read_loop);
HWY_EXPORT(target_name);

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One thread's measurements, on cache lines of its own.
struct alignas(64) Windows {
  std::vector<double> rates;
  float sink = 0;
  Clock::time_point start = Clock::now();

  // Few windows on a machine that is very busy, or under a sanitizer, rather than minutes of waiting.
  bool time_is_up() const { return rates.size() >= 20 && seconds_since(start) > 1.0; }

  // The rate that a share of 1 - `quantile` of the windows beat; 1: the best.
  double rate_at(double quantile) {
    if (rates.empty()) return 0;
    const auto at = rates.begin() + static_cast<std::ptrdiff_t>(quantile * static_cast<double>(rates.size() - 1));
    std::nth_element(rates.begin(), at, rates.end());
    return *at;
  }
};

// Every thread of the pool measures many windows of a fraction of a millisecond side by side; the sum over the threads
// of the good ones. On a busy machine a preemption then spoils one window, where a single long loop would read half of
// what the machine can do, and honest kernels would look faster than possible.
// `body` ends after a number of windows, or when `windows.time_is_up()`.
template <class Body>
double sum_of_rates(double quantile, Body&& body) {
  ThreadPool& pool = cpu_thread_pool();
  std::vector<Windows> threads(static_cast<std::size_t>(pool.size()));
  pool.run_on_each([&](int worker) { body(worker, threads[static_cast<std::size_t>(worker)]); });
  double sum = 0;
  for (Windows& windows : threads) sum += windows.rate_at(quantile);
  return sum;
}

double measure_fma_tflops() {
  // Nothing but the clock limits this loop: the best window is what the core can do.
  return sum_of_rates(1.0, [](int, Windows& windows) {
    while (windows.rates.size() < 600 && !windows.time_is_up()) {
      const auto start = Clock::now();
      const double operations = HWY_DYNAMIC_DISPATCH(fma_loop)(100'000, &windows.sink);
      windows.rates.push_back(operations / seconds_since(start) / 1e12);
    }
  });
}

// Of the instructions that multiply bf16; 0 where there are none.
double measure_bf16_tflops(Bf16Unit unit) {
  if (!has_bf16(unit)) return 0;
  return sum_of_rates(1.0, [unit](int, Windows& windows) {
    while (windows.rates.size() < 600 && !windows.time_is_up()) {
      const auto start = Clock::now();
      const double operations = bf16_loop(unit, unit == Bf16Unit::kTiles ? 3'000 : 50'000);
      windows.rates.push_back(operations / seconds_since(start) / 1e12);
    }
  });
}

// Each thread reads its own share of `bytes` over and over, at least `windows` windows and at least twice.
double measure_read_gbps(std::size_t bytes, std::size_t least_windows) {
  constexpr std::size_t kWindow = 256 << 10;
  const std::size_t threads = static_cast<std::size_t>(cpu_thread_pool().size());
  const std::size_t share = std::max(bytes / threads / kWindow, std::size_t{1}) * kWindow;
  const AlignedMemory memory(share * threads);
  // Memory is shared: a window in which the other cores happened to pause says too much.
  return sum_of_rates(0.9, [&](int worker, Windows& windows) {
    const std::span<std::byte> mine = memory.bytes().subspan(static_cast<std::size_t>(worker) * share, share);
    // Untouched pages all map to one page of zeros, which would be read from the first-level cache.
    std::memset(mine.data(), 1, mine.size());
    windows.start = Clock::now();
    while (windows.rates.size() < std::max(least_windows, 2 * share / kWindow) && !windows.time_is_up()) {
      for (std::size_t at = 0; at < share; at += kWindow) {
        const auto start = Clock::now();
        windows.sink += read_through(mine.subspan(at, kWindow));
        windows.rates.push_back(static_cast<double>(kWindow) / seconds_since(start) / 1e9);
      }
    }
  });
}

}  // namespace

float read_through(std::span<const std::byte> bytes) {
  return HWY_DYNAMIC_DISPATCH(read_loop)(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
}

const char* simd_target_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

Ceilings measure_cpu_ceilings(std::int64_t last_level_cache_bytes, std::int64_t memory_bytes) {
  Ceilings ceilings;
  ceilings.fma_tflops_fp32 = measure_fma_tflops();
  ceilings.matmul_tflops_16bit = std::max(measure_bf16_tflops(Bf16Unit::kDots), measure_bf16_tflops(Bf16Unit::kTiles));
  // Caches of half a gigabyte exist; a small machine must still hold the buffer.
  const std::int64_t beyond = std::min(std::max(2 * last_level_cache_bytes, std::int64_t{256} << 20), memory_bytes / 8);
  ceilings.read_gbps = measure_read_gbps(static_cast<std::size_t>(beyond), 0);
  const std::int64_t inside = std::min(last_level_cache_bytes / 2, memory_bytes / 16);
  ceilings.cache_read_gbps = std::max(measure_read_gbps(static_cast<std::size_t>(inside), 2000), ceilings.read_gbps);

  const Launch empty = [] {};
  constexpr int kCalls = 100'000;
  ceilings.empty_launch_us = 1e12;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      empty();
      std::atomic_signal_fence(std::memory_order_seq_cst);  // or the loop of nothing is removed
    }
    ceilings.empty_launch_us = std::min(ceilings.empty_launch_us, seconds_since(start) * 1e6 / kCalls);
  }
  return ceilings;
}

}  // namespace flashcore
#endif  // HWY_ONCE
