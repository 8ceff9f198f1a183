#include "lab/process/worker.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "core/error.h"

namespace flashcore {
namespace {

EvaluateRequest request_for(const std::string& candidate) {
  EvaluateRequest request;
  request.problem.dtype = DType::kF32;
  request.problem.seqlen_q = request.problem.seqlen_kv = 33;
  request.problem.head_dim = request.problem.head_dim_v = 16;
  request.problem_name = "small";
  request.candidate = candidate;
  request.time = false;
  return request;
}

Worker make_worker(const std::string& device = "fake") { return Worker(device, FLASHCORE_WORKER_HELPER); }

bool mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

TEST(Worker, ATrialComesBackWhole) {
  Worker worker = make_worker();
  const Trial trial = worker.evaluate(request_for("fake_none:block=32"));
  EXPECT_EQ(trial.ended, Ended::kPassed) << trial.message;
  EXPECT_EQ(trial.config, "block=32,unroll=1,spread=0");
  EXPECT_EQ(trial.device.key, "fake");
  EXPECT_EQ(worker.device().key, "fake");
  EXPECT_TRUE(trial.error);
  EXPECT_EQ(worker.restarts(), 0);
}

TEST(Worker, ACrashIsATrialAndTheNextRequestGetsAFreshChild) {
  Worker worker = make_worker();
  const Trial crashed = worker.evaluate(request_for("fake_segfault:block=32"));
  EXPECT_EQ(crashed.ended, Ended::kCrashed);
  EXPECT_TRUE(mentions(crashed.message, "SIGSEGV") && mentions(crashed.message, "stage correctness"))
      << crashed.message;
  EXPECT_EQ(crashed.family, "fake_segfault");
  EXPECT_EQ(crashed.config, "block=32");
  EXPECT_EQ(crashed.device.key, "fake");
  EXPECT_EQ(crashed.problem_name, "small");
  EXPECT_EQ(crashed.gates.back().gate, Gate::kCorrectness);
  EXPECT_TRUE(passed_gate(crashed, Gate::kCompile)) << "what it passed before it crashed is known";
  EXPECT_EQ(worker.evaluate(request_for("fake_none")).ended, Ended::kPassed);
  EXPECT_EQ(worker.restarts(), 1);
}

TEST(Worker, AHangIsEndedAndSaysWhere) {
  Worker worker = make_worker();
  const auto start = std::chrono::steady_clock::now();
  const Trial hung = worker.evaluate(request_for("fake_hang"), 0.5);
  EXPECT_EQ(hung.ended, Ended::kTimeout);
  EXPECT_TRUE(mentions(hung.message, "stage correctness")) << hung.message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(worker.evaluate(request_for("fake_none")).ended, Ended::kPassed);
}

TEST(Worker, ALostContextIsACrashWithItsReason) {
  Worker worker = make_worker();
  const Trial trial = worker.evaluate(request_for("fake_device_fault"));
  EXPECT_EQ(trial.ended, Ended::kCrashed);
  EXPECT_TRUE(mentions(trial.message, "illegal memory access")) << trial.message;
  EXPECT_EQ(worker.evaluate(request_for("fake_none")).ended, Ended::kPassed);
}

TEST(Worker, LastWordsAreKeptAndPrintsDoNotGarbleTheProtocol) {
  Worker worker = make_worker();
  const Trial trial = worker.evaluate(request_for("fake_aborts"));
  EXPECT_EQ(trial.ended, Ended::kCrashed);
  EXPECT_TRUE(mentions(trial.message, "SIGABRT")) << trial.message;
  EXPECT_TRUE(mentions(trial.message, "last words of the child")) << trial.message;
}

TEST(Worker, GarbageIsNotATrial) {
  Worker worker = make_worker("garbage");
  const Trial trial = worker.evaluate(request_for("fake_none"));
  EXPECT_EQ(trial.ended, Ended::kCrashed);
  EXPECT_TRUE(mentions(trial.message, "not JSON")) << trial.message;
}

TEST(Worker, ATrialWithoutTheRequestsNumberIsNoTrial) {
  Worker worker = make_worker("forges");
  const Trial trial = worker.evaluate(request_for("fake_none"));
  EXPECT_EQ(trial.ended, Ended::kCrashed);
  EXPECT_TRUE(mentions(trial.message, "without this request's number")) << trial.message;
}

TEST(Worker, AChildThatMisbehavesOnItsStreamsIsACrashOrATimeout) {
  struct Case {
    const char* device;
    Ended ended;
    const char* says;
    double seconds;
  };
  // The last has more time than the test: its end must not be waited for.
  for (const Case& c : {Case{"then_floods", Ended::kCrashed, "without a newline", 300},
                        Case{"then_tells_stages_forever", Ended::kCrashed, "something else than a trial", 300},
                        Case{"then_tells_no_gate", Ended::kCrashed, "something else than a trial in stage start", 300},
                        Case{"then_floods_stderr", Ended::kTimeout, "no answer after", 0.5},
                        Case{"then_closes_stdout", Ended::kCrashed, "lived on", 10000}}) {
    Worker worker = make_worker(c.device);
    const auto start = std::chrono::steady_clock::now();
    const Trial trial = worker.evaluate(request_for("fake_none"), c.seconds);
    EXPECT_EQ(trial.ended, c.ended) << c.device << ": " << trial.message;
    EXPECT_TRUE(mentions(trial.message, c.says)) << c.device << ": " << trial.message;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120)) << c.device;
  }
}

TEST(Worker, AMissingDeviceIsAnErrorNotATrial) {
  Worker absent = make_worker("absent");
  try {
    absent.evaluate(request_for("fake_none"));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kEnvironment);
    EXPECT_TRUE(mentions(e.what(), "plug one in"));
  }
  Worker dead = make_worker("dies_at_once");
  EXPECT_THROW(dead.device(), Error);
  Worker none("fake", "/no/such/program");
  EXPECT_THROW(none.evaluate(request_for("fake_none")), Error);
}

TEST(Worker, CanBeCancelledInTheMiddle) {
  Worker worker = make_worker();
  worker.device();
  worker.cancel_when([] { return true; });
  EXPECT_THROW(worker.evaluate(request_for("fake_hang")), Cancelled);
  worker.cancel_when({});
  EXPECT_EQ(worker.evaluate(request_for("fake_none")).ended, Ended::kPassed);
}

TEST(Worker, ATaskThatItDoesNotKnowIsAFailureAndTheNextRequestGetsAFreshChild) {
  Worker worker = make_worker();
  const TaskOutcome outcome = worker.run_task("no such task", nlohmann::json::object(), 30);
  EXPECT_TRUE(outcome.answer.is_null());
  EXPECT_TRUE(mentions(outcome.failure, "could not be read")) << outcome.failure;
  EXPECT_EQ(worker.evaluate(request_for("fake_none")).ended, Ended::kPassed);
  EXPECT_EQ(worker.restarts(), 1);
}

// Nobody must be left behind computing on a GPU when the parent is killed.
TEST(Worker, TheChildDiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    Worker worker = make_worker();
    worker.device();
    // The only child of this process is the worker's guard, and the guard's the worker.
    pid_t child = getpid();
    for (int generation = 0; generation < 2; ++generation) {
      const std::string of = std::to_string(child);
      std::ifstream children("/proc/" + of + "/task/" + of + "/children");
      child = 0;
      children >> child;
    }
    (void)!write(ends[1], &child, sizeof child);
    pause();
    _exit(0);
  }
  pid_t child = 0;
  ASSERT_EQ(read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  bool gone = false;
  for (int i = 0; i < 500 && !gone; ++i) {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string text;
    gone = !std::getline(stat, text) || text.find(") Z ") != std::string::npos;
    if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(gone);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace flashcore
