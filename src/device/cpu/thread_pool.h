#pragma once
// Threads that outlive the call: a fork-join costs a few microseconds, not the tens that starting threads would.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace flashcore {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of run(), so threads - 1 are started. Error kBadInput below 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(worker) once for every 0 <= worker < min(threads, size()) (0 = size()) and returns when all are done;
  // worker 0 is the calling thread. The first exception is rethrown. Calls from several threads take turns; a call
  // from inside `body` runs its workers one after the other.
  void run(int threads, const std::function<void(int)>& body);

 private:
  // One per worker and on its own cache line, so that a launch on two threads wakes one, not all.
  struct alignas(64) Worker {
    std::atomic<std::uint32_t> ticket{0};
    std::thread thread;
  };
  void serve(int index, Worker& worker);
  void call(int index) noexcept;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex turn_;
  const std::function<void(int)>* body_ = nullptr;
  std::exception_ptr failure_;
  std::mutex failure_mutex_;
  bool stop_ = false;
  alignas(64) std::atomic<std::uint32_t> running_{0};
};

// The process's pool: as many threads as cores by affinity, started on first use. Never two of them, so that the
// machine is not oversubscribed. A forked child gets a fresh one.
ThreadPool& cpu_thread_pool();

}  // namespace flashcore
