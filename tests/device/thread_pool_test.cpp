#include "device/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <stdexcept>

#include "core/error.h"
#include "core/parallel.h"

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

TEST(ThreadPool, CallersTakeTurns) {
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

TEST(ThreadPool, NeedsAThread) { EXPECT_THROW(ThreadPool(0), Error); }

TEST(ThreadPool, TheProcessPoolHasOneThreadPerCore) {
  EXPECT_EQ(cpu_thread_pool().size(), hardware_threads());
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

}  // namespace
}  // namespace flashcore
