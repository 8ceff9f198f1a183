// What scripts/new-family writes compiles, passes the resource gate and is right on the emulated GPU before anybody
// touches it. tests/CMakeLists.txt runs the script and compiles its family.cpp.

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/files.h"
#include "kernels/emulator_run.h"
#include "kernels/registry.h"
#include "lab/gates/gates.h"

namespace flashcore {

std::unique_ptr<Family> make_family_sm80_skeleton_fwd();

namespace {

constexpr const char* kName = "sm80_skeleton_fwd";

// As `flashcore check --suite emulator` draws them: tails, grouped heads, unequal lengths, rows without keys, strides.
const char* const kProblems[] = {"b1_h2_s37_d64_fp16_causal", "b2_h4_hk2_sq5_sk70_d40_bf16",
                                 "b1_h2_sq40_sk9_d33_dv65_fp32_causal", "b1_h3_s18_d256_fp16_strided"};

SourceMap sources_with_skeleton() {
  SourceMap sources = device_sources();
  for (const char* file : {"config.h", "kernel.cuh"})
    sources[std::string(kName) + "/" + file] = read_file(std::string(FLASHCORE_SKELETON "/") + file);
  return sources;
}

class NewFamily : public ::testing::Test {
 protected:
  const ScopedFamily registered_{make_family_sm80_skeleton_fwd()};
  const SourceMap sources_ = sources_with_skeleton();
};

TEST_F(NewFamily, IsRightOnTheEmulator) {
  for (const char* problem : kProblems)
    EXPECT_EQ(testing::run_on_emulator(sources_, kName, PlacedProblem::parse(problem), 1).verdict(), "passed")
        << problem;
}

TEST_F(NewFamily, EveryConfigPassesTheResourceGate) {
  std::unique_ptr<Compiler> compiler;
  try {
    compiler = open_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << "no NVRTC here: " << error.what();
  }
  const Family& family = family_by_name(kName);
  int judged = 0;
  for (const char* arch : {"sm_80", "sm_90"})
    for (const char* id : {"b1_h8_s512_d128_fp16_causal", "b1_h8_s512_d256_fp32"}) {
      const PlacedProblem problem = PlacedProblem::parse(id);
      const DeviceLimits limits = limits_of_arch(arch);
      for (const ConfigValues& config : feasible_configs(family, problem, limits)) {
        const Artifact artifact =
            compiler->compile(family.source(config, problem, limits), sources_, family.compile_arch(limits));
        const Verdict verdict = judge_resources(artifact, limits);
        EXPECT_EQ(verdict.status, GateStatus::kPassed) << arch << " " << id << ": " << verdict.reason;
        ++judged;
      }
    }
  EXPECT_GT(judged, 8);
}

TEST_F(NewFamily, IsTakenByNameOnly) {
  DeviceInfo device;
  device.limits = limits_of_arch("sm_80");
  device.key = "skeleton";
  for (const char* problem : kProblems)
    EXPECT_NE(dispatch(PlacedProblem::parse(problem), device).candidate.family->name(), kName) << problem;
}

}  // namespace
}  // namespace flashcore
