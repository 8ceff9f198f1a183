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

// Device time of what `work` enqueues on the context's stream, between two events, with the GPU kept busy until all of
// it is enqueued: the host's time counts for nobody, whoever's work it is.
class HeldStopwatch {
 public:
  explicit HeldStopwatch(TimerTools tools);
  ~HeldStopwatch();
  HeldStopwatch(const HeldStopwatch&) = delete;
  HeldStopwatch& operator=(const HeldStopwatch&) = delete;

  // `cold`: with a flushed cache.
  double time_us(const std::function<void()>& work, bool cold = false);
  // Whether the GPU was busy until the last work was enqueued. If not, the time may hold some of the host's.
  bool kept_ahead() const { return kept_ahead_; }
  double clock_mhz() const { return tools_.stamps->clock_mhz(); }
  const Context& context() const { return *tools_.context; }

 private:
  void release_persisting_l2();

  TimerTools tools_;
  double hold_us_ = 50;
  bool kept_ahead_ = false;
  CUevent begin_ = nullptr, end_ = nullptr;
};

// A graph that somebody else captured in this context: PyTorch, say. By HeldStopwatch, as CudaTimer.
class ForeignGraphTimer final : public Timer {
 public:
  ForeignGraphTimer(TimerTools tools, CUgraphExec graph, int launches);
  Sample sample() override;  // Error kEnvironment if the host cannot keep ahead of the GPU
  int launches_per_sample() const override { return launches_; }

 private:
  HeldStopwatch stopwatch_;
  CUgraphExec graph_;
  int launches_;
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
  double time_once_us(const std::function<void()>& work) { return stopwatch_.time_us(work, regime_ == Regime::kCold); }

  HeldStopwatch stopwatch_;
  std::vector<Launch> rotation_;
  Regime regime_;
  std::size_t turn_ = 0;
  int launches_ = 1;
  CUgraphExec graph_ = nullptr;
};

}  // namespace flashcore::cuda
