#pragma once
// Device time of launches, between events, in three regimes.

#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/clock_stamps.h"
#include "device/device.h"

namespace flashcore::cuda {

inline constexpr double kDefaultSampleUs = 500;
inline constexpr int kMaxLaunchesPerGraph = 200;

// Launches that make one sample last at least `sample_us`, between 1 and kMaxLaunchesPerGraph.
int choose_launches(double launch_us, double sample_us);

// How long the first stamp should keep the GPU busy, so that `submit_us` of enqueueing by the host stays hidden.
double choose_hold_us(double submit_us);

struct TimerTools {
  std::shared_ptr<const Context> context;
  std::shared_ptr<ClockStamps> stamps;
  std::function<void()> flush_cache;  // enqueues what evicts everything from L2
};

class CudaTimer final : public Timer {
 public:
  CudaTimer(TimerTools tools, std::vector<Launch> rotation, Regime regime, double sample_us);
  ~CudaTimer() override;
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  Sample sample() override;
  int launches_per_sample() const override { return launches_; }
  void use_launches(int launches) override;  // at most kMaxLaunchesPerGraph; nothing outside of kGraph

 private:
  const Launch& next_launch();
  void enqueue_work();
  void capture();
  void release_persisting_l2();
  double time_once_us(const std::function<void()>& work);

  TimerTools tools_;
  std::vector<Launch> rotation_;
  Regime regime_;
  std::size_t turn_ = 0;
  int launches_ = 1;
  double hold_us_ = 50;
  CUevent begin_ = nullptr, end_ = nullptr;
  CUgraphExec graph_ = nullptr;
};

}  // namespace flashcore::cuda
