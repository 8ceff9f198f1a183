#include "core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "core/cpu_quota.h"

namespace flashcore {

namespace {

// Read once. No function-local static: a child forked while another thread initialises one would wait for ever.
int threads_of_quota() {
  static std::atomic<int> known{0};
  int threads = known.load(std::memory_order_relaxed);
  if (threads == 0) {
    constexpr double kMost = 1 << 20;
    threads = static_cast<int>(std::clamp(std::ceil(cpu_quota().value_or(kMost)), 1.0, kMost));
    known.store(threads, std::memory_order_relaxed);
  }
  return threads;
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more than 1024 logical cores; there the standard library's count has to do.
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int hardware_threads() { return std::min(usable_cores(), threads_of_quota()); }

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t wanted = threads > 0 ? threads : hardware_threads();
  const std::int64_t used = std::min(count, wanted);
  if (used == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::thread> pool;
  pool.reserve(static_cast<std::size_t>(used - 1));
  try {
    for (std::int64_t t = 1; t < used; ++t) pool.emplace_back(work);
  } catch (const std::system_error&) {
    // A container's limit on threads: the ones that did start, and this one, do all the work.
  }
  work();
  for (std::thread& thread : pool) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace flashcore
