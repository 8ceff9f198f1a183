#include "device/cuda/microkernels.h"

#include <gtest/gtest.h>

#include "device/cuda/cuda_api.h"
#include "device/device.h"
#include "temporary_folder.h"

namespace flashcore::cuda {
namespace {

void expect_clean(Compiler& compiler, Microkernel kernel, const std::string& arch) {
  const Artifact artifact = compiler.compile(microkernel_source(kernel), microkernel_sources(), arch);
  EXPECT_EQ(artifact.spill_store_bytes + artifact.spill_load_bytes + artifact.stack_bytes, 0)
      << artifact.symbol << " " << arch;
  EXPECT_TRUE(artifact.warnings.empty()) << artifact.symbol << " " << arch << ": " << artifact.warnings.front();
}

// A ceiling loop that spills or is serialised would report a bound that honest kernels beat.
TEST(Microkernels, CompileCleanlyForEveryArchitecture) {
  std::string why;
  if (!nvrtc_api(&why)) GTEST_SKIP() << "no NVRTC on this machine: " << why;
  const flashcore::test::TemporaryFolder folder;
  const flashcore::test::ScopedVariable cache("FLASHCORE_CACHE", folder.path().string());
  const std::unique_ptr<Compiler> compiler = open_compiler();
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const Microkernel kernel :
         {Microkernel::kEmpty, Microkernel::kStamp, Microkernel::kFill, Microkernel::kRead, Microkernel::kMma})
      expect_clean(*compiler, kernel, arch);
  expect_clean(*compiler, Microkernel::kWgmma, "sm_90a");
}

}  // namespace
}  // namespace flashcore::cuda
