#include "device/cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/parallel.h"

namespace flashcore {
namespace {

// Kernels come microseconds apart when they are timed: a worker that sleeps at once pays a futex wake-up (5 us and
// more) per launch, one that spins for long takes a core from somebody else.
constexpr std::chrono::microseconds kSpin{30};

thread_local bool t_inside_run = false;

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns the value once it is no longer `old`.
std::uint32_t wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t value = word.load(std::memory_order_acquire);
      if (value != old) return value;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads < 1) throw_bad_input("a thread pool of {} threads was asked for; at least 1 is needed", threads);
  for (int index = 1; index < threads; ++index) workers_.push_back(std::make_unique<Worker>());
  for (int index = 1; index < threads; ++index) {
    Worker& worker = *workers_[index - 1];
    worker.thread = std::thread([this, index, &worker] { serve(index, worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;  // published by the tickets below
  for (auto& worker : workers_) {
    worker->ticket.fetch_add(1, std::memory_order_release);
    worker->ticket.notify_one();
  }
  for (auto& worker : workers_) worker->thread.join();
}

void ThreadPool::serve(int index, Worker& worker) {
  t_inside_run = true;
  std::uint32_t seen = 0;
  for (;;) {
    seen = wait_for_change(worker.ticket, seen);
    if (stop_) return;
    call(index);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::call(int index) noexcept {
  try {
    (*body_)(index);
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadPool::run(int threads, const std::function<void(int)>& body) {
  const int count = threads <= 0 ? size() : std::min(threads, size());
  if (t_inside_run) {
    for (int index = 0; index < count; ++index) body(index);
    return;
  }
  const std::lock_guard turn(turn_);
  body_ = &body;
  failure_ = nullptr;
  running_.store(static_cast<std::uint32_t>(count - 1), std::memory_order_relaxed);
  for (int index = 1; index < count; ++index) {
    Worker& worker = *workers_[index - 1];
    worker.ticket.fetch_add(1, std::memory_order_release);
    worker.ticket.notify_one();
  }
  t_inside_run = true;
  call(0);
  t_inside_run = false;
  for (std::uint32_t left = running_.load(std::memory_order_acquire); left != 0;)
    left = wait_for_change(running_, left);
  if (failure_) std::rethrow_exception(failure_);
}

namespace {

std::atomic<ThreadPool*> g_pool{nullptr};
std::mutex g_pool_mutex;

}  // namespace

ThreadPool& cpu_thread_pool() {
  if (ThreadPool* pool = g_pool.load(std::memory_order_acquire)) return *pool;
  const std::lock_guard lock(g_pool_mutex);
  if (ThreadPool* pool = g_pool.load(std::memory_order_acquire)) return *pool;
  // Only the forking thread lives on in a child: its copy of the pool has no workers and would wait for ever.
  static const int registered = pthread_atfork([] { g_pool_mutex.lock(); }, [] { g_pool_mutex.unlock(); },
                                               [] {
                                                 g_pool.store(nullptr);
                                                 g_pool_mutex.unlock();
                                               });
  if (registered != 0) throw_environment("pthread_atfork failed with {}: out of memory", registered);
  // Never destroyed: at exit another static's destructor may still compute.
  auto* pool = new ThreadPool(hardware_threads());
  g_pool.store(pool, std::memory_order_release);
  return *pool;
}

}  // namespace flashcore
