#include "device/cuda/cuda_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"

namespace flashcore::cuda {
namespace {

constexpr double kMinHoldUs = 20, kMaxHoldUs = 2000;
// A host that was interrupted while enqueueing lets the GPU run dry between the events. Such a reading is taken again.
constexpr int kAttempts = 4;
constexpr int kEstimateLaunches = 3;

}  // namespace

int choose_launches(double launch_us, double sample_us) {
  if (!(launch_us > 0)) return kMaxLaunchesPerGraph;
  // Events resolve half a microsecond: a sample short by less than that is long enough.
  return static_cast<int>(
      std::clamp(std::ceil((sample_us - 0.5) / launch_us), 1.0, static_cast<double>(kMaxLaunchesPerGraph)));
}

double choose_hold_us(double submit_us) { return std::clamp(2 * submit_us + 10, kMinHoldUs, kMaxHoldUs); }

HeldStopwatch::HeldStopwatch(TimerTools tools) : tools_(std::move(tools)) {
  const DriverApi& api = tools_.context->use();
  release_persisting_l2();
  tools_.context->check(api.event_create(&begin_, CU_EVENT_DEFAULT), "making an event");
  try {
    tools_.context->check(api.event_create(&end_, CU_EVENT_DEFAULT), "making an event");
  } catch (...) {
    api.event_destroy(begin_);
    throw;
  }
}

HeldStopwatch::~HeldStopwatch() {
  try {
    const DriverApi& api = tools_.context->use();
    api.event_destroy(begin_);
    api.event_destroy(end_);
  } catch (const std::exception&) {  // the context is lost
  }
}

// Part of L2 may be set aside for lines that persist, by whoever else uses this context (a peer in this process): they
// outlive a flush, and the part is missing for everybody else. Not supported everywhere, and nothing persists where it
// is not.
void HeldStopwatch::release_persisting_l2() {
  const DriverApi& api = tools_.context->use();
  for (const CUresult result : {api.context_set_limit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0), api.reset_persisting_l2()})
    if (is_context_lost(result)) tools_.context->check(result, "releasing persisting cache lines");
}

double HeldStopwatch::time_us(const std::function<void()>& work, bool cold) {
  const Context& context = *tools_.context;
  const DriverApi& api = context.use();
  for (int attempt = 1;; ++attempt) {
    if (cold) {
      release_persisting_l2();
      tools_.flush_cache();
    }
    tools_.stamps->begin(hold_us_);
    const auto start = std::chrono::steady_clock::now();
    context.check(api.event_record(begin_, context.stream()), "recording an event");
    work();
    context.check(api.event_record(end_, context.stream()), "recording an event");
    const double submit_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    tools_.stamps->end();
    context.synchronize();
    kept_ahead_ = submit_us < hold_us_;
    hold_us_ = std::max(hold_us_, choose_hold_us(submit_us));
    if (kept_ahead_ || attempt == kAttempts) break;
  }
  float milliseconds = 0;
  context.check(api.event_elapsed_ms(&milliseconds, begin_, end_), "reading the events");
  return 1e3 * static_cast<double>(milliseconds);
}

ForeignGraphTimer::ForeignGraphTimer(TimerTools tools, CUgraphExec graph, int launches)
    : stopwatch_(std::move(tools)), graph_(graph), launches_(launches) {
  const Context& context = stopwatch_.context();
  context.check(context.use().graph_upload(graph_, context.stream()), "uploading somebody else's graph");
  sample();  // the first replay of a graph is slower
}

Sample ForeignGraphTimer::sample() {
  const Context& context = stopwatch_.context();
  const double time_us = stopwatch_.time_us(
      [&] { context.check(context.use().graph_launch(graph_, context.stream()), "launching somebody else's graph"); });
  if (!stopwatch_.kept_ahead())
    throw_environment(
        "the host did not keep ahead of the GPU with a graph of {} launches, so that its time would be counted; use an "
        "idle machine",
        launches_);
  return {time_us / launches_, stopwatch_.clock_mhz()};
}

CudaTimer::CudaTimer(TimerTools tools, std::vector<Launch> rotation, Regime regime, double sample_us)
    : stopwatch_(std::move(tools)), rotation_(std::move(rotation)), regime_(regime) {
  if (rotation_.empty()) throw_internal("a timer needs at least one launch");
  const Context& context = stopwatch_.context();
  try {
    for (const Launch& launch : rotation_) launch();  // loads code, touches every buffer
    context.synchronize();
    if (regime_ == Regime::kGraph) {
      const double estimate_us = time_once_us([this] {
                                   for (int i = 0; i < kEstimateLaunches; ++i) next_launch()();
                                 }) /
                                 kEstimateLaunches;
      launches_ = choose_launches(estimate_us, sample_us > 0 ? sample_us : kDefaultSampleUs);
      capture();
    }
    if (regime_ != Regime::kCold) time_once_us([this] { enqueue_work(); });  // the first replay of a graph is slower
  } catch (...) {
    if (graph_) context.use().graph_exec_destroy(graph_);
    throw;
  }
}

CudaTimer::~CudaTimer() {
  try {
    if (graph_) stopwatch_.context().use().graph_exec_destroy(graph_);
  } catch (const std::exception&) {  // the context is lost
  }
}

const Launch& CudaTimer::next_launch() { return rotation_[turn_++ % rotation_.size()]; }

void CudaTimer::capture() {
  const Context& context = stopwatch_.context();
  const DriverApi& api = context.use();
  context.check(api.stream_begin_capture(context.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "starting a capture");
  CUgraph graph = nullptr;
  try {
    for (int i = 0; i < launches_; ++i) next_launch()();
  } catch (...) {
    // Also ends the capture, without which the stream stays unusable.
    if (api.stream_end_capture(context.stream(), &graph) == CUDA_SUCCESS && graph) api.graph_destroy(graph);
    throw;
  }
  context.check(api.stream_end_capture(context.stream(), &graph), "capturing the launches");
  const CUresult result = api.graph_instantiate(&graph_, graph, 0);
  api.graph_destroy(graph);
  context.check(result, fmt::format("making a graph of {} launches", launches_));
  context.check(api.graph_upload(graph_, context.stream()), "uploading the graph");
  context.synchronize();
}

void CudaTimer::use_launches(int launches) {
  launches = std::clamp(launches, 1, kMaxLaunchesPerGraph);
  if (regime_ != Regime::kGraph || launches == launches_) return;
  launches_ = launches;
  stopwatch_.context().use().graph_exec_destroy(graph_);
  graph_ = nullptr;
  capture();
  time_once_us([this] { enqueue_work(); });  // the first replay of a graph is slower
}

void CudaTimer::enqueue_work() {
  const Context& context = stopwatch_.context();
  if (graph_) context.check(context.use().graph_launch(graph_, context.stream()), "launching the graph");
  else next_launch()();
}

Sample CudaTimer::sample() {
  Sample sample;
  sample.time_us = time_once_us([this] { enqueue_work(); }) / launches_;
  sample.clock_mhz = stopwatch_.clock_mhz();
  return sample;
}

}  // namespace flashcore::cuda
