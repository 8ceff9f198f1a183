// State that outlives a launch: a patch that the check of sources lets through, and what its PTX says of it.

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/compiler.h"
#include "kernels/embedded.h"
#include "kernels/family.h"
#include "lab/gates/gates.h"
#include "lab/harness/patch.h"
#include "lab/record/checks.h"

namespace flashcore {
namespace {

constexpr const char* kCounts =
    "  volatile unsigned* const launches = (volatile unsigned*)&kLaunches[0];\n  if (*launches > 100000) return;\n"
    "  *launches = *launches + 1;\n";

// A cast and a constant get past the check of sources. What the compiler makes of them does not.
class KeptState : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      (void)open_compiler();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  static Patch patch_of(const std::string& declared, const std::string& done) {
    Patch patch;
    patch.name = "keeps";
    patch.family = "ref_fwd";
    const std::string space = "namespace flashcore::ref_fwd {\n",
                      call = "  attend<T, C>(params, nullptr, NoDescales{});\n";
    patch.replace = {{"ref_fwd/kernel.cuh", space, space + declared}, {"ref_fwd/kernel.cuh", call, done + call}};
    return patch;
  }
  static Artifact compiled(const Patch& patch) {
    const PatchScope scope({patch});
    const DeviceLimits limits = limits_of_arch(GetParam());
    const Problem problem = Problem::parse("b1_h2_s40_d16_fp16");
    return compile_candidate(parse_candidate(patch.family_name(), problem, limits), problem, limits);
  }
};
INSTANTIATE_TEST_SUITE_P(Archs, KeptState, ::testing::Values("sm_80", "sm_90"));

TEST_P(KeptState, AConstantThatIsWrittenThroughACastIsCaughtByItsPtx) {
  const Patch counts = patch_of("constexpr unsigned kLaunches[1] = {1};\n", kCounts);
  const Artifact artifact = compiled(counts);
  const Verdict verdict = judge_resources(artifact, limits_of_arch(GetParam()));
  EXPECT_EQ(verdict.status, GateStatus::kFailed);
  EXPECT_EQ(verdict.evidence.at("check"), to_string(Check::kKeptState));
  EXPECT_NE(verdict.reason.find("kLaunches"), std::string::npos) << verdict.reason;
  EXPECT_EQ(compiled(counts).kept_variables, artifact.kept_variables) << "from the cache";
  const CheckOff off(Check::kKeptState);
  EXPECT_EQ(judge_resources(artifact, limits_of_arch(GetParam())).status, GateStatus::kPassed);
}

TEST_P(KeptState, WhoeverTrustsThePatchIsNotToldAndATableIsNoState) {
  Patch trusted = patch_of("constexpr unsigned kLaunches[1] = {1};\n", kCounts);
  trusted.trusted = true;
  EXPECT_TRUE(compiled(trusted).kept_variables.empty());
  const Patch reads =
      patch_of("constexpr int kTable[4] = {3, 1, 4, 1};\n", "  if (kTable[params.batch & 3] == 5) return;\n");
  EXPECT_EQ(compiled(reads).kept_variables, std::vector<std::string>{});
}

// The rule would be of no use if an honest kernel broke it: NVRTC leaves dozens of constants in global memory.
TEST_P(KeptState, NoKernelOfTheLibraryKeepsAny) {
  const DeviceLimits limits = limits_of_arch(GetParam());
  int compiled = 0;
  for (const char* id : {"b2_h4_s256_d64_fp16_causal", "b2_h4_s256_d64_e4m3"})
    for (const Family* family : all_families()) {
      const Problem problem = Problem::parse(id);
      if (family->kind() != DeviceKind::kCuda || family->why_unsupported(problem, limits)) continue;
      const ConfigValues config = family->default_config(problem, limits);
      KernelSource source = family->source(config, problem, limits);
      source.foreign = true;
      const Artifact artifact = compile_kernel(source, device_sources(), family->compile_arch(limits), limits);
      EXPECT_EQ(artifact.kept_variables, std::vector<std::string>{}) << family->name();
      ++compiled;
    }
  EXPECT_GE(compiled, 3);
}

}  // namespace
}  // namespace flashcore
