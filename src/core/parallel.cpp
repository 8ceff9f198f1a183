#include "core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace flashcore {

int hardware_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more than 1024 logical cores; there the standard library's count has to do.
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

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
