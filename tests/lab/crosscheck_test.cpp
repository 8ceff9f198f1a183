#include "lab/compare/crosscheck.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/random.h"
#include "lab/compare/crosscheck_tools.h"
#include "lab/fake.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

std::vector<double> times(double middle, int count, double noise = 0.001, std::uint64_t seed = 1) {
  SplitMix random(seed);
  std::vector<double> out;
  for (int i = 0; i < count; ++i) out.push_back(middle * (1 + noise * random.normal()));
  return out;
}

EngineReading engine(double warm = 100, double cold = 0) {
  EngineReading e{.warm_us = times(warm, 24), .cold_us = {}, .clock_mhz = 1800, .empty_launch_us = 4, .throttled = 0};
  if (cold > 0) e.cold_us = times(cold, 24, 0.001, 2);
  return e;
}

MethodReading method(double middle, double noise = 0.001) {
  return {.method = "another", .times_us = times(middle, 24, noise, 3)};
}

TEST(Crosscheck, AgreesWithinTheLimit) {
  EXPECT_EQ(judge_method(engine(), method(101), 0.02).agreement, Agreement::kAgrees);
}

// It is launched in this process for its times: who hangs there is waited for without end.
TEST(Crosscheck, ACandidateThatHangsOrCrashesIsNamedBeforeItIsTimed) {
  const test::AllFakeFamilies families;
  Worker worker("fake", FLASHCORE_WORKER_HELPER);
  NamedProblem named;
  named.name = "small";
  named.problem = PlacedProblem::parse("b1_h1_s33_d16_fp32");
  const DeviceLimits limits = worker.device().limits;
  const auto why = [&](const char* candidate, double seconds = 0) {
    return why_not_launched(worker, named, parse_candidate(candidate, named.problem, limits), seconds);
  };
  EXPECT_NE(why("fake_hang", 2).find("no answer after 2 s, in stage correctness: the worker process was ended"),
            std::string::npos);
  EXPECT_NE(why("fake_segfault").find("SIGSEGV"), std::string::npos);
  EXPECT_EQ(why("fake_none"), "");
  EXPECT_EQ(why("fake_wrong_tail"), "") << "who is wrong is told so by its timed outputs";
}

TEST(Crosscheck, ADifferenceThatNothingExplainsIsAFinding) {
  const MethodVerdict verdict = judge_method(engine(), method(110), 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kDisagrees);
  EXPECT_NEAR(verdict.ratio.estimate, 1.1, 0.01);
  // Faster than the engine is as suspicious as slower.
  EXPECT_EQ(judge_method(engine(), method(90), 0.02).agreement, Agreement::kDisagrees);
}

TEST(Crosscheck, NoiseJudgesNothing) {
  const MethodVerdict verdict = judge_method(engine(), method(102, 0.1), 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kNotJudged);
  EXPECT_NE(verdict.cause.find("noise"), std::string::npos);
}

TEST(Crosscheck, AKernelThatFailedIsNotJudged) {
  CrosscheckResult result;
  result.failed = "the kernel did not compile: error";
  EXPECT_EQ(result.agreement(), Agreement::kNotJudged);
  EXPECT_EQ(result.why(), result.failed);
  EXPECT_EQ(crosscheck_json(result)["failed"], result.failed);
}

TEST(Crosscheck, FewTimesJudgeNothing) {
  MethodReading few = method(100);
  few.times_us.resize(5);
  EXPECT_EQ(judge_method(engine(), few, 0.02).agreement, Agreement::kNotJudged);
  EXPECT_NE(judge_method(engine(), few, 0.02).cause.find("5 times"), std::string::npos);
}

TEST(Crosscheck, AMissingToolIsNotJudgedAndSaysWhy) {
  const MethodVerdict verdict = judge_method(engine(), {.method = "ncu", .why_not = "ncu is not on PATH"}, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kNotJudged);
  EXPECT_EQ(verdict.cause, "ncu is not on PATH");
}

TEST(Crosscheck, AColdMethodIsHeldAgainstTheColdRegime) {
  MethodReading cold = method(150);
  cold.cold = true;
  EXPECT_EQ(judge_method(engine(100, 150), cold, 0.02).agreement, Agreement::kAgrees);
  // Said to be warm, and as slow as the cold regime: that is the cause.
  const MethodVerdict verdict = judge_method(engine(100, 150), method(150), 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("state of the cache"), std::string::npos);
}

TEST(Crosscheck, LaunchOverheadIsACauseOnlyWhereLaunchesLieInside) {
  MethodReading host = method(106);
  EXPECT_EQ(judge_method(engine(), host, 0.02).agreement, Agreement::kDisagrees);
  host.host_launch = true;
  const MethodVerdict verdict = judge_method(engine(), host, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("launch overhead"), std::string::npos);
  // Thirty microseconds are no launch of four.
  host = method(130);
  host.host_launch = true;
  EXPECT_EQ(judge_method(engine(), host, 0.02).agreement, Agreement::kDisagrees);
}

TEST(Crosscheck, WhatPassesAroundALoopIsACause) {
  MethodReading loop = method(115);
  loop.launches = 3, loop.around_us = 44;
  const MethodVerdict verdict = judge_method(engine(), loop, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("44.00 us pass around its 3 launches"), std::string::npos);
  // It accounts for itself, to the limit: neither for more nor for less.
  loop.around_us = 30;
  EXPECT_EQ(judge_method(engine(), loop, 0.02).agreement, Agreement::kDisagrees);
  loop.around_us = 60;
  EXPECT_EQ(judge_method(engine(), loop, 0.02).agreement, Agreement::kDisagrees);
}

TEST(Crosscheck, WhatAToolTellsOfAnEmptyKernelIsACause) {
  MethodReading tool = method(106);
  tool.empty_us = 6.5;
  const MethodVerdict verdict = judge_method(engine(), tool, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("does nothing at 6.50 us"), std::string::npos);
  // It accounts for what the tool adds to an empty kernel and for the limit, not for more.
  tool.empty_us = 4.5;
  EXPECT_EQ(judge_method(engine(), tool, 0.02).agreement, Agreement::kExplained);
  tool.empty_us = 3.5;
  EXPECT_EQ(judge_method(engine(), tool, 0.02).agreement, Agreement::kDisagrees);
}

TEST(Crosscheck, AHostSlowerThanTheLaunchIsACause) {
  MethodReading waits = method(500);
  waits.host_launch = true, waits.host_us = 480;
  const MethodVerdict verdict = judge_method(engine(), waits, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("480.00 us to start a launch"), std::string::npos);
  // It accounts for no more than itself, and for nothing where the launch takes longer.
  waits.host_us = 300;
  EXPECT_EQ(judge_method(engine(), waits, 0.02).agreement, Agreement::kDisagrees);
  waits = method(130);
  waits.host_launch = true, waits.host_us = 90;
  EXPECT_EQ(judge_method(engine(), waits, 0.02).agreement, Agreement::kDisagrees);
}

TEST(Crosscheck, AnotherClockIsACause) {
  MethodReading slow = method(120);
  slow.clock_mhz = 1500;
  const MethodVerdict verdict = judge_method(engine(), slow, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("1500 MHz"), std::string::npos);
}

TEST(Crosscheck, AMachineThatThrottledIsACause) {
  EngineReading hot = engine();
  hot.throttled = 7;
  // Without clocks it may account for anything, so nothing is judged.
  EXPECT_EQ(judge_method(hot, method(110), 0.02).agreement, Agreement::kNotJudged);
  hot.slowest_mhz = 1500, hot.fastest_mhz = 1800;
  const MethodVerdict verdict = judge_method(hot, method(110), 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kExplained);
  EXPECT_NE(verdict.cause.find("7 of the engine's samples ran throttled"), std::string::npos);
  EXPECT_EQ(judge_method(hot, method(90), 0.02).agreement, Agreement::kExplained);
  // No more than its clocks differ.
  EXPECT_EQ(judge_method(hot, method(130), 0.02).agreement, Agreement::kDisagrees);
  EXPECT_EQ(judge_method(hot, method(50), 0.02).agreement, Agreement::kDisagrees);
}

// On a CPU that others use too, who waits for a core is slower for it, by a few turns of the scheduler.
TEST(Crosscheck, ABusyMachineJudgesNoSmallDisagreement) {
  EngineReading busy = engine();
  busy.others_busy = 1.9;
  EXPECT_EQ(judge_method(busy, method(101), 0.02).agreement, Agreement::kAgrees);
  const MethodVerdict verdict = judge_method(busy, method(300), 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kNotJudged);
  EXPECT_NE(verdict.cause.find("1.9 cores busy"), std::string::npos);
  EXPECT_EQ(judge_method(busy, method(5000), 0.02).agreement, Agreement::kNotJudged) << "5 ms are one turn";
  EXPECT_EQ(judge_method(busy, method(50000), 0.02).agreement, Agreement::kDisagrees);
  // Ran at another time: the machine may have been less busy then. In the same rounds nothing makes it faster.
  MethodReading faster = method(50);
  EXPECT_EQ(judge_method(busy, faster, 0.02).agreement, Agreement::kNotJudged);
  faster.interleaved = true;
  EXPECT_EQ(judge_method(busy, faster, 0.02).agreement, Agreement::kDisagrees);
  EXPECT_EQ(judge_method(busy, method(2), 0.02).agreement, Agreement::kDisagrees);
  busy.others_busy = 0.1;
  EXPECT_EQ(judge_method(busy, method(300), 0.02).agreement, Agreement::kDisagrees);
}

// A tool runs after the engine's rounds, and others may have begun meanwhile: that makes it slower, never faster.
TEST(Crosscheck, AMachineThatWasBusyWhileAToolRanJudgesNoSlowness) {
  MethodReading slow = method(190), fast = method(50);
  slow.others_busy = fast.others_busy = 1.2;
  const MethodVerdict verdict = judge_method(engine(), slow, 0.02);
  EXPECT_EQ(verdict.agreement, Agreement::kNotJudged);
  EXPECT_NE(verdict.cause.find("1.2 cores busy"), std::string::npos) << verdict.cause;
  EXPECT_EQ(judge_method(engine(), fast, 0.02).agreement, Agreement::kDisagrees);
  slow.others_busy = 0.1;
  EXPECT_EQ(judge_method(engine(), slow, 0.02).agreement, Agreement::kDisagrees);
}

// Drift that both met cancels: taken apart from each other these two would be noise.
TEST(Crosscheck, InterleavedTimesAreJudgedRoundByRound) {
  EngineReading e = engine();
  MethodReading m{.method = "loop", .interleaved = true};
  SplitMix random(4);
  for (double& t : e.warm_us) {
    t *= 1 + 0.5 * random.uniform();
    m.times_us.push_back(t * 1.005);
  }
  EXPECT_EQ(judge_method(e, m, 0.02).agreement, Agreement::kAgrees);
  m.interleaved = false;
  EXPECT_EQ(judge_method(e, m, 0.02).agreement, Agreement::kNotJudged);
}

TEST(Crosscheck, CeilingsAreRefutedConfirmedOrNeither) {
  Ceilings c;
  c.matmul_tflops_16bit = 800;
  MatmulReading reading{.what = "8192", .tflops = 700, .large = true, .is_16bit = true};
  EXPECT_EQ(judge_ceiling(reading, c).agreement, Agreement::kAgrees);
  reading.tflops = 830;
  EXPECT_EQ(judge_ceiling(reading, c).agreement, Agreement::kDisagrees);
  reading.tflops = 300;
  EXPECT_EQ(judge_ceiling(reading, c).agreement, Agreement::kNotJudged);
  reading.large = false;
  for (const double tflops : {1.0, 300.0, 790.0}) {
    reading.tflops = tflops;
    EXPECT_EQ(judge_ceiling(reading, c).agreement, Agreement::kNotJudged) << tflops;
  }
  reading.is_16bit = false;
  EXPECT_EQ(judge_ceiling(reading, c).agreement, Agreement::kNotJudged);
}

// Whoever reads that the ceiling is confirmed must not take it for one of the kernel's tiles.
TEST(Crosscheck, ACeilingSaysWhichMultiplyItIsOf) {
  const auto words = [](const DeviceLimits& limits, bool is_16bit) {
    return words_of_ceiling(limits, is_16bit, "sm90_fwd:block_n=128");
  };
  const std::string hopper = words(limits_of_arch("sm_90"), true);
  EXPECT_NE(hopper.find("wgmma m64n256k16 of bf16, by two warpgroups"), std::string::npos) << hopper;
  EXPECT_NE(hopper.find("neither that nor the library's multiply has the tiles of sm90_fwd:block_n=128"),
            std::string::npos)
      << hopper;
  EXPECT_NE(words(limits_of_arch("sm_80"), true).find("mma.sync m16n8k16 of bf16, by eight warps"), std::string::npos);
  const DeviceLimits cpu = open_device("cpu")->info().limits;
  EXPECT_NE(words(cpu, true).find("bf16 instructions"), std::string::npos);
  EXPECT_NE(words(cpu, false).find("multiply-adds of fp32 vectors"), std::string::npos);
  CrosscheckResult result;
  result.ceiling_is_of = hopper;
  EXPECT_EQ(crosscheck_json(result)["ceiling_is_of"], hopper);
}

TEST(Crosscheck, ResultIsTheWorstThatWasJudgedAndSkippedIsNoPass) {
  CrosscheckResult r;
  EXPECT_EQ(r.agreement(), Agreement::kNotJudged);
  EXPECT_EQ(r.why(), "no other tool is here");
  MethodReading reading = method(100);
  reading.in_process = true;
  r.methods.push_back({.reading = reading, .agreement = Agreement::kAgrees, .ratio = {}, .cause = ""});
  r.ceilings.push_back({.reading = {}, .ceiling_tflops = 1, .agreement = Agreement::kAgrees, .cause = ""});
  EXPECT_EQ(r.agreement(), Agreement::kNotJudged);
  EXPECT_EQ(r.why(), "no other tool is here");
  r.methods.push_back({.reading = method(100), .agreement = Agreement::kExplained, .ratio = {}, .cause = ""});
  EXPECT_EQ(r.agreement(), Agreement::kNotJudged);
  EXPECT_NE(r.why(), "no other tool is here");
  r.methods.push_back({.reading = method(100), .agreement = Agreement::kAgrees, .ratio = {}, .cause = ""});
  EXPECT_EQ(r.agreement(), Agreement::kAgrees);
  EXPECT_EQ(r.why(), "");
  // A loop of ours that disagrees is a finding all the same.
  r.methods.front().agreement = Agreement::kDisagrees;
  EXPECT_EQ(r.agreement(), Agreement::kDisagrees);
  r.methods.front().agreement = Agreement::kAgrees;
  r.ceilings.push_back({.reading = {}, .ceiling_tflops = 1, .agreement = Agreement::kDisagrees, .cause = ""});
  EXPECT_EQ(r.agreement(), Agreement::kDisagrees);
  r.wrong = "row 3 is NaN";
  EXPECT_EQ(r.agreement(), Agreement::kNotJudged);
  EXPECT_EQ(crosscheck_json(r)["verdict"], "could not judge");
}

TEST(Crosscheck, WhatWasInterruptedDoesNotSayThatNoToolIsHere) {
  CrosscheckResult r;
  r.interrupted = true;
  EXPECT_EQ(r.agreement(), Agreement::kNotJudged);
  EXPECT_EQ(r.why(), "it was interrupted before another tool gave a time");
  // A tool that had its turn before is judged all the same.
  r.methods.push_back({.reading = method(100), .agreement = Agreement::kAgrees, .ratio = {}, .cause = ""});
  EXPECT_EQ(r.why(), "");
}

TEST(Crosscheck, InProcessWaysTimeTheSameLaunchOnACpu) {
  const auto device = open_device("cpu");
  const PlacedProblem problem = PlacedProblem::parse("b1_h1_s128_d64_fp32");
  const InProcessTimes t =
      time_in_process(*device, problem, dispatch(problem, device->info()).candidate, {.rounds = 6, .seed = 1}, {});
  EXPECT_EQ(t.wrong, "");
  EXPECT_EQ(t.engine.warm_us.size(), 6u);
  ASSERT_EQ(t.methods.size(), 2u);
  for (const MethodReading& m : t.methods) {
    EXPECT_EQ(m.times_us.size(), 6u);
    // Not a judgement of this machine: they time the same thing, so they are of one order.
    EXPECT_LT(std::abs(std::log(median(m.times_us) / median(t.engine.warm_us))), std::log(5)) << m.method;
  }
}

TEST(Crosscheck, StopIsAskedBetweenRounds) {
  const auto device = open_device("cpu");
  const PlacedProblem problem = PlacedProblem::parse("b1_h1_s128_d64_fp32");
  int asked = 0;
  const InProcessTimes t = time_in_process(*device, problem, dispatch(problem, device->info()).candidate,
                                           {.rounds = 1000, .seed = 1}, [&] { return ++asked > 3; });
  EXPECT_EQ(t.engine.warm_us.size(), 3u);
}

// --- Nsight Compute -------------------------------------------------------------------------------------------------

constexpr const char* kNcuText =
    "==PROF== Connected to process 4242\nsome line of the child\n"
    "\"ID\",\"Process ID\",\"Kernel Name\",\"gpu__time_duration.sum\",\"smsp__cycles_elapsed.avg.per_second\"\n"
    "\"\",\"\",\"\",\"ns\",\"Ghz\"\n"
    "\"0\",\"1\",\"forward(a, \"\"b\"\")\",\"12,345.5\",\"1.755\"\n"
    "\"1\",\"1\",\"forward\",\"12,400\",\"1.755\"\n"
    "\"2\",\"1\",\"list_blocks\",\"99\",\"1.2\"\n"
    "\"3\",\"1\",\"_Z7forward\",\"12,410\",\"1.755\"\n"
    "==PROF== Disconnected\n";

constexpr const char* kKernel = "flashcore::sm80_fwd::forward<flashcore::Traits{}>";

MethodReading read_ncu(const std::string& text) { return read_ncu_durations(text, kKernel, "_Z7forward"); }

TEST(Ncu, LaunchesOfTheKernelAloneAreReadWithTheirUnits) {
  const MethodReading r = read_ncu(kNcuText);
  ASSERT_EQ(r.times_us.size(), 3u);  // not of list_blocks
  EXPECT_DOUBLE_EQ(r.times_us[0], 12.3455);
  EXPECT_DOUBLE_EQ(r.clock_mhz, 1755);
  EXPECT_TRUE(r.cold);
}

TEST(Ncu, NoCountersAllowedSaysSo) {
  const MethodReading r = read_ncu(
      "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n");
  EXPECT_TRUE(r.times_us.empty());
  EXPECT_NE(r.why_not.find("does not let this user read counters"), std::string::npos);
}

TEST(Ncu, TextThatIsNoTableGivesNoTimes) {
  for (const char* text :
       {"", "nonsense\n", "\"ID\",\"gpu__time_duration.sum\"\n", "\"ID\",\"x\"\n\"\",\"ns\"\n\"0\",\"3\"\n",
        "\"ID\",\"Kernel Name\",\"gpu__time_duration.sum\"\n\"\",\"\",\"parsec\"\n\"0\",\"forward\",\"3\"\n",
        "\"ID\",\"Kernel Name\",\"gpu__time_duration.sum\"\n\"\",\"\",\"ns\"\n\"0\",\"other\",\"3\"\n"}) {
    const MethodReading r = read_ncu(text);
    EXPECT_TRUE(r.times_us.empty()) << text;
    EXPECT_FALSE(r.why_not.empty()) << text;
  }
}

class FakeTools : public ::testing::Test {
 protected:
  void SetUp() override {
    old_path_ = std::getenv("PATH");
    setenv("PATH", (folder_.path().string() + ":" + old_path_).c_str(), 1);
  }
  void TearDown() override { setenv("PATH", old_path_.c_str(), 1); }
  void program(const std::string& name, const std::string& body) {
    const auto path = folder_.path() / name;
    write_file_atomically(path, "#!/bin/sh\n" + body);
    chmod(path.c_str(), 0755);
  }
  static ToolQuestion question() {
    return {.problem = PlacedProblem::parse("b1_h1_s64_d64_fp16"),
            .device = "cuda:0",
            .candidate = "sm80_fwd:block_m=64",
            .kernel = kKernel,
            .program = "/nowhere/flashcore",
            .python = "fake_python",
            .seconds = 10};
  }
  const test::TemporaryFolder folder_;
  std::string old_path_;
};

TEST_F(FakeTools, NcuRunsTheCandidatesLaunchesAndTheirDurationsAreTaken) {
  program("ncu", "echo \"$@\" > " + (folder_.path() / "asked").string() + "\ncat <<'END'\n" + kNcuText + "END\n");
  CompiledCandidate compiled;
  compiled.artifact.symbol = "_Z7forward";
  const MethodReading r = time_by_ncu(question(), compiled);
  EXPECT_EQ(r.times_us.size(), 3u) << r.why_not;
  const std::string asked = read_file(folder_.path() / "asked");
  for (const char* part :
       {"--clock-control none", "-k _Z7forward", "/nowhere/flashcore launch-candidate", "--launches 12"})
    EXPECT_NE(asked.find(part), std::string::npos) << part << " in " << asked;
}

TEST_F(FakeTools, AnNcuThatCannotAttachHangsOrIsAbsentIsNamed) {
  CompiledCandidate compiled;
  program("ncu", "echo '==ERROR== Cannot attach'; exit 9\n");
  EXPECT_NE(time_by_ncu(question(), compiled).why_not.find("Cannot attach"), std::string::npos);
  program("ncu", "sleep 60\n");
  ToolQuestion impatient = question();
  impatient.seconds = 0.3;
  EXPECT_NE(time_by_ncu(impatient, compiled).why_not.find("still running"), std::string::npos);
  setenv("PATH", "/nowhere", 1);
  EXPECT_NE(time_by_ncu(question(), compiled).why_not.find("not on PATH"), std::string::npos);
}

TEST_F(FakeTools, ACandidateOfSeveralKernelsIsNotTimedByNcu) {
  CompiledCandidate compiled;
  compiled.artifact.more_kernels.emplace_back();
  EXPECT_NE(time_by_ncu(question(), compiled).why_not.find("several kernels"), std::string::npos);
}

TEST_F(FakeTools, PythonsAnswersAreTaken) {
  program(
      "fake_python",
      "while [ \"$1\" != --json ]; do shift; done\ncat > \"$2\" <<'END'\n"
      "{\"schema\": \"flashcore.crosscheck_tools/1\", \"methods\": [{\"method\": \"PyTorch's profiler\", \"version\": "
      "\"2.9\", \"times_us\": [1.5, 2.5]}, {\"method\": \"nvbench\", \"why_not\": \"it does not import\"}], "
      "\"matmuls\": [{\"what\": \"big\", \"tflops\": 3.5, \"is_16bit\": true}]}\nEND\n");
  const ToolAnswers a = ask_python(question());
  ASSERT_EQ(a.methods.size(), 2u);
  EXPECT_EQ(a.methods[0].times_us, (std::vector<double>{1.5, 2.5}));
  EXPECT_EQ(a.methods[1].why_not, "it does not import");
  ASSERT_EQ(a.matmuls.size(), 1u);
  EXPECT_TRUE(a.matmuls[0].is_16bit);
}

TEST_F(FakeTools, APythonWithoutThePackageLosesAllOfItsTools) {
  program("fake_python", "echo 'No module named flashcore' >&2; exit 1\n");
  const ToolAnswers a = ask_python(question());
  ASSERT_EQ(a.methods.size(), 4u);
  for (const MethodReading& m : a.methods)
    EXPECT_TRUE(m.why_not.starts_with("the Python package flashcore is missing; ")) << m.why_not;
  for (const char* body : {"while [ \"$1\" != --json ]; do shift; done\necho nonsense > \"$2\"\n", "true\n",
                           "while [ \"$1\" != --json ]; do shift; done\necho '{\"schema\": 3}' > \"$2\"\n"}) {
    program("fake_python", body);
    for (const MethodReading& m : ask_python(question()).methods) EXPECT_FALSE(m.why_not.empty()) << body;
  }
}

TEST(ToolAnswers, ATimeThatIsNotPositiveIsRefused) {
  const auto document = nlohmann::json::parse(
      R"({"schema":"flashcore.crosscheck_tools/1","methods":[{"method":"m","times_us":[1,-1]}],"matmuls":[]})");
  EXPECT_THROW(read_tool_answers(document, "here"), Error);
}

}  // namespace
}  // namespace flashcore
