#include "lab/harness/kernel_failure.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "core/error.h"

namespace flashcore {
namespace {

TEST(KernelFailure, WhoseDoingItIsIsToldApart) {
  EXPECT_FALSE(failure_of([] {}));
  const auto compiled = failure_of([] { throw CompileError("2 errors", "line 1: no\nline 2: no"); });
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiled->what, "it did not compile: 2 errors\nline 1: no\nline 2: no");
  EXPECT_EQ(compiled->first_line(), "it did not compile: 2 errors");
  EXPECT_FALSE(compiled->faulted || compiled->lacking);
  const auto faulted = failure_of([] { throw DeviceFault("an illegal memory access"); });
  ASSERT_TRUE(faulted);
  EXPECT_TRUE(faulted->faulted && !faulted->lacking);
  for (const auto& lacking :
       {failure_of([] { throw std::bad_alloc(); }), failure_of([] { throw_environment("no NVRTC"); })}) {
    ASSERT_TRUE(lacking);
    EXPECT_TRUE(lacking->lacking && !lacking->faulted);
  }
  // A fault of this program is none of the kernel's.
  EXPECT_THROW((void)failure_of([] { throw std::logic_error("ours"); }), std::logic_error);
  EXPECT_THROW((void)failure_of([] { throw_bad_input("no such family"); }), Error);
}

}  // namespace
}  // namespace flashcore
