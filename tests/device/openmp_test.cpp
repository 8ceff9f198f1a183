#include "device/cpu/openmp.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "device/cpu/thread_pool.h"

namespace flashcore {
namespace {

// Loaded as a framework would: not linked, its symbols for itself.
const OpenMp* openmp_of_somebody() {
  static void* const library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library == nullptr ? nullptr : loaded_openmp();
}

void set_threads(int threads) {
  static const auto set = reinterpret_cast<void (*)(int)>(
      dlsym(dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD), "omp_set_num_threads"));
  set(threads);
}

class OpenMpTest : public testing::Test {
 protected:
  void SetUp() override {
    if (dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "no libgomp.so.1 on this machine";
    if (hardware_threads() < 2) GTEST_SKIP() << "one core: nothing runs on a second thread";
    ASSERT_NE(openmp_of_somebody(), nullptr);
    set_threads(2);
  }
};

// The threads on which both calls of a team or a run were made; each waits for the other, up to 20 s.
class Threads {
 public:
  void note() {
    {
      const std::lock_guard lock(mutex_);
      seen_.insert(gettid());
    }
    arrived_.fetch_add(1);
    for (int i = 0; i < 20'000 && arrived_ < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::set<pid_t>& seen() const { return seen_; }

 private:
  std::mutex mutex_;
  std::set<pid_t> seen_;
  std::atomic<int> arrived_{0};
};

TEST_F(OpenMpTest, TheProcessesPoolRunsOnItsThreads) {
  Threads of_openmp, of_pool;
  loaded_openmp()->parallel([](void* data) { static_cast<Threads*>(data)->note(); }, &of_openmp, 2, 0);
  ASSERT_EQ(of_openmp.seen().size(), 2u);
  cpu_thread_pool().run(2, [&](int) { of_pool.note(); });
  EXPECT_EQ(of_pool.seen(), of_openmp.seen());
}

TEST_F(OpenMpTest, ItsLimitOfThreadsHolds) {
  set_threads(1);
  std::atomic<int> here{0};
  const pid_t caller = gettid();
  cpu_thread_pool().run(2, [&](int) { here += gettid() == caller; });
  EXPECT_EQ(here, 2);
}

TEST_F(OpenMpTest, ARunInsideAParallelRegionStaysOnItsThread) {
  struct Seen {
    std::atomic<int> calls{0}, elsewhere{0};
  } seen;
  loaded_openmp()->parallel(
      [](void* data) {
        auto& found = *static_cast<Seen*>(data);
        const pid_t caller = gettid();
        cpu_thread_pool().run(2, [&](int) {
          ++found.calls;
          found.elsewhere += gettid() != caller;
        });
      },
      &seen, 2, 0);
  EXPECT_EQ(seen.calls, 4);
  EXPECT_EQ(seen.elsewhere, 0);
}

TEST_F(OpenMpTest, ExceptionsComeBackToTheCaller) {
  for (int thrower = 0; thrower < 2; ++thrower) {
    EXPECT_THROW(cpu_thread_pool().run(2,
                                       [&](int worker) {
                                         if (worker == thrower) throw std::runtime_error("no");
                                       }),
                 std::runtime_error);
  }
}

TEST_F(OpenMpTest, CallersSideBySideLoseNothing) {
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int n = 0; n < 50; ++n) cpu_thread_pool().run(2, [&](int) { ++calls; });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 4 * 50 * 2);
}

// libgomp's team of the parent does not exist in the child, where a parallel region would wait for it for ever.
TEST_F(OpenMpTest, AForkedChildUsesThreadsOfItsOwn) {
  cpu_thread_pool().run(2, [](int) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    Threads threads;
    cpu_thread_pool().run(2, [&](int) { threads.note(); });
    _exit(loaded_openmp() == nullptr && threads.seen().size() == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

}  // namespace
}  // namespace flashcore
