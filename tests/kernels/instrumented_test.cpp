// Instrumented builds: what the compiler is handed, and that marks cost no spills. Needs NVRTC for the latter, no GPU.

#include "kernels/instrumented.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "device/compiler.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

constexpr int kBytes = 4096;
const char* const kProblem = "b1_h2_s256_d64_fp16";

TEST(Instrumented, FamiliesOfGpusHaveMarksAndOthersSayWhyNot) {
  const std::vector<std::string> marked = families_with_marks();
  EXPECT_EQ(marked,
            (std::vector<std::string>{"sm80_decode_fwd", "sm80_fwd", "sm80_short_fwd", "sm80_wide_fwd", "sm89_fp8_fwd",
                                      "sm90_fp8_fwd", "sm90_fwd", "sm90_short_fwd", "sm90_wide_fwd"}));
  EXPECT_EQ(why_no_marks(family_by_name("ref_fwd")), "the kernel of ref_fwd has no marks");
  EXPECT_NE(why_no_marks(family_by_name("cpu_fwd"))->find("runs on a CPU"), std::string::npos);
}

TEST(Instrumented, TheSourceDiffersInOneHeaderAndOneKernelMore) {
  const Problem problem = Problem::parse(kProblem);
  const DeviceLimits limits = limits_of_arch("sm_90");
  const Family& base = family_by_name("sm90_fwd");
  const ConfigValues config = base.default_config(problem, limits);
  const InstrumentedFamily family(base, kBytes);
  const KernelSource plain = base.source(config, problem, limits), marked = family.source(config, problem, limits);
  EXPECT_TRUE(plain.headers.empty());
  EXPECT_EQ(marked.file, plain.file);
  EXPECT_EQ(marked.name_expression, plain.name_expression);
  ASSERT_EQ(marked.headers.size(), 1u);
  // It takes the place of a header that a normal build includes.
  EXPECT_TRUE(device_sources().contains(marked.headers.begin()->first));
  EXPECT_NE(marked.headers.begin()->second.find("kTrackBytes = 4096"), std::string::npos);
  ASSERT_EQ(marked.more_kernels.size(), plain.more_kernels.size() + 1);
  const LaunchSpec place = family.place_tracks(config, problem, limits, {3 * kBytes, 5, 2});
  EXPECT_EQ(place.kernel, marked.more_kernels.size());
  EXPECT_EQ(place.params.size(), sizeof(tile::TrackPlaces));
  EXPECT_THROW(family.place_tracks(config, problem, limits, {3 * kBytes + 8, 5, 2}), Error) << "not aligned";
}

struct Case {
  const char *family, *problem, *arch;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.family << " " << c.problem; }

class InstrumentedSpill : public ::testing::TestWithParam<Case> {};

// Of the default config. How many registers marks take is in the test's record.
TEST_P(InstrumentedSpill, MarksSpillNoMoreThanThePlainBuild) {
  std::unique_ptr<Compiler> compiler;
  try {
    compiler = open_compiler();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  const Case& c = GetParam();
  const Problem problem = Problem::parse(c.problem);
  const DeviceLimits limits = limits_of_arch(c.arch);
  const Family& base = family_by_name(c.family);
  const InstrumentedFamily family(base, kBytes);
  const ConfigValues config = base.default_config(problem, limits);
  const auto compile = [&](const Family& of) {
    return compiler->compile(of.source(config, problem, limits), device_sources(), of.compile_arch(limits));
  };
  const Artifact plain = compile(base), marked = compile(family);
  EXPECT_NE(marked.code_hash, plain.code_hash) << "the marks are not there";
  EXPECT_LE(marked.spill_store_bytes, plain.spill_store_bytes);
  EXPECT_LE(marked.spill_load_bytes, plain.spill_load_bytes);
  EXPECT_LE(marked.stack_bytes, plain.stack_bytes);
  EXPECT_EQ(marked.warnings, plain.warnings);
  EXPECT_LE(marked.registers * marked.threads_per_block, limits.registers_per_multiprocessor);
  RecordProperty("registers", fmt::format("{} with marks, {} without", marked.registers, plain.registers));
}
INSTANTIATE_TEST_SUITE_P(Families, InstrumentedSpill,
                         ::testing::Values(Case{"sm80_fwd", "b1_h2_s256_d64_fp16", "sm_80"},
                                           Case{"sm80_fwd", "b1_h2_s256_d128_bf16_causal", "sm_80"},
                                           Case{"sm80_short_fwd", "b1_h2_s64_d64_fp16", "sm_80"},
                                           Case{"sm90_fwd", "b1_h8_s2048_d64_fp16", "sm_90"},
                                           Case{"sm90_fwd", "b1_h8_s4096_d128_bf16_causal", "sm_90"},
                                           Case{"sm90_fwd", "b1_h8_s4096_d256_bf16", "sm_90"},
                                           Case{"sm90_short_fwd", "b1_h2_s64_d64_fp16", "sm_90"},
                                           Case{"sm89_fp8_fwd", "b1_h8_s4096_d128_e4m3_causal", "sm_89"},
                                           Case{"sm89_fp8_fwd", "b1_h8_s4096_d256_e4m3", "sm_120"},
                                           Case{"sm90_fp8_fwd", "b1_h8_s4096_d128_e4m3", "sm_90"},
                                           Case{"sm90_wide_fwd", "b1_h8_s4096_d512_bf16_causal", "sm_90"}));

}  // namespace
}  // namespace flashcore
