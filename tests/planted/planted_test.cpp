// Every planted fault is caught by the gate and the check named for it; and a mutation test over the gates: with one
// check switched off, exactly the faults that rely on it pass.

#include "lab/verify/planted.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/files.h"
#include "device/compiler.h"
#include "lab/fake.h"
#include "lab/gates/evaluate.h"
#include "lab/gates/gates.h"
#include "lab/gates/self_test.h"
#include "lab/process/worker.h"
#include "lab/record/checks.h"
#include "lab/tune/facts.h"
#include "lab/verify/audit.h"
#include "planted/cpu_faults.h"

namespace flashcore {

void PrintTo(const PlantedFault& fault, std::ostream* out) { *out << fault.name; }

namespace {

const std::vector<PlantedFault>& cpu_faults() {
  static const std::vector<PlantedFault> faults =
      parse_planted(read_file(FLASHCORE_SOURCE_DIR "/tests/planted/cpu.yaml"), "cpu.yaml");
  return faults;
}

// Fresh families each time: some keep addresses of buffers that are gone.
Trial evaluate_fault(const PlantedFault& fault) {
  const test::AllFakeFamilies fakes;
  const test::PlantedFamilies planted;
  const auto device = test::make_fake_device();
  EvaluateRequest request;
  request.problem = fault.problem;
  request.candidate = fault.candidate;
  if (!fault.incumbent.empty()) request.incumbent = fault.incumbent;
  request.phase = Phase::kCheck;
  request.margin = fault.margin;
  request.max_reference_flops = fault.max_reference_flops;
  request.patterns = fault.patterns;
  // What only time tells needs no hundred repeats.
  if (fault.gate == Gate::kPerformance) request.level = GateLevel::kQuick;
  request.time = fault.gate == Gate::kPerformance;
  return evaluate(*device, request);
}

bool stopped(const Trial& trial) {
  return std::any_of(trial.gates.begin(), trial.gates.end(), [](const Verdict& v) {
    return v.status == GateStatus::kFailed || v.status == GateStatus::kError;
  });
}

class CpuFault : public ::testing::TestWithParam<PlantedFault> {};
INSTANTIATE_TEST_SUITE_P(Planted, CpuFault, ::testing::ValuesIn(cpu_faults()),
                         [](const auto& given) { return given.param.name; });

TEST_P(CpuFault, IsCaughtByTheGateNamedForIt) {
  const PlantedOutcome outcome = judge_planted(GetParam(), evaluate_fault(GetParam()));
  EXPECT_TRUE(outcome.caught) << outcome.what;
}

// The mutation test: of all checks that any CPU fault can meet, only those it relies on let it pass.
TEST_P(CpuFault, EscapesExactlyWhenACheckItReliesOnIsOff) {
  const PlantedFault& fault = GetParam();
  ASSERT_FALSE(fault.escapes_without.empty() && fault.escapes_without_all.empty());
  const std::set<Check> relied(fault.escapes_without.begin(), fault.escapes_without.end());
  for (const Check check : fault.slow ? fault.escapes_without : all_checks()) {
    const CheckOff off(check);
    const Trial trial = evaluate_fault(fault);
    EXPECT_EQ(!stopped(trial), relied.contains(check))
        << "without " << check << ": " << trial.ended << " " << trial.message;
  }
  if (fault.escapes_without_all.empty()) return;
  std::vector<std::unique_ptr<CheckOff>> off;
  for (const Check check : fault.escapes_without_all) off.push_back(std::make_unique<CheckOff>(check));
  const Trial trial = evaluate_fault(fault);
  EXPECT_FALSE(stopped(trial)) << "without all of them: " << trial.ended << " " << trial.message;
}

TEST(PlantedCorpus, IsLargeEnoughAndNamesEachFaultOnce) {
  std::set<std::string> names;
  for (const auto* faults : {&cpu_faults(), &gpu_planted_faults()})
    for (const PlantedFault& fault : *faults) EXPECT_TRUE(names.insert(fault.name).second) << fault.name;
  EXPECT_GE(names.size(), 40u);
}

TEST(PlantedCorpus, EveryCheckHasAFaultThatReliesOnIt) {
  std::set<Check> relied = {// shown below, each by a test of its own
                            Check::kSpills,          Check::kStack,         Check::kPtxasWarnings, Check::kSharedMemory,
                            Check::kThreads,         Check::kRegisters,     Check::kIdenticalCode, Check::kSelfTest,
                            Check::kInertParameters, Check::kUnmaskedFlops, Check::kWatchdog,      Check::kDeviceCode,
                            Check::kKeptState};
  for (const PlantedFault& fault : cpu_faults())
    relied.insert(fault.escapes_without.begin(), fault.escapes_without.end());
  for (const PlantedFault& fault : gpu_planted_faults())
    if (fault.check) relied.insert(*fault.check);
  for (const Check check : all_checks()) EXPECT_TRUE(relied.contains(check)) << check;
}

TEST(PlantedCorpus, BadEntriesAreNamedWithTheirLine) {
  const auto message_of = [](const std::string& text) -> std::string {
    try {
      parse_planted(text, "corpus.yaml");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message_of("faults:\n  - {name: x, gait: y}").find("corpus.yaml:2: unknown key 'gait'"), std::string::npos);
  EXPECT_NE(message_of("faults:\n  - {name: x, does: y, on: [test], gate: luck}").find("'luck'"), std::string::npos);
  EXPECT_NE(
      message_of("faults:\n  - {name: x, does: y, on: [test], gate: compile, check: hope}").find("'hope' is not known"),
      std::string::npos);
  const std::string fault =
      "faults:\n  - name: x\n    does: y\n    on: [test]\n    gate: compile\n    candidate: sm80_fwd\n";
  EXPECT_NE(message_of(fault + "    problem: big\n").find("corpus.yaml:7: problem id 'big'"), std::string::npos);
  EXPECT_NE(message_of(fault + "    problem: b1_h1_s8_d8_fp16\n    escapes_without:\n      - spills\n      - luck\n")
                .find("corpus.yaml:10: check 'luck' is not known"),
            std::string::npos);
  EXPECT_NE(message_of("faults: 5\n").find("corpus.yaml:1: faults is not a list"), std::string::npos);
}

// --- resources: facts of a compilation
// ---------------------------------------------------------------------------------

struct Facts {
  Check check;
  void (*spoil)(Artifact&);
};

class ResourceFault : public ::testing::TestWithParam<Facts> {};
INSTANTIATE_TEST_SUITE_P(
    Planted, ResourceFault,
    ::testing::Values(Facts{Check::kSpills, [](Artifact& a) { a.spill_store_bytes = a.stack_bytes = 16; }},
                      Facts{Check::kStack, [](Artifact& a) { a.stack_bytes = 64; }},
                      Facts{Check::kPtxasWarnings,
                            [](Artifact& a) { a.warnings = {"ptxas warning : (C7510) wgmma serialized"}; }},
                      Facts{Check::kSharedMemory, [](Artifact& a) { a.dynamic_shared_bytes = 300 << 10; }},
                      Facts{Check::kThreads, [](Artifact& a) { a.threads_per_block = 1056, a.registers = 8; }},
                      Facts{Check::kKeptState, [](Artifact& a) { a.kept_variables = {"counter"}; }},
                      Facts{Check::kRegisters, [](Artifact& a) { a.threads_per_block = 1024, a.registers = 72; }}),
    [](const auto& given) { return std::string(to_string(given.param.check)); });

TEST_P(ResourceFault, IsCaughtByItsCheckAndByNoOther) {
  Artifact artifact;
  artifact.registers = 128;
  artifact.threads_per_block = 128;
  const DeviceLimits limits = limits_of_arch("sm_90");
  ASSERT_EQ(judge_resources(artifact, limits).status, GateStatus::kPassed);
  GetParam().spoil(artifact);
  const Verdict verdict = judge_resources(artifact, limits);
  EXPECT_EQ(verdict.status, GateStatus::kFailed);
  EXPECT_EQ(verdict.evidence.at("check"), to_string(GetParam().check));
  const CheckOff off(GetParam().check);
  EXPECT_EQ(judge_resources(artifact, limits).status, GateStatus::kPassed);
}

// --- harness
// -----------------------------------------------------------------------------------------------------------

TEST(PlantedHarness, InvertedComparisonIsCaughtByTheSelfTest) {
  const auto honest = [](const Sampler& candidate, const Sampler& incumbent) {
    return race(candidate, incumbent, {.min_blocks = 12, .max_blocks = 12, .early_drop = false}).comparison;
  };
  EXPECT_EQ(comparison_self_test(honest), "");
  EXPECT_EQ(race_self_test(), "");
  const auto inverted = [&](const Sampler& candidate, const Sampler& incumbent) {
    return honest(incumbent, candidate);
  };
  EXPECT_NE(comparison_self_test(inverted).find("self-test"), std::string::npos);
  const CheckOff off(Check::kSelfTest);
  EXPECT_EQ(comparison_self_test(inverted), "");
}

TEST(PlantedHarness, CausalFlopsCountedInFullAreCaughtByVerify) {
  const PlacedProblem problem = PlacedProblem::parse("b1_h8_s512_d64_fp16_causal");
  const double full = 4.0 * 8 * 512 * 512 * 64;
  const auto document = [&](double flops) {
    return nlohmann::json{{"schema", "flashcore.bench/1"},
                          {"results",
                           {{{"problem", problem.id()},
                             {"time_us", {{"p50", 10.0}}},
                             {"floor_us", 2.0},
                             {"correct", {{"rel_error", 1e-4}, {"bound", 1e-3}}},
                             {"tflops", flops / 10.0 * 1e-6}}}}};
  };
  EXPECT_TRUE(audit_results(document(problem.flops())).empty());
  ASSERT_EQ(audit_results(document(full)).size(), 1u);
  const CheckOff off(Check::kUnmaskedFlops);
  EXPECT_TRUE(audit_results(document(full)).empty());
}

TEST(PlantedHarness, InertKnobIsCaughtByItsCodeHash) {
  const ConfigSpace space({{"knob", {0, 1}}, {"tile", {32, 64}}});
  const std::vector<std::pair<ConfigValues, std::string>> identities = {
      {{0, 32}, "a"}, {{1, 32}, "a"}, {{0, 64}, "b"}, {{1, 64}, "b"}};
  EXPECT_EQ(inert_fields(space, identities), std::vector<std::string>{"knob"});
  const CheckOff off(Check::kInertParameters);
  EXPECT_TRUE(inert_fields(space, identities).empty());
}

TEST(PlantedHarness, AKernelThatKeepsAResultIsNoDeviceCode) {
  Patch patch;
  patch.name = "keeps";
  patch.family = "ref_fwd";
  patch.replace = {{"ref_fwd/kernel.cuh", "  Item item;\n  if (!find_item<C>(params, item)) return;\n",
                    "  static int launches;\n  if (launches++) return;\n  Item item;\n  if (!find_item<C>(params, "
                    "item)) return;\n"}};
  EXPECT_THROW(make_patched_family(patch), RefusedSource);
  const CheckOff off(Check::kDeviceCode);
  EXPECT_NO_THROW(make_patched_family(patch));
}

// The corpus is trusted, so that its gates are tried. From a proposer, whatever keeps something from launch to launch
// or starts another kernel would not reach them, nor what uses intrinsics outside of ptx/; what is only wrong would.
TEST(PlantedHarness, FaultsThatKeepStateAreRefusedFromAProposer) {
  int refused = 0;
  for (const PlantedFault& fault : gpu_planted_faults()) {
    if (!fault.patch) continue;
    Patch patch = *fault.patch;
    patch.trusted = false;
    bool keeps = false;
    for (const Patch::Replacement& r : patch.replace)
      for (const char* sign : {"__device__ unsigned", "<<<1, 1>>>", "__uint_as_float"})
        keeps = keeps || r.to.find(sign) != std::string::npos;
    refused += keeps;
    if (keeps) EXPECT_THROW(make_patched_family(patch), RefusedSource) << fault.name;
    else EXPECT_NO_THROW(make_patched_family(patch)) << fault.name;
  }
  EXPECT_GE(refused, 10);
}

TEST(PlantedHarness, IdenticalCodeIsNotRaced) {
  const test::AllFakeFamilies fakes;
  const auto device = test::make_fake_device();
  EvaluateRequest request;
  request.problem = PlacedProblem::parse("b1_h2_s37_d16_fp32");
  request.candidate = "fake_none";
  request.incumbent = "fake_none";
  request.phase = Phase::kCheck;
  Trial trial = evaluate(*device, request);
  ASSERT_TRUE(trial.comparison) << trial.message;
  EXPECT_EQ(trial.comparison->blocks, 0);
  const CheckOff off(Check::kIdenticalCode);
  trial = evaluate(*device, request);
  ASSERT_TRUE(trial.comparison);
  EXPECT_GT(trial.comparison->blocks, 0) << "luck alone may now call one of two equals faster";
}

// Machines that drift, throttle and are interrupted, and on which places in memory differ.
TEST(PlantedHarness, NoHonestCandidateIsSaidToKeepResults) {
  const test::AllFakeFamilies fakes;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    test::FakeDeviceOptions options = test::realistic_device(seed);
    options.noise *= 10;
    options.outliers = 0.2;
    const auto device = test::make_fake_device(options);
    EvaluateRequest request;
    request.problem = PlacedProblem::parse("b1_h2_s9_d8_fp32");
    request.candidate = "fake_none";
    request.phase = Phase::kCheck;
    const Trial trial = evaluate(*device, request);
    EXPECT_EQ(trial.ended, Ended::kPassed) << "seed " << seed << ": " << trial.message;
    const nlohmann::json& evidence = trial.gates.back().evidence;
    EXPECT_GT(evidence.at("known_content_us").get<double>(), 0);
    EXPECT_GT(evidence.at("unseen_content_us").get<double>(), 0);
  }
}

TEST(PlantedHarness, OtherContentDiffersInEveryRowOfEveryHeadAndStaysOrdinary) {
  for (const char* id : {"b2_h4_hk2_s9_d8_fp32", "b2_h4_s9_d8_fp16_strided", "b1_h3_s9_d8_bf16_bshd"}) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
    const AttentionInputs same = varied_inputs(inputs, 0), one = varied_inputs(inputs, 1),
                          two = varied_inputs(inputs, 2);
    for (const auto tensor : {&AttentionInputs::q, &AttentionInputs::k, &AttentionInputs::v}) {
      EXPECT_EQ((same.*tensor).data, (inputs.*tensor).data);
      const HostTensor &before = inputs.*tensor, &after = one.*tensor, &other = two.*tensor;
      const TensorLayout& l = before.layout;
      for (std::int64_t b = 0; b < l.batch; ++b)
        for (std::int64_t h = 0; h < l.heads; ++h)
          for (std::int64_t row = 0; row < l.rows; ++row) {
            int changed = 0, between = 0;
            for (std::int64_t c = 0; c < l.columns; ++c) {
              const float x = before.at(b, h, row, c), y = after.at(b, h, row, c);
              changed += x != y;
              between += y != other.at(b, h, row, c);
              EXPECT_LE(std::abs(y), 2 * std::abs(x)) << id;
              EXPECT_GE(std::abs(y), 0.5f * std::abs(x)) << id;
            }
            // Each of eight elements stays with a chance of 1 in 64 at the most.
            EXPECT_GE(changed, 5) << id;
            EXPECT_GE(between, 5) << id;
          }
    }
  }
}

EvaluateRequest child_request(const std::string& candidate) {
  EvaluateRequest request;
  request.problem = PlacedProblem::parse("b1_h2_s37_d16_fp32");
  request.candidate = candidate;
  return request;
}

TEST(PlantedHarness, HangIsEndedByTheWatchdog) {
  Worker worker("fake", FLASHCORE_WORKER_HELPER);
  EXPECT_EQ(worker.evaluate(child_request("fake_hang"), 0.5).ended, Ended::kTimeout);
  // Without it, somebody else has to end the wait.
  const CheckOff off(Check::kWatchdog);
  const auto start = std::chrono::steady_clock::now();
  worker.cancel_when([&] { return std::chrono::steady_clock::now() - start > std::chrono::seconds(2); });
  EXPECT_THROW(worker.evaluate(child_request("fake_hang"), 0.5), Cancelled);
}

TEST(PlantedHarnessDeathTest, CrashEndsTheChildOnly) {
  Worker worker("fake", FLASHCORE_WORKER_HELPER);
  EXPECT_EQ(worker.evaluate(child_request("fake_segfault")).ended, Ended::kCrashed);
  EXPECT_EQ(worker.evaluate(child_request("fake_none")).ended, Ended::kPassed) << "the laboratory goes on";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const test::AllFakeFamilies fakes;
        const auto device = test::make_fake_device();
        evaluate(*device, child_request("fake_segfault"));
      },
      "");
}

// --- GPU kernels, as far as they go without a GPU
// ----------------------------------------------------------------------

bool has_nvrtc() {
  try {
    open_compiler();
    return true;
  } catch (const Error&) {
    return false;
  }
}

class GpuFault : public ::testing::TestWithParam<PlantedFault> {};
INSTANTIATE_TEST_SUITE_P(Planted, GpuFault, ::testing::ValuesIn(gpu_planted_faults()),
                         [](const auto& given) { return given.param.name; });

// What a GPU is needed for must at least compile: a fault that the compiler refuses shows nothing there.
TEST_P(GpuFault, CompilesOrIsCaughtByTheResourceGate) {
  if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC here";
  const PlantedFault& fault = GetParam();
  const PlantedOutcome outcome = run_planted_compilation(fault);
  if (fault.runs_on("nvrtc")) {
    EXPECT_TRUE(outcome.caught) << outcome.what;
  } else {
    EXPECT_NE(outcome.what.find("it passed every gate"), std::string::npos) << outcome.what;
  }
  if (!fault.check || !fault.runs_on("nvrtc")) return;
  const CheckOff off(*fault.check);
  EXPECT_NE(run_planted_compilation(fault).what.find("it passed every gate"), std::string::npos);
}

std::vector<PlantedFault> emulated_faults() {
  std::vector<PlantedFault> faults = gpu_planted_faults();
  std::erase_if(faults, [](const PlantedFault& fault) { return !fault.runs_on("emulator"); });
  return faults;
}

// The others show on a GPU only: flashcore check --planted --device cuda.
class EmulatedFault : public ::testing::TestWithParam<PlantedFault> {};
INSTANTIATE_TEST_SUITE_P(Planted, EmulatedFault, ::testing::ValuesIn(emulated_faults()),
                         [](const auto& given) { return given.param.name; });

TEST_P(EmulatedFault, IsCaughtByTheGateNamedForIt) {
  const PlantedOutcome outcome = run_planted(GetParam(), "emulator", FLASHCORE_BINARY);
  EXPECT_TRUE(outcome.caught) << outcome.what;
}

}  // namespace
}  // namespace flashcore
