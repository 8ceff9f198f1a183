#pragma once
// Threads that outlive the call: a fork-join costs a few microseconds, not the tens that starting threads would.

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace flashcore {

// A callable that lives as long as the call it is given to: a std::function would allocate in every launch.
class Body {
 public:
  template <class F>
  requires std::invocable<F&, int> &&(!std::same_as<std::remove_cvref_t<F>, Body>)
      Body(F&& callable)  // NOLINT(google-explicit-constructor): as std::function
      : object_(const_cast<void*>(static_cast<const void*>(&callable))),
        call_([](void* object, int worker) { (*static_cast<std::remove_reference_t<F>*>(object))(worker); }) {}
  void operator()(int worker) const { call_(object_, worker); }

 private:
  void* object_;
  void (*call_)(void*, int);
};

// Helpers that any number of callers share. A caller takes the helpers that are idle and works itself meanwhile, so
// that it never waits for a thread that has not begun: calls from several threads run side by side, one that finds all
// helpers busy runs on its own thread alone, and so does one on a machine where helpers get no core. Callers hold no
// lock, so a child forked at any moment inherits none; its copy of the pool has no helpers and is not to be used.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of run(); helpers start when they are first wanted. Error kBadInput below 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The most workers that a run of this thread may have now: the pool's threads, within cpu_threads() if it is the
  // process's pool, and within this thread's ThreadLimit. run() may use fewer: an OpenMP runtime's own limit.
  int size() const;

  // Calls body(worker) exactly once for every 0 <= worker < min(threads, size()) (0 = size()) and returns when all are
  // done. Workers are numbers, not threads: those that no idle helper took are called by the calling thread, one after
  // the other. The first exception is rethrown. A call from inside `body` gets no helpers. No helper
  // is taken that would make more busy threads than the pool has: of as many callers as cores, each runs alone.
  // The process's pool runs on the threads of an OpenMP runtime if one is loaded (device/cpu/openmp.h).
  void run(int threads, Body body);

  // The same with a thread for each worker, side by side: for measuring what the cores can do. Waits until all helpers
  // are idle. Fewer threads only where the system refuses to start them.
  void run_on_each(Body body);

 private:
  friend ThreadPool& cpu_thread_pool();
  struct Job;
  // On cache lines of its own, so that a launch on two threads wakes one, not all.
  struct alignas(64) Helper {
    // 0: idle. A job's address: it is offered, and whoever offered it may take it back. The address + 1: it is being
    // worked on, and the job lives until this changes.
    std::atomic<std::uintptr_t> work{0};
    std::atomic<std::uint32_t> asleep{0}, finished{0};
    std::thread thread;
  };

  int most_threads() const;
  int start_helpers(int wanted);
  void serve(Helper& helper);
  std::uintptr_t wait_for_work(Helper& helper, std::chrono::nanoseconds& spin);
  bool offer(Helper& helper, Job& job);
  bool withdraw(Helper& helper, Job& job);
  void join(Helper& helper, const Job& job);
  void run_alone(int count, Body body);
  bool run_on_openmp(int count, int most_working, Body body);

  const int threads_;
  bool of_process_ = false;  // bound by cpu_threads()
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::atomic<int> started_{0};
  std::atomic<int> active_{0};  // callers in run() and the helpers that they hold
  std::atomic<bool> stop_{false};
  std::mutex start_mutex_, each_mutex_;
};

// The process's pool: as many threads as hardware_threads(), used within cpu_threads(). Never two of them, so that the
// machine is not oversubscribed. A forked child gets a fresh one.
ThreadPool& cpu_thread_pool();

}  // namespace flashcore
