// Every family over one grid (suites/conformance.yaml), from birth: it computes each problem correctly or declines it
// in words. Where the device is missing, what can be known without it: supported means that the default config is valid
// and compiles within the resource gate.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "core/suite.h"
#include "device/compiler.h"
#include "kernels/family.h"
#include "lab/gates/evaluate.h"
#include "lab/gates/gates.h"

namespace flashcore {
namespace {

const Suite& grid() {
  static const Suite suite = load_suite("conformance");
  return suite;
}

// How many problems of the grid the family took.
int run_grid(Device& device, const Family& family) {
  int taken = 0;
  for (const NamedProblem& named : grid().problems) {
    const DeviceLimits& limits = device.info().limits;
    if (const auto reason = family.why_unsupported(named.problem, limits)) {
      EXPECT_FALSE(reason->empty()) << named.name;
      continue;
    }
    ++taken;
    EvaluateRequest request;
    request.problem = named.problem;
    request.problem_name = named.name;
    request.suite = grid().name;
    request.candidate = Candidate{&family, family.default_config(named.problem, limits)}.print();
    request.phase = Phase::kCheck;
    request.time = false;
    const Trial trial = evaluate(device, request);
    EXPECT_EQ(trial.ended, Ended::kPassed) << named.name << ": " << trial.message;
    EXPECT_TRUE(trial.error && trial.bound) << named.name << " was not judged";
  }
  return taken;
}

void run_all_families(Device& device) {
  int families = 0;
  for (const Family* family : all_families()) {
    if (family->kind() != device.info().limits.kind) continue;
    SCOPED_TRACE(family->name());
    families += run_grid(device, *family) > 0 ? 1 : 0;
  }
  EXPECT_GT(families, 0) << "no family took a single problem on " << device.info().name;
}

TEST(Conformance, FamiliesOfTheCpuComputeTheGrid) { run_all_families(*open_device("cpu")); }

TEST(Conformance, FamiliesOfTheGpuComputeTheGrid) {
  std::unique_ptr<Device> device;
  try {
    device = open_device("cuda");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  run_all_families(*device);
}

struct StaticCase {
  const Family* family;
  const NamedProblem* named;
  std::string arch;
};

std::vector<StaticCase> supported_on_gpus() {
  std::vector<StaticCase> cases;
  for (const Family* family : all_families()) {
    if (family->kind() != DeviceKind::kCuda) continue;
    for (const NamedProblem& named : grid().problems) {
      for (const char* arch : {"sm_80", "sm_90"}) {
        if (!family->why_unsupported(named.problem, limits_of_arch(arch))) cases.push_back({family, &named, arch});
      }
    }
  }
  return cases;
}

TEST(Conformance, DefaultConfigsOfGpuFamiliesAreValid) {
  const std::vector<StaticCase> cases = supported_on_gpus();
  EXPECT_GT(cases.size(), grid().problems.size());
  for (const auto& [family, named, arch] : cases) {
    const DeviceLimits limits = limits_of_arch(arch);
    EXPECT_EQ(family->why_invalid(family->default_config(named->problem, limits), named->problem, limits).value_or(""),
              "")
        << family->name() << " " << arch << " " << named->name;
  }
}

TEST(Conformance, SomeDefaultConfigsOfEveryGpuFamilyCompile) {
  try {
    open_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  constexpr int kOfEachFamily = 3;
  std::vector<StaticCase> cases = supported_on_gpus();
  std::shuffle(cases.begin(), cases.end(), std::mt19937(7));
  std::map<const Family*, int> compiled;
  for (const auto& [family, named, arch] : cases) {
    if (compiled[family]++ >= kOfEachFamily) continue;
    const DeviceLimits limits = limits_of_arch(arch);
    const Candidate candidate{family, family->default_config(named->problem, limits)};
    const Verdict verdict = judge_resources(compile_candidate(candidate, named->problem, limits), limits);
    EXPECT_EQ(verdict.status, GateStatus::kPassed)
        << candidate.print() << " " << arch << " " << named->name << ": " << verdict.reason;
  }
}

}  // namespace
}  // namespace flashcore
