// The compile gate of kernels/quantise: every kernel of every kind, on every architecture. Needs NVRTC, no GPU.
#include "kernels/quantise/quantise.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/compiler.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

std::string complaint(const KernelFacts& facts) {
  std::string found;
  if (facts.spill_store_bytes + facts.spill_load_bytes > 0) found += "spills; ";
  if (facts.stack_bytes > 0) found += "has a stack frame; ";
  return found;
}

TEST(SpillQuantise, NoKernelOfAnyKindSpills) {
  std::unique_ptr<Compiler> compiler;
  try {
    compiler = open_compiler();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const quantise::Kind kinds[] = {{Element::kF16, Element::kE4M3},
                                  {Element::kBF16, Element::kE5M2},
                                  {Element::kF32, Element::kE4M3},
                                  {Element::kBF16, Element::kE4M3, true},
                                  {Element::kF32, Element::kE5M2, true}};
  for (const std::string& arch : known_archs())
    for (const quantise::Kind& kind : kinds) {
      const Artifact artifact = compiler->compile(quantise::source_of(kind), device_sources(), arch);
      SCOPED_TRACE(
          fmt::format("{}, element {}, code {}", arch, static_cast<int>(kind.element), static_cast<int>(kind.code)));
      EXPECT_TRUE(artifact.warnings.empty()) << artifact.warnings.front();
      EXPECT_EQ(complaint(artifact), "") << artifact.registers;
      ASSERT_EQ(artifact.more_kernels.size(), 5u);
      for (const KernelFacts& facts : artifact.more_kernels)
        EXPECT_EQ(complaint(facts), "") << facts.symbol << " takes " << facts.registers;
    }
}

}  // namespace
}  // namespace flashcore
