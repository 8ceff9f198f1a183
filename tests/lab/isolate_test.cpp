#include "lab/process/isolate.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <map>
#include <stdexcept>
#include <thread>

namespace flashcore {
namespace {

std::map<std::int64_t, Isolated> run_all(std::int64_t count, const IsolateOptions& options,
                                         const std::function<std::string(std::int64_t)>& body) {
  std::map<std::int64_t, Isolated> results;
  run_isolated(count, options, body, [&](std::int64_t i, const Isolated& result) {
    EXPECT_TRUE(results.emplace(i, result).second) << "item " << i << " was told twice";
  });
  return results;
}

TEST(Isolate, EveryItemComesBackOnceWhateverItsSize) {
  const auto results = run_all(23, {.parallel = 3, .batch = 4},
                               [](std::int64_t i) { return std::string(static_cast<std::size_t>(i) * 20000, 'x'); });
  ASSERT_EQ(results.size(), 23U);
  for (const auto& [i, result] : results) {
    EXPECT_TRUE(result.completed);
    EXPECT_EQ(result.output.size(), static_cast<std::size_t>(i) * 20000);
  }
}

TEST(Isolate, ACrashFailsOnlyTheItemInHand) {
  const pid_t parent = getpid();
  const auto results = run_all(9, {.parallel = 2, .batch = 9}, [parent](std::int64_t i) -> std::string {
    if (getpid() == parent) return "not isolated";
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would turn it into an exit code
    if (i == 2) raise(SIGSEGV);
    if (i == 5) throw std::runtime_error("five");
    if (i == 7) _exit(3);
    return std::to_string(i);
  });
  ASSERT_EQ(results.size(), 9U);
  for (const auto& [i, result] : results) {
    if (i == 2 || i == 5 || i == 7) {
      EXPECT_FALSE(result.completed);
    } else {
      EXPECT_EQ(result.output, std::to_string(i));
    }
  }
  EXPECT_EQ(results.at(2).failure, "crashed with SIGSEGV");
  EXPECT_EQ(results.at(5).failure, "threw: five");
  EXPECT_EQ(results.at(7).failure, "ended by itself with exit code 3");
}

TEST(Isolate, AHangIsEnded) {
  const auto results = run_all(3, {.parallel = 1, .batch = 3, .timeout_seconds = 0.3}, [](std::int64_t i) {
    if (i == 1) std::this_thread::sleep_for(std::chrono::hours(1));
    return std::string("done");
  });
  ASSERT_EQ(results.size(), 3U);
  EXPECT_TRUE(results.at(0).completed);
  EXPECT_NE(results.at(1).failure.find("still running"), std::string::npos);
  EXPECT_TRUE(results.at(2).completed);
}

// What it started is ended with it, whatever it did to its pipe.
TEST(Isolate, AChildThatBreaksItsPipeFailsOnlyItsItem) {
  const auto results =
      run_all(4, {.parallel = 2, .batch = 4, .timeout_seconds = 100}, [](std::int64_t i) -> std::string {
        if (i == 1) {
          for (int fd = 0; fd < 256; ++fd) close(fd);
          if (fork() == 0) setsid();
          pause();
        }
        if (i == 2) {
          const std::string garbage(64, '\xff');
          for (int fd = 3; fd < 256; ++fd) (void)!write(fd, garbage.data(), garbage.size());
          pause();
        }
        return "done";
      });
  ASSERT_EQ(results.size(), 4U);
  EXPECT_TRUE(results.at(0).completed);
  EXPECT_EQ(results.at(1).failure, "closed its pipe but lived on, and was ended");
  EXPECT_EQ(results.at(2).failure, "wrote what is no result, and was ended");
  EXPECT_TRUE(results.at(3).completed);
}

TEST(Isolate, StopsWhenAsked) {
  int told = 0;
  run_isolated(
      1000, {.parallel = 1, .batch = 1}, [](std::int64_t) { return std::string(); },
      [&](std::int64_t, const Isolated&) { ++told; }, [&] { return told >= 3; });
  EXPECT_GE(told, 3);
  EXPECT_LT(told, 10);
}

}  // namespace
}  // namespace flashcore
