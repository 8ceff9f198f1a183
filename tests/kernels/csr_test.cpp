// The kernel that makes block tables, by NVRTC: what it does is api/csr_test.cpp's, on the emulator.

#include "kernels/csr/csr.h"

#include <gtest/gtest.h>

#include "device/compiler.h"
#include "device/cuda/cuda_api.h"
#include "kernels/embedded.h"

namespace flashcore::csr {
namespace {

TEST(CsrKernel, CompilesWithoutSpillsAndStack) {
  std::string why;
  if (!cuda::nvrtc_api(&why)) GTEST_SKIP() << "no NVRTC on this machine: " << why;
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const Artifact artifact = open_compiler()->compile(source_of(), device_sources(), arch);
    EXPECT_EQ(artifact.spill_store_bytes, 0) << arch;
    EXPECT_EQ(artifact.stack_bytes, 0) << arch;
  }
}

}  // namespace
}  // namespace flashcore::csr
