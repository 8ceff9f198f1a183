#include "device/compiler.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "device/cuda/cuda_api.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

using test::ScopedVariable;
using test::TemporaryFolder;

const SourceMap& test_sources() {
  static const SourceMap sources = {
      {"test/config.h", "#pragma once\nnamespace test { struct Config { int rows; int unused; }; }\n"},
      {"test/kernel.cuh", R"(
#include "kernels/test/config.h"
namespace test {
template <Config C> __global__ void __launch_bounds__(128) clean(float* p) {
  __shared__ float tile[32];
  tile[threadIdx.x & 31] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = tile[(threadIdx.x + C.rows) & 31];
}
template <Config C> __global__ void __launch_bounds__(1024, 2) spills(float* p) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = p[threadIdx.x + i * 1024];
#pragma unroll
  for (int round = 0; round < 4; round++) {
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 7) & 63] + a[(i + 1 + round) & 63];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 64; i++) p[threadIdx.x + i * 1024] = a[i];
}
// An array written and read at run-time indices cannot live in registers.
template <Config C> __global__ void indexed(float* p, int n) {
  float a[32];
  for (int i = 0; i < 32; i++) a[(i * n) & 31] = p[i];
  p[threadIdx.x] = a[n & 31] + a[(n * 5) & 31];
}
__device__ __noinline__ float callee(float* p, int n) {
  float a[48];
  for (int i = 0; i < 48; i++) a[(i * n) % 48] = p[i];
  return a[n & 31];
}
template <Config C> __global__ void calls(float* p, int n) { p[threadIdx.x] = callee(p, n) + C.rows; }
template <Config C> __global__ void constants(float* p) {
  constexpr float table[8] = {1, 2, 3, C.rows, 5, 6, 7, 8};
  p[threadIdx.x] = table[threadIdx.x & 7];
}
// Touching the accumulator between wgmma and its wait makes ptxas serialise (C7510 and its kin).
template <Config C> __global__ void serialised(float* p, unsigned long long a, unsigned long long b) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int i = 0; i < C.rows; i++) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    d[0] *= 2.0f;
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  p[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
}  // namespace test
)"}};
  return sources;
}

KernelSource kernel(const std::string& name, const std::string& config = "7, 0") {
  return {"test/kernel.cuh", "test::" + name + "<test::Config{" + config + "}>", 4096, 128, {}};
}

class CompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!cuda::nvrtc_api(&why)) GTEST_SKIP() << "no NVRTC on this machine: " << why;
    compiler_ = open_compiler();
    ASSERT_EQ(std::sscanf(compiler_->version().c_str(), "NVRTC %d", &major_), 1);
  }
  // A compiler before 12.8 stops at Hopper.
  std::vector<std::string> archs(std::vector<std::string> wanted) const {
    if (major_ < 13) std::erase_if(wanted, [](const std::string& arch) { return arch.size() > 5 && arch != "sm_90a"; });
    return wanted;
  }
  Artifact compile(const KernelSource& source, const std::string& arch = "sm_80") {
    return compiler_->compile(source, test_sources(), arch);
  }

  TemporaryFolder folder_;
  ScopedVariable cache_{"FLASHCORE_CACHE", folder_.path().string()};
  std::unique_ptr<Compiler> compiler_;
  int major_ = 0;
};

std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

TEST_F(CompilerTest, ReportsACleanKernelOnEveryArchitecture) {
  for (const std::string& arch : archs({"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"})) {
    const Artifact artifact = compile(kernel("clean"), arch);
    EXPECT_EQ(artifact.cubin.substr(1, 3), "ELF") << arch;
    EXPECT_EQ(artifact.arch, arch);
    EXPECT_NE(artifact.symbol.find("clean"), std::string::npos);
    EXPECT_GT(artifact.registers, 4) << arch;
    EXPECT_EQ(artifact.spill_store_bytes + artifact.spill_load_bytes + artifact.stack_bytes, 0) << arch;
    EXPECT_EQ(artifact.static_shared_bytes, 128) << arch;
    EXPECT_EQ(artifact.dynamic_shared_bytes, 4096);
    EXPECT_EQ(artifact.threads_per_block, 128);
    // Earlier compilers do not say.
    if (major_ >= 13) {
      EXPECT_EQ(artifact.barriers, 1) << arch;
    }
    EXPECT_TRUE(artifact.warnings.empty()) << arch << ": " << artifact.warnings.front();
    EXPECT_GT(artifact.compile_ms, 0);
    EXPECT_FALSE(artifact.from_cache);
  }
}

TEST_F(CompilerTest, SpillsShow) {
  const Artifact artifact = compile(kernel("spills"));
  EXPECT_GT(artifact.spill_store_bytes, 0);
  EXPECT_GT(artifact.spill_load_bytes, 0);
  EXPECT_EQ(artifact.registers, 32);
}

TEST_F(CompilerTest, AnArrayIndexedAtRunTimeShowsAsStackWithoutSpills) {
  const Artifact artifact = compile(kernel("indexed"));
  EXPECT_GE(artifact.stack_bytes, 128);
  EXPECT_EQ(artifact.spill_store_bytes, 0);
}

TEST_F(CompilerTest, StackOfACalleeShows) { EXPECT_GE(compile(kernel("calls")).stack_bytes, 48 * 4); }

TEST_F(CompilerTest, SerialisedTensorInstructionsGiveAWarning) {
  const Artifact artifact = compile(kernel("serialised"), "sm_90a");
  ASSERT_FALSE(artifact.warnings.empty());
  EXPECT_NE(artifact.warnings.front().find("C75"), std::string::npos) << artifact.warnings.front();
}

TEST_F(CompilerTest, AnInertParameterLeavesTheCodeHash) {
  for (const std::string& arch : archs({"sm_80", "sm_90a", "sm_120"})) {
    const Artifact one = compile(kernel("clean", "7, 0"), arch), other = compile(kernel("clean", "7, 1"), arch);
    EXPECT_NE(one.symbol, other.symbol);
    EXPECT_NE(one.cubin, other.cubin);
    EXPECT_EQ(one.code_hash, other.code_hash) << arch;
    EXPECT_NE(one.code_hash, compile(kernel("clean", "8, 0"), arch).code_hash) << arch;
  }
}

TEST_F(CompilerTest, LiteralsCalleesAndResourcesCountInTheCodeHash) {
  EXPECT_EQ(compile(kernel("constants", "7, 0")).code_hash, compile(kernel("constants", "7, 1")).code_hash);
  EXPECT_NE(compile(kernel("constants", "7, 0")).code_hash, compile(kernel("constants", "8, 0")).code_hash);
  EXPECT_EQ(compile(kernel("calls", "7, 0")).code_hash, compile(kernel("calls", "7, 1")).code_hash);
  KernelSource more_shared = kernel("clean");
  more_shared.dynamic_shared_bytes *= 2;
  EXPECT_NE(compile(kernel("clean")).code_hash, compile(more_shared).code_hash);
}

TEST_F(CompilerTest, AFailureCarriesTheWholeLog) {
  try {
    compile(kernel("absent"));
    FAIL() << "an unknown kernel compiled";
  } catch (const CompileError& error) {
    EXPECT_NE(error.log().find("absent"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("error"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("sm_80"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(entries(folder_.path()).empty()) << "a failure must not be cached";
}

TEST_F(CompilerTest, ArchitecturesItCannotDoAreNamed) {
  for (const char* arch : {"", "80", "sm_", "sm_8x", "cpu"}) {
    try {
      compile(kernel("clean"), arch);
      FAIL() << arch;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << arch;
    }
  }
  try {
    compile(kernel("clean"), "sm_35");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("sm_35"), std::string::npos);
  }
}

TEST_F(CompilerTest, TheWorkingFolderIsNotSearchedForHeaders) {
  std::ofstream(folder_.path() / "beside.h") << "#define BESIDE 1\n";
  const SourceMap sources = {{"test/kernel.cuh", "#include \"beside.h\"\n__global__ void f() {}\n"}};
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  EXPECT_THROW(compiler_->compile({"test/kernel.cuh", "f", 0, 32, {}}, sources, "sm_80"), CompileError);
  std::filesystem::current_path(before);
}

TEST_F(CompilerTest, TheCacheGivesBackTheSameArtifact) {
  const Artifact fresh = compile(kernel("clean"));
  EXPECT_EQ(entries(folder_.path()).size(), 1u);
  const Artifact cached = compile(kernel("clean"));
  EXPECT_TRUE(cached.from_cache);
  EXPECT_EQ(cached.cubin, fresh.cubin);
  EXPECT_EQ(cached.code_hash, fresh.code_hash);
  EXPECT_EQ(cached.registers, fresh.registers);
  EXPECT_EQ(cached.compile_ms, fresh.compile_ms);
  EXPECT_FALSE(compiler_->compile(kernel("clean"), test_sources(), "sm_80", false).from_cache);
}

TEST_F(CompilerTest, EveryInputIsPartOfTheCacheKey) {
  compile(kernel("clean"));
  EXPECT_FALSE(compile(kernel("clean"), "sm_86").from_cache);
  EXPECT_FALSE(compile(kernel("clean", "7, 1")).from_cache);
  KernelSource changed = kernel("clean");
  changed.options = {"-lineinfo"};
  EXPECT_FALSE(compile(changed).from_cache);
  changed = kernel("clean");
  changed.dynamic_shared_bytes = 0;
  EXPECT_FALSE(compile(changed).from_cache);
  SourceMap sources = test_sources();
  sources["test/config.h"] += "// edited\n";
  EXPECT_FALSE(compiler_->compile(kernel("clean"), sources, "sm_80").from_cache);
  EXPECT_TRUE(compile(kernel("clean")).from_cache);
}

TEST_F(CompilerTest, ADamagedEntryIsAMissAndIsReplaced) {
  const Artifact fresh = compile(kernel("clean"));
  const std::filesystem::path file = entries(folder_.path()).at(0);
  const std::string good = read_file(file);
  std::vector<std::string> damaged = {"", "x", good.substr(0, 40), good.substr(0, good.size() - 1), good + "x"};
  for (const std::size_t at :
       {std::size_t{3}, std::size_t{25}, std::size_t{60}, std::size_t{70}, good.size() / 2, good.size() - 1}) {
    damaged.push_back(good);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 1);
  }
  for (const std::string& bytes : damaged) {
    std::ofstream(file, std::ios::binary) << bytes;
    const Artifact again = compile(kernel("clean"));
    EXPECT_FALSE(again.from_cache) << bytes.size() << " bytes";
    EXPECT_EQ(again.cubin, fresh.cubin);
    EXPECT_TRUE(compile(kernel("clean")).from_cache) << "the damaged entry stayed";
  }
}

TEST_F(CompilerTest, AnotherKeysFileIsAMiss) {
  compile(kernel("clean", "7, 0"));
  const std::filesystem::path one = entries(folder_.path()).at(0);
  const std::string other_bytes = read_file(one);
  const Artifact other = compile(kernel("clean", "8, 0"));
  for (const std::filesystem::path& file : entries(folder_.path()))
    if (file != one) std::ofstream(file, std::ios::binary) << other_bytes;
  const Artifact again = compile(kernel("clean", "8, 0"));
  EXPECT_FALSE(again.from_cache);
  EXPECT_EQ(again.symbol, other.symbol);
}

TEST_F(CompilerTest, WithoutAWritableCacheItStillCompiles) {
  const std::filesystem::path file = folder_.path() / "a-file";
  std::ofstream(file) << "in the way";
  ScopedVariable blocked("FLASHCORE_CACHE", (file / "cache").string());
  const std::unique_ptr<Compiler> compiler = open_compiler();
  EXPECT_FALSE(compiler->compile(kernel("clean"), test_sources(), "sm_80").from_cache);
  EXPECT_FALSE(compiler->compile(kernel("clean"), test_sources(), "sm_80").from_cache);
}

TEST_F(CompilerTest, ThreadsAndProcessesShareOneCache) {
  // Children first: a fork after threads have started would be a different test.
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      bool good = true;
      for (int round = 0; round < 4; ++round)
        good = good && compile(kernel("clean", std::to_string(round % 2) + ", 0")).cubin.size() > 1000;
      _exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  std::vector<std::thread> threads;
  std::vector<int> good(3, 0);
  for (std::size_t t = 0; t < good.size(); ++t)
    threads.emplace_back([&, t] {
      for (int round = 0; round < 4; ++round)
        good[t] += compile(kernel("clean", std::to_string(round % 2) + ", 0")).cubin.size() > 1000;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, (std::vector<int>{4, 4, 4}));
  for (const pid_t pid : children) {
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(entries(folder_.path()).size(), 2u) << "one file per key and no temporary left";
  EXPECT_TRUE(compile(kernel("clean", "0, 0")).from_cache);
}

}  // namespace
}  // namespace flashcore
