#include "device/cuda/ptxas_log.h"

#include <gtest/gtest.h>

namespace flashcore::cuda {
namespace {

// As NVRTC 13.0 prints it, with a second entry whose name begins like the first and a callee in between.
constexpr const char* kLog = R"(flashcore.cu(12): warning #177-D: variable "x" was declared but never referenced
  int x = 3;
      ^

ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to something in the function '_Z3foo'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to something in the function '_Z3foo'
ptxas info    : Compiling entry function '_Z3foobar' for 'sm_90a'
ptxas info    : Function properties for _Z3foobar
ptxas         .     8 bytes stack frame, 9 bytes spill stores, 10 bytes spill loads
ptxas info    : Used 99 registers, used 9 barriers, 8 bytes cumulative stack size, 999 bytes smem
ptxas info    : Compile time = 4.734 ms
ptxas info    : Compiling entry function '_Z3foo' for 'sm_90a'
ptxas info    : Function properties for _Z3foo
ptxas         .     80 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 128 registers, used 2 barriers, 96 bytes cumulative stack size, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 5.470 ms
ptxas info    : Function properties for _Z6helperfi
ptxas         .     7 bytes stack frame, 77 bytes spill stores, 777 bytes spill loads
)";

TEST(PtxasLog, ReadsTheEntryAlone) {
  const PtxasReport report = parse_ptxas_log(kLog, "_Z3foo");
  EXPECT_TRUE(report.found);
  EXPECT_EQ(report.registers, 128);
  EXPECT_EQ(report.spill_store_bytes, 12);
  EXPECT_EQ(report.spill_load_bytes, 16);
  EXPECT_EQ(report.stack_bytes, 96) << "with what its callees use";
  EXPECT_EQ(report.static_shared_bytes, 1024);
  EXPECT_EQ(report.barriers, 2);
}

TEST(PtxasLog, ALongerNameIsAnotherKernel) {
  const PtxasReport report = parse_ptxas_log(kLog, "_Z3foobar");
  EXPECT_EQ(report.registers, 99);
  EXPECT_EQ(report.stack_bytes, 8);
  EXPECT_FALSE(parse_ptxas_log(kLog, "_Z3fo").found);
}

TEST(PtxasLog, KeepsEachWarningOnce) {
  const PtxasReport report = parse_ptxas_log(kLog, "_Z3foo");
  ASSERT_EQ(report.warnings.size(), 2u);
  EXPECT_NE(report.warnings[0].find("#177-D"), std::string::npos);
  EXPECT_NE(report.warnings[1].find("C7510"), std::string::npos);
}

TEST(PtxasLog, ACleanLogHasNoWarnings) {
  constexpr const char* clean =
      "ptxas info    : Compiling entry function '_Z12C7512warningv' for 'sm_80'\nptxas info    : Function properties "
      "for _Z12C7512warningv\n"
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 10 "
      "registers, 360 bytes cmem[0]\n";
  const PtxasReport report = parse_ptxas_log(clean, "_Z12C7512warningv");
  EXPECT_TRUE(report.found);
  EXPECT_EQ(report.registers, 10);
  EXPECT_EQ(report.barriers, 0);
  EXPECT_EQ(report.static_shared_bytes, 0);
  EXPECT_TRUE(report.warnings.empty()) << "a kernel's name is not a warning";
}

TEST(PtxasLog, AnEmptyLogReportsNothing) { EXPECT_FALSE(parse_ptxas_log("", "_Z3foo").found); }

}  // namespace
}  // namespace flashcore::cuda
