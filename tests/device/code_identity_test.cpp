#include "device/cpu/code_identity.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "device/cpu/cpu_threads.h"
#include "device/cpu/openmp.h"

namespace flashcore {
namespace {

TEST(CodeIdentity, IsOfTheModuleAndNotOfTheFunction) {
  const std::string here = module_identity(reinterpret_cast<const void*>(&module_identity));
  EXPECT_EQ(here, module_identity(reinterpret_cast<const void*>(&cpu_code_identity)));
  const std::string libc = module_identity(reinterpret_cast<const void*>(&std::abort));
  EXPECT_NE(here, libc);
  EXPECT_GE(here.size(), 16u);
  int on_the_stack = 0;
  EXPECT_THROW(module_identity(&on_the_stack), Error);
}

// Its threads are those that candidates run on: another libgomp under the same name is another thread pool.
TEST(CodeIdentity, KnowsTheOpenMpRuntimeOfTheProcess) {
  const bool already = loaded_openmp() != nullptr;
  const std::string before = cpu_code_identity();
  if (dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) GTEST_SKIP() << "no libgomp.so.1 on this machine";
  ASSERT_NE(loaded_openmp(), nullptr);
  const std::string runtime = module_identity(reinterpret_cast<const void*>(loaded_openmp()->parallel));
  EXPECT_NE(cpu_code_identity().find("openmp " + runtime), std::string::npos) << cpu_code_identity();
  EXPECT_EQ(cpu_code_identity() == before, already);
}

// What a gate takes for the same code must not have run on fewer threads.
TEST(CodeIdentity, KnowsTheNumberOfThreads) {
  const std::string before = cpu_code_identity();
  EXPECT_EQ(cpu_code_identity(), before);
  const int threads = cpu_threads();
  set_cpu_threads(1);
  const std::string one = cpu_code_identity();
  set_cpu_threads(0);
  EXPECT_EQ(cpu_code_identity(), before);
  EXPECT_EQ(one == before, threads == 1);
}

}  // namespace
}  // namespace flashcore
