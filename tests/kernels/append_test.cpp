// The kernels of appending by NVRTC: what they do is python/append_test.py's, on the emulator.

#include "kernels/append/append.h"

#include <gtest/gtest.h>

#include "device/compiler.h"
#include "device/cuda/cuda_api.h"
#include "kernels/embedded.h"

namespace flashcore::append {
namespace {

TEST(AppendKernels, CompileWithoutSpillsAndStack) {
  std::string why;
  if (!cuda::nvrtc_api(&why)) GTEST_SKIP() << "no NVRTC on this machine: " << why;
  const auto compiler = open_compiler();
  const Kind kinds[] = {{},
                        {.element = Element::kBF16, .rotary = Rotary::kHalf, .table = Element::kBF16},
                        {.element = Element::kF32, .rotary = Rotary::kInterleaved},
                        {.element = Element::kBF16, .rotary = Rotary::kHalf, .cache = CacheElement::kE4M3},
                        {.element = Element::kF16, .rotary = Rotary::kInterleaved, .cache = CacheElement::kInt4}};
  for (const Kind& kind : kinds)
    for (const char* arch : {"sm_80", "sm_90a"}) {
      const Artifact artifact = compiler->compile(source_of(kind), device_sources(), arch);
      EXPECT_EQ(artifact.spill_store_bytes, 0) << arch << " " << source_of(kind).name_expression;
      EXPECT_EQ(artifact.stack_bytes, 0) << arch << " " << source_of(kind).name_expression;
    }
}

}  // namespace
}  // namespace flashcore::append
