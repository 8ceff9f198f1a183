#include "device/cpu/cpu_threads.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "core/parallel.h"
#include "device/cpu/thread_pool.h"

namespace flashcore {
namespace {

TEST(CpuThreads, ReadsNumbersFromOneOn) {
  EXPECT_EQ(parse_threads("4"), 4);
  EXPECT_EQ(parse_threads(" 4 "), 4);
  EXPECT_EQ(parse_threads("4,2"), 4);  // OMP_NUM_THREADS: one for each level
  for (const char* text : {"", "0", "-1", "four", "4x", "1.5", "99999999999", ","})
    EXPECT_FALSE(parse_threads(text)) << text;
}

TEST(CpuThreads, TheProcessPoolFollowsTheSetting) {
  const int machine = cpu_threads();
  set_cpu_threads(1);
  EXPECT_EQ(cpu_threads(), 1);
  EXPECT_EQ(cpu_thread_pool().size(), 1);
  set_cpu_threads(100000);
  EXPECT_LE(cpu_threads(), hardware_threads());
  set_cpu_threads(0);
  EXPECT_EQ(cpu_threads(), machine);
  EXPECT_THROW(set_cpu_threads(-1), Error);
}

TEST(CpuThreads, ALimitIsOfItsThreadAndItsScope) {
  EXPECT_EQ(ThreadLimit::of_this_thread(), 0);
  {
    const ThreadLimit outer(3);
    {
      const ThreadLimit inner(1);
      EXPECT_EQ(cpu_thread_pool().size(), 1);
      std::thread([] { EXPECT_EQ(ThreadLimit::of_this_thread(), 0); }).join();
    }
    EXPECT_EQ(ThreadLimit::of_this_thread(), 3);
  }
  EXPECT_EQ(ThreadLimit::of_this_thread(), 0);
}

// Each in a process of its own, as the environment is read once.
int threads_with(const char* name, const char* value) {
  std::fflush(nullptr);
  int result = -1;
  EXPECT_EXIT(
      {
        unsetenv("FLASHCORE_THREADS");
        setenv("OMP_NUM_THREADS", "1", 1);
        setenv(name, value, 1);
        int threads = 0;
        try {
          threads = cpu_threads();
        } catch (const Error&) {
          threads = 100;
        }
        std::exit(threads);
      },
      [&result](int status) {
        result = WEXITSTATUS(status);
        return WIFEXITED(status);
      },
      "");
  return result;
}

TEST(CpuThreadsDeathTest, TheEnvironmentIsHonoured) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EQ(threads_with("OMP_NUM_THREADS", "1"), 1);
  EXPECT_EQ(threads_with("OMP_NUM_THREADS", "nonsense"), hardware_threads());
  EXPECT_EQ(threads_with("FLASHCORE_THREADS", "10000"), hardware_threads());  // its own goes before OpenMP's
  EXPECT_EQ(threads_with("FLASHCORE_THREADS", "0"), 100) << "refused";
  EXPECT_EQ(threads_with("FLASHCORE_THREADS", "two"), 100) << "refused";
}

}  // namespace
}  // namespace flashcore
