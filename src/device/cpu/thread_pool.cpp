#include "device/cpu/thread_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/parallel.h"
#include "device/cpu/cpu_threads.h"
#include "device/cpu/openmp.h"

namespace flashcore {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// Kernels come microseconds apart when they are timed: a helper that sleeps at once costs its caller a futex wake-up
// (5 us and more) per launch, one that spins for long takes a core from somebody else.
constexpr nanoseconds kMostSpin{30'000}, kLeastSpin{2'000};
// After it was preempted, a helper goes to sleep at once so many times.
constexpr int kHumbleRounds = 64;
// Helpers of one run; a machine of more cores runs a launch on so many.
constexpr int kMostHelpers = 511;

constexpr std::uintptr_t kTaken = 1;

thread_local bool t_inside_run = false;

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// False if `done` did not become true for as long as `limit`.
template <class Done>
bool spin_until(nanoseconds limit, Done done) {
  if (done()) return true;
  if (limit <= nanoseconds::zero()) return false;
  const auto give_up = Clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      pause_cpu();
      if (done()) return true;
    }
  } while (Clock::now() < give_up);
  return false;
}

// How often this thread lost its core to another: the sign that somebody else has use for it.
long preemptions() {
  rusage usage{};
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// Lives on the stack of the caller that made it.
struct InsideRun {
  const bool before = std::exchange(t_inside_run, true);
  InsideRun() = default;
  ~InsideRun() { t_inside_run = before; }
  InsideRun(const InsideRun&) = delete;
  InsideRun& operator=(const InsideRun&) = delete;
};

}  // namespace

struct ThreadPool::Job {
  Body body;
  int count;
  bool one_each;         // a worker for each thread, instead of the next to whoever is free
  int most_working = 0;  // of the threads of an OpenMP team; others have nothing to do
  std::atomic<int> entered{0};
  std::atomic<int> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure = nullptr;  // written by whoever set `failed`, read once all are done

  void work() noexcept {
    do {
      const int worker = next.fetch_add(1, std::memory_order_relaxed);
      if (worker >= count) return;
      try {
        body(worker);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
    } while (!one_each);
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads) {
  if (threads < 1) throw_bad_input("a thread pool of {} threads was asked for; at least 1 is needed", threads);
  for (int index = 1; index < std::min(threads, kMostHelpers + 1); ++index)
    helpers_.push_back(std::make_unique<Helper>());
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  for (auto& helper : helpers_) {
    helper->asleep.exchange(0);
    helper->asleep.notify_one();
    if (helper->thread.joinable()) helper->thread.join();
  }
}

int ThreadPool::most_threads() const {
  const int threads = static_cast<int>(helpers_.size()) + 1;
  return of_process_ ? std::min(threads, cpu_threads()) : threads;
}

int ThreadPool::size() const {
  const int limit = ThreadLimit::of_this_thread();
  return limit > 0 ? std::min(limit, most_threads()) : most_threads();
}

// Returns how many there are: a container's limit on threads is no error.
int ThreadPool::start_helpers(int wanted) {
  int started = started_.load(std::memory_order_acquire);
  if (started >= wanted) return started;
  const std::lock_guard lock(start_mutex_);
  // Helpers inherit the mask: the application's signals are for the application's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (started = started_.load(); started < wanted; ++started) {
    Helper& helper = *helpers_[static_cast<std::size_t>(started)];
    try {
      helper.thread = std::thread([this, &helper] { serve(helper); });
    } catch (const std::system_error&) {
      break;
    }
    started_.store(started + 1, std::memory_order_release);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

// What was offered, taken; 0 when the pool ends.
std::uintptr_t ThreadPool::wait_for_work(Helper& helper, nanoseconds& spin) {
  // Sequentially consistent, as are the accesses of offer(): one of the two sees what the other wrote.
  const auto work_or_end = [&] { return helper.work.load() != 0 || stop_.load(); };
  for (;;) {
    // Spinning is worth its while when work came within it; or would have, of a helper that had just gone to sleep.
    if (spin_until(spin, work_or_end)) {
      spin = std::min(2 * std::max(spin, kLeastSpin), kMostSpin);
    } else {
      const auto slept = Clock::now();
      helper.asleep.store(1);
      while (!work_or_end() && helper.asleep.load() == 1) helper.asleep.wait(1);
      helper.asleep.store(0);
      spin = Clock::now() - slept < kMostSpin ? kMostSpin : spin / 2;
      if (spin < kLeastSpin) spin = nanoseconds::zero();
    }
    if (stop_) return 0;
    std::uintptr_t offered = helper.work.load(std::memory_order_acquire);
    if (offered != 0 && helper.work.compare_exchange_strong(offered, offered | kTaken, std::memory_order_acq_rel))
      return offered;
  }
}

void ThreadPool::serve(Helper& helper) {
  t_inside_run = true;
  nanoseconds spin = kMostSpin;
  long before = preemptions();
  for (int humble = 0;;) {
    if (humble > 0) {
      --humble;
      spin = nanoseconds::zero();
    }
    const std::uintptr_t taken = wait_for_work(helper, spin);
    if (taken == 0) return;
    reinterpret_cast<Job*>(taken)->work();
    active_.fetch_sub(1, std::memory_order_relaxed);
    helper.work.store(0, std::memory_order_release);  // from here on the job may be gone
    helper.finished.fetch_add(1, std::memory_order_release);
    helper.finished.notify_all();
    if (const long now = preemptions(); now != before) {
      before = now;
      humble = kHumbleRounds;
    }
  }
}

bool ThreadPool::offer(Helper& helper, Job& job) {
  std::uintptr_t idle = 0;
  if (!helper.work.compare_exchange_strong(idle, reinterpret_cast<std::uintptr_t>(&job))) return false;
  active_.fetch_add(1, std::memory_order_relaxed);
  if (helper.asleep.load() == 1 && helper.asleep.exchange(0) == 1) helper.asleep.notify_one();
  return true;
}

// True if the helper had not begun, and never will.
bool ThreadPool::withdraw(Helper& helper, Job& job) {
  auto offered = reinterpret_cast<std::uintptr_t>(&job);
  if (!helper.work.compare_exchange_strong(offered, 0, std::memory_order_acq_rel)) return false;
  active_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

// Waits until the helper is done with what it was offered.
void ThreadPool::join(Helper& helper, const Job& job) {
  const auto mine = reinterpret_cast<std::uintptr_t>(&job);
  const auto done = [&] { return (helper.work.load(std::memory_order_acquire) & ~kTaken) != mine; };
  while (!spin_until(kMostSpin, done)) {
    const std::uint32_t seen = helper.finished.load(std::memory_order_acquire);
    if (done()) return;
    helper.finished.wait(seen, std::memory_order_acquire);
  }
}

void ThreadPool::run_alone(int count, Body body) {
  for (int worker = 0; worker < count; ++worker) body(worker);
}

// False if the runtime is of no use here: then our own threads are. Workers are not bound to its threads: those that
// come take the next, so that a team smaller than asked for (OMP_DYNAMIC, OMP_THREAD_LIMIT) does all of them.
bool ThreadPool::run_on_openmp(int count, int most_working, Body body) {
  const OpenMp* openmp = loaded_openmp();
  if (openmp == nullptr) return false;
  const int team = openmp->in_parallel() != 0 ? 1 : openmp->max_threads();
  if (team <= 1) {
    run_alone(count, body);  // its user wants one thread, or every one of them calls us
    return true;
  }
  // More than we may use, by a quota of the control group for example: a team is as slow as its last thread.
  if (team > static_cast<int>(helpers_.size()) + 1) return false;
  Job job{body, count, false};
  job.most_working = most_working;
  active_.fetch_add(std::min(team, most_working) - 1, std::memory_order_relaxed);
  // Always the team that the runtime's own user has, even where fewer work: libgomp ends the threads that a smaller
  // team leaves over and starts them anew for the next large one, which costs either user 20 us and more.
  openmp->parallel(
      [](void* data) {
        Job& shared = *static_cast<Job*>(data);
        if (shared.entered.fetch_add(1, std::memory_order_relaxed) >= shared.most_working) return;
        const InsideRun inside;
        shared.work();  // lets no exception out, which could not pass through the runtime
      },
      &job, static_cast<unsigned>(team), 0);
  active_.fetch_sub(std::min(team, most_working) - 1, std::memory_order_relaxed);
  if (job.failed) std::rethrow_exception(job.failure);
  return true;
}

void ThreadPool::run(int threads, Body body) {
  const int count = threads <= 0 ? size() : std::min(threads, size());
  if (t_inside_run) return run_alone(count, body);
  // Of callers that come together, each takes what those before left: more would only take turns with them.
  const int active = active_.fetch_add(1, std::memory_order_relaxed) + 1;
  struct Leave {
    std::atomic<int>& active;
    ~Leave() { active.fetch_sub(1, std::memory_order_relaxed); }
  } const leave{active_};
  const InsideRun inside;
  // A thread that is bound to one core would have its helpers there too.
  const int most = most_threads();
  int wanted = std::min(count - 1, most - active);
  if (wanted > 0) wanted = std::min(wanted, usable_cores() - 1);
  if (wanted <= 0) return run_alone(count, body);
  if (of_process_ && run_on_openmp(count, wanted + 1, body)) return;

  Job job{body, count, false};
  std::array<Helper*, kMostHelpers> mine;
  std::size_t held = 0;
  const int started = start_helpers(most - 1);
  for (int i = 0; i < started && static_cast<int>(held) < wanted; ++i)
    if (offer(*helpers_[static_cast<std::size_t>(i)], job)) mine[held++] = helpers_[static_cast<std::size_t>(i)].get();
  job.work();
  for (std::size_t i = 0; i < held; ++i)
    if (!withdraw(*mine[i], job)) join(*mine[i], job);
  if (job.failed) std::rethrow_exception(job.failure);
}

void ThreadPool::run_on_each(Body body) {
  const int count = size();
  if (t_inside_run) return run_alone(count, body);
  const std::lock_guard turn(each_mutex_);
  active_.fetch_add(count, std::memory_order_relaxed);  // nobody else takes a helper from here on
  const InsideRun inside;
  Job job{body, count, true};
  const int helping = std::min(start_helpers(count - 1), count - 1);
  for (int i = 0; i < helping; ++i)
    while (!offer(*helpers_[static_cast<std::size_t>(i)], job)) std::this_thread::yield();
  job.work();
  for (int i = 0; i < helping; ++i) join(*helpers_[static_cast<std::size_t>(i)], job);
  job.one_each = false;  // where threads could not be started, the caller does what is left
  job.work();
  active_.fetch_sub(count, std::memory_order_relaxed);
  if (job.failed) std::rethrow_exception(job.failure);
}

namespace {

std::atomic<ThreadPool*> g_pool{nullptr};

// Only the forking thread lives on in a child: its copy of the pool has no helpers. Registered when the library is
// loaded, so that no fork comes before it.
const int g_registered = pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); });

}  // namespace

ThreadPool& cpu_thread_pool() {
  if (ThreadPool* pool = g_pool.load(std::memory_order_acquire)) return *pool;
  if (g_registered != 0) throw_environment("pthread_atfork failed with {}: out of memory", g_registered);
  // Without a lock, which a child could inherit. Never destroyed: at exit another static's destructor may still
  // compute.
  auto made = std::make_unique<ThreadPool>(hardware_threads());
  made->of_process_ = true;
  ThreadPool* first = nullptr;
  if (!g_pool.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel)) return *first;
  return *made.release();
}

}  // namespace flashcore
