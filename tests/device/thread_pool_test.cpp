#include "device/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <numeric>
#include <set>
#include <stdexcept>

#include "core/error.h"
#include "device/cpu/cpu_threads.h"

namespace flashcore {
namespace {

TEST(ThreadPool, CallsEveryWorkerOnce) {
  ThreadPool pool(4);
  for (int threads : {0, 1, 2, 3, 4, 9}) {
    std::vector<std::atomic<int>> calls(4);
    pool.run(threads, [&](int worker) { calls.at(static_cast<std::size_t>(worker)).fetch_add(1); });
    const int expected = threads == 0 ? 4 : std::min(threads, 4);
    for (int worker = 0; worker < 4; ++worker)
      EXPECT_EQ(calls[static_cast<std::size_t>(worker)], worker < expected ? 1 : 0);
  }
}

TEST(ThreadPool, ManyShortRunsLoseNothing) {
  ThreadPool pool(3);
  std::vector<std::int64_t> sums(3 * 16, 0);
  for (int i = 0; i < 5000; ++i)
    pool.run(1 + i % 3, [&](int worker) { sums[static_cast<std::size_t>(worker) * 16] += i; });
  std::int64_t expected = 0;
  for (int i = 0; i < 5000; ++i) expected += std::int64_t{i} * (1 + i % 3);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), expected);
}

TEST(ThreadPool, WorkersWakeAfterSleeping) {
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin
    std::atomic<int> calls{0};
    pool.run(0, [&](int) { calls.fetch_add(1); });
    EXPECT_EQ(calls, 2);
  }
}

TEST(ThreadPool, RethrowsAndGoesOn) {
  ThreadPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    EXPECT_THROW(pool.run(0,
                          [&](int worker) {
                            if (worker == thrower) throw std::runtime_error("no");
                          }),
                 std::runtime_error);
  }
  std::atomic<int> calls{0};
  pool.run(0, [&](int) { calls.fetch_add(1); });
  EXPECT_EQ(calls, 3);
}

TEST(ThreadPool, ARunInsideARunDoesNotWaitForItself) {
  ThreadPool pool(2);
  std::atomic<int> calls{0};
  pool.run(0, [&](int) { pool.run(0, [&](int) { calls.fetch_add(1); }); });
  EXPECT_EQ(calls, 4);
}

TEST(ThreadPool, CallersShareThePool) {
  ThreadPool pool(2);
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int n = 0; n < 200; ++n) pool.run(0, [&](int) { calls.fetch_add(1); });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 4 * 200 * 2);
}

// True once `count` threads are in here at one time; false when they were not for long.
class Meeting {
 public:
  explicit Meeting(int count) : missing_(count) {}
  bool wait() {
    std::unique_lock lock(mutex_);
    if (--missing_ <= 0) all_.notify_all();
    return all_.wait_for(lock, std::chrono::seconds(20), [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  int missing_;
};

// Each waits inside its run for the others: callers that took turns would never meet.
TEST(ThreadPool, RunsOfSeveralThreadsAreSideBySide) {
  ThreadPool pool(2);
  Meeting meeting(3);
  std::atomic<int> met{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([&] {
      pool.run(0, [&](int worker) {
        if (worker == 0) met += meeting.wait();
      });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(met, 3);
}

// While a caller holds the only helper, another does all of its own work.
TEST(ThreadPool, ACallerThatFindsTheHelpersBusyWorksAlone) {
  ThreadPool pool(2);
  Meeting both_inside(3), done(3);
  std::atomic<bool> met{true};
  std::thread holder([&] {
    pool.run_on_each([&](int) {
      met = met && both_inside.wait();
      met = met && done.wait();
    });
  });
  EXPECT_TRUE(both_inside.wait());
  std::set<std::thread::id> threads;
  std::atomic<int> calls{0};
  pool.run(0, [&](int) {
    threads.insert(std::this_thread::get_id());
    ++calls;
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
  EXPECT_TRUE(done.wait());
  holder.join();
  EXPECT_TRUE(met);
}

TEST(ThreadPool, RunOnEachHasAThreadForEach) {
  ThreadPool pool(3);
  Meeting meeting(3);
  std::atomic<int> met{0};
  pool.run_on_each([&](int) { met += meeting.wait(); });
  EXPECT_EQ(met, 3);
}

// The application's signals are not for threads that it does not know.
TEST(ThreadPool, HelpersBlockSignals) {
  ThreadPool pool(2);
  std::atomic<int> blocked{0};
  const auto caller = std::this_thread::get_id();
  pool.run_on_each([&](int) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (std::this_thread::get_id() != caller) blocked = sigismember(&mask, SIGTERM) + sigismember(&mask, SIGINT);
  });
  EXPECT_EQ(blocked, 2);
}

TEST(ThreadPool, NeedsAThread) { EXPECT_THROW(ThreadPool(0), Error); }

TEST(ThreadPool, TheProcessPoolHasOneThreadPerCore) {
  EXPECT_EQ(cpu_thread_pool().size(), cpu_threads());
  EXPECT_EQ(&cpu_thread_pool(), &cpu_thread_pool());
}

// Without a fresh pool the child would wait for workers that were not forked with it.
TEST(ThreadPool, AForkedChildCanCompute) {
  cpu_thread_pool().run(0, [](int) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends in SIGALRM, not in a stuck test
    std::atomic<int> calls{0};
    cpu_thread_pool().run(0, [&](int) { calls.fetch_add(1); });
    _exit(calls == cpu_thread_pool().size() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// At whatever moment it is forked, the child has no lock of another thread to wait for.
TEST(ThreadPool, AChildForkedWhileOthersRunCanCompute) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      while (!stop) cpu_thread_pool().run(0, [](int) {});
    });
  int good = 0;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::atomic<int> calls{0};
      cpu_thread_pool().run(0, [&](int) { calls.fetch_add(1); });
      _exit(calls == cpu_thread_pool().size() ? 0 : 1);
    }
    int status = 0;
    good += child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good, 20);
}

}  // namespace
}  // namespace flashcore
