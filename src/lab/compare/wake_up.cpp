#include "lab/compare/wake_up.h"

#include <fmt/format.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "core/error.h"
#include "core/parallel.h"
#include "lab/record/machine.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 12;
constexpr auto kPause = std::chrono::milliseconds(20);  // the scheduler takes a core for idle after some 10 ms
constexpr double kWorkUs = 2000;                        // longer than a helper is late where threads are packed
// Two cores at once may clock lower than one, and other programs take a share: neither is a sign of packing.
constexpr double kLonger = 1.25;

double us_since(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

// In registers: threads on cores of their own do not slow each other.
void work(long steps) {
  std::uint64_t x = 1;
  for (long i = 0; i < steps; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    asm volatile("" : "+r"(x));
  }
}

long steps_of_work() {
  for (long steps = 1 << 12;; steps *= 2) {
    const Clock::time_point begin = Clock::now();
    work(steps);
    if (const double us = us_since(begin); us >= kWorkUs / 2) return static_cast<long>(steps * (kWorkUs / us));
  }
}

// One thread that waits in the kernel for its rounds.
class Helper {
 public:
  explicit Helper(long steps) : steps_(steps), thread_([this] { run(); }) {}
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  ~Helper() {
    stopping_ = true;
    wake(asked_ + 1);
    thread_.join();
  }

  WakeUp round() {
    std::this_thread::sleep_for(kPause);
    const int number = asked_ + 1;
    const Clock::time_point begin = Clock::now();
    wake(number);
    const int own_cpu = sched_getcpu();
    work(steps_);
    while (done_ < number) done_.wait(number - 1);
    return {.late_us = std::chrono::duration<double, std::micro>(started_at_ - begin).count(),
            .both_us = us_since(begin),
            .on_wakers_core = cpu_ == own_cpu};
  }

 private:
  void wake(int number) {
    asked_ = number;
    asked_.notify_one();
  }

  void run() {
    for (int number = 1;; ++number) {
      while (asked_ < number) asked_.wait(number - 1);
      if (stopping_) return;
      started_at_ = Clock::now();
      cpu_ = sched_getcpu();
      work(steps_);
      done_ = number;
      done_.notify_one();
    }
  }

  const long steps_;
  std::atomic<int> asked_ = 0, done_ = 0;
  std::atomic<bool> stopping_ = false;
  // Written by the helper before done_, read after it.
  Clock::time_point started_at_;
  int cpu_ = -1;
  std::thread thread_;
};

double time_alone(long steps) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    std::this_thread::sleep_for(kPause);
    const Clock::time_point begin = Clock::now();
    work(steps);
    times.push_back(us_since(begin));
  }
  return median(times);
}

}  // namespace

WakeUpSummary summarise_wake_ups(const std::vector<WakeUp>& rounds, double alone_us, double others_busy) {
  FC_CHECK(!rounds.empty());
  WakeUpSummary summary{.rounds = static_cast<int>(rounds.size()), .alone_us = alone_us, .others_busy = others_busy};
  std::vector<double> late, both;
  for (const WakeUp& round : rounds) {
    late.push_back(round.late_us);
    both.push_back(round.both_us);
    summary.on_wakers_core += round.on_wakers_core;
  }
  summary.late_us = median(late);
  summary.both_us = median(both);
  // Where others use the cores, a helper on its waker's core may be nobody's fault.
  summary.packed =
      others_busy < kBusyCores && 2 * summary.on_wakers_core >= summary.rounds && summary.both_us > kLonger * alone_us;
  return summary;
}

std::optional<WakeUpSummary> measure_wake_ups() {
  if (hardware_threads() < 2) return std::nullopt;
  const LoadMeter meter;
  const long steps = steps_of_work();
  const double alone_us = time_alone(steps);
  Helper helper(steps);
  helper.round();  // its thread has just been made, and has not slept yet
  std::vector<WakeUp> rounds;
  for (int i = 0; i < kRounds; ++i) rounds.push_back(helper.round());
  MachineReading machine;
  meter.read(machine);
  return summarise_wake_ups(rounds, alone_us, machine.others_busy);
}

std::string wake_up_words(const WakeUpSummary& s) {
  const std::string placed =
      fmt::format("after a pause a helper thread starts {:.0f} us late, on its waker's core in {} of {} rounds",
                  s.late_us, s.on_wakers_core, s.rounds);
  if (s.others_busy >= kBusyCores)
    return fmt::format("{}; other programs kept {:.1f} cores busy: ask again when they do not", placed, s.others_busy);
  if (!s.packed) return placed;
  return fmt::format(
      "{}: two threads take {:.0f} us for what each does in {:.0f} us. This machine's scheduler packs threads on few "
      "cores, so that a call on several threads takes longer after a pause",
      placed, s.both_us, s.alone_us);
}

void to_json(nlohmann::json& j, const WakeUpSummary& s) {
  j = {{"rounds", s.rounds},   {"on_wakers_core", s.on_wakers_core},
       {"late_us", s.late_us}, {"alone_us", s.alone_us},
       {"both_us", s.both_us}, {"others_busy", s.others_busy >= 0 ? nlohmann::json(s.others_busy) : nlohmann::json()},
       {"packed", s.packed}};
}

}  // namespace flashcore
