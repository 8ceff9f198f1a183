// The emulated GPU on kernels of a few lines, one fault each: the report must say what, where and who.

#include "device/emulator/emulator_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "device/emulator/emulator_compiler.h"

namespace flashcore {
namespace {

struct Params {
  float* data;
  int n;
};

// A kernel whose body is `body`, with `p` its parameters and `t` the thread's number.
SourceMap sources_of(const std::string& body) {
  SourceMap sources;
  for (const auto& [path, text] : emulator::embedded_emulator_sources()) {
    if (path.starts_with("ptx/")) sources.emplace(path, "the device's own, which the emulator exchanges");
  }
  std::string text;
  for (const char* header :
       {"barrier", "cp_async", "ldmatrix", "mbarrier", "memory", "shuffle", "special_registers", "atomic"})
    text += fmt::format("#include \"kernels/ptx/{}.cuh\"\n", header);
  sources["test/kernel.cuh"] =
      text +
      "using namespace flashcore;\nstruct Params { float* data; int n; };\nFC_KERNEL(64, 1) kernel(const "
      "__grid_constant__ Params p) {\n"
      "const int t = ptx::tid_x(); const unsigned s = ptx::dynamic_shared(); (void)t; (void)s; (void)p;\n#line 1\n" +
      body + "\n}\n";
  return sources;
}

class EmulatorTest : public ::testing::Test {
 protected:
  // The report of the fault, or "" if the launch ended well.
  std::string run(const std::string& body, unsigned grid = 1, unsigned threads = 64, int launches = 2) {
    static const std::unique_ptr<Compiler> compiler = open_emulator_compiler();
    const auto device = open_emulator();
    buffer_ = device->allocate(1024, 256);
    device->label(*buffer_, {"data", DType::kF32, std::nullopt});
    device->fill(buffer_->data(), 0, 1024);
    KernelSource kernel{"test/kernel.cuh", "kernel", 1024, static_cast<int>(threads), {}};
    const auto module = device->load(compiler->compile(kernel, sources_of(body), "sm_90"));
    const Params params{static_cast<float*>(buffer_->data()), 256};
    LaunchSpec spec;
    spec.grid.x = grid;
    spec.block.x = threads;
    spec.shared_bytes = 1024;
    spec.params.resize(sizeof params);
    std::memcpy(spec.params.data(), &params, sizeof params);
    try {
      for (int i = 0; i < launches; ++i) device->launch(*module, spec);
    } catch (const DeviceFault& fault) {
      EXPECT_NE(std::string(fault.what()).find("FLASHCORE_EMULATOR_SEED="), std::string::npos) << fault.what();
      return fault.what();
    }
    counters_ = device->counters();
    return "";
  }
  void expect(const std::string& body, const std::vector<std::string>& words, unsigned grid = 1,
              unsigned threads = 64) {
    const std::string report = run(body, grid, threads);
    for (const std::string& word : words)
      EXPECT_NE(report.find(word), std::string::npos) << "missing: " << word << "\n" << report;
  }
  float at(int i) const { return static_cast<const float*>(buffer_->data())[i]; }

  std::unique_ptr<Buffer> buffer_;
  nlohmann::json counters_;
};

TEST_F(EmulatorTest, RunsAndCounts) {
  EXPECT_EQ(run("ptx::st_shared_u32(s + 4 * t, t);\nptx::bar_sync();\n"
                "ptx::st_global_f32(p.data + t, static_cast<float>(ptx::ld_shared_u32(s + 4 * (63 - t))));"),
            "");
  EXPECT_EQ(at(0), 63.0f);
  EXPECT_EQ(at(63), 0.0f);
  EXPECT_EQ(counters_.at("barrier_waits"), 64);
  EXPECT_EQ(counters_.at("global_store").at("bytes"), 256);
  EXPECT_EQ(counters_.at("global_store").at("sectors_per_request"), 4.0);
  EXPECT_EQ(counters_.at("bank_conflicts"), 0);
}

TEST_F(EmulatorTest, CountsBankConflictsPerSite) {
  EXPECT_EQ(run("ptx::st_shared_u32(s + 128 * (t % 8), 0);", 1, 8), "");
  EXPECT_EQ(counters_.at("bank_conflicts"), 7);
  EXPECT_EQ(counters_.at("sites").at(0).at("passes_per_request"), 8.0);
}

TEST_F(EmulatorTest, GlobalOutOfBoundsNamesTheBuffer) {
  expect("ptx::st_global_f32(p.data + 256 + t, 1.0f);",
         {"global memory out of bounds", "past the end of data", "kernels/test/kernel.cuh:1", "st_global_f32"});
}
TEST_F(EmulatorTest, GlobalMisaligned) {
  expect("if (t == 0) ptx::st_global_v4(p.data + 1, {});", {"misaligned global memory access", "data + 4"});
}
TEST_F(EmulatorTest, GlobalRaceBetweenCtas) {
  expect("if (t == 3) ptx::st_global_f32(p.data, 1.0f);", {"race", "data + 0", "thread 3", "of CTA"}, 2);
}
TEST_F(EmulatorTest, GlobalRaceBetweenThreadsUnlessABarrierOrders) {
  expect("if (t < 2) ptx::st_global_f32(p.data, 1.0f);", {"race", "thread 0", "thread 1"});
  EXPECT_EQ(run("if (t == 0) ptx::st_global_f32(p.data, 1.0f);\nptx::bar_sync();\nif (t == 1) "
                "ptx::st_global_f32(p.data, 2.0f);"),
            "");
}
TEST_F(EmulatorTest, SharedOutOfBounds) {
  expect("ptx::st_shared_u32(s + 1024 + 4 * t, 0);", {"shared memory out of bounds", "of 1024"});
}
TEST_F(EmulatorTest, SharedMisaligned) {
  expect("if (t == 0) ptx::ld_shared_v4(s + 8);", {"misaligned shared memory access"});
}
TEST_F(EmulatorTest, SharedUninitialised) { expect("ptx::ld_shared_u32(s + 4 * t);", {"uninitialised shared memory"}); }
TEST_F(EmulatorTest, SharedReadAfterWriteRaceNamesBothLines) {
  expect(
      "if (t == 5) ptx::st_shared_u32(s, 1);\nif (t == 40) { while (p.n == 0) {} ptx::shfl_idx(0, 0); "
      "ptx::ld_shared_u32(s); }\nelse if (t >= 32) ptx::shfl_idx(0, 0);",
      {"divergent"});
  expect("ptx::st_shared_u32(s + 4 * t, 1);\nptx::ld_shared_u32(s + 4 * (t ^ 1));", {"kernel.cuh:2", "ld_shared_u32"});
}
TEST_F(EmulatorTest, SharedWriteAfterReadRace) {
  expect(
      "ptx::st_shared_u32(s + 4 * t, 1);\nptx::bar_sync();\nptx::ld_shared_u32(s + 4 * (63 - "
      "t));\nptx::st_shared_u32(s + 4 * t, 2);",
      {"race", "kernel.cuh:4", "kernel.cuh:3"});
}
TEST_F(EmulatorTest, CopyNotWaitedFor) {
  expect("ptx::cp_async_16(s + 16 * t, p.data + 4 * t, 16);\nptx::cp_async_commit();\nptx::ld_shared_u32(s + 16 * t);",
         {"race", "cp.async of", "Nobody has waited", "kernel.cuh:3", "kernel.cuh:1"});
}
TEST_F(EmulatorTest, CopyOverwrittenWhilePending) {
  expect("ptx::cp_async_16(s + 16 * t, p.data + 4 * t, 16);\nptx::st_shared_u32(s + 16 * t, 1);",
         {"race", "writes 4 bytes", "cp.async of"});
}
TEST_F(EmulatorTest, CopyWaitedForByOthersNeedsABarrier) {
  expect(
      "ptx::cp_async_16(s + 16 * t, p.data + 4 * t, "
      "16);\nptx::cp_async_commit();\nptx::cp_async_wait<0>();\nptx::bar_warp_sync();\nptx::ld_shared_u32(s + 16 * (t "
      "^ 32));",
      {"kernel.cuh:5"});
  EXPECT_EQ(run("ptx::cp_async_16(s + 16 * t, p.data + 4 * t, "
                "16);\nptx::cp_async_commit();\nptx::cp_async_wait<0>();\nptx::bar_sync();\nptx::ld_shared_u32(s + 16 "
                "* (t ^ 32));"),
            "");
}
TEST_F(EmulatorTest, BarrierCountsMismatch) {
  expect("if (t < 32) ptx::bar_sync(3, 64); else ptx::bar_sync(3, 96);",
         {"barrier 3 counts mismatch", "the other party"});
}
TEST_F(EmulatorTest, BarrierArrivedAtTwice) {
  expect("if (t < 32) { ptx::bar_arrive(3, 64);\nptx::bar_arrive(3, 64); }", {"arrived at twice"});
}
TEST_F(EmulatorTest, DeadlockSaysWhoWaitsForWhat) {
  expect("if (t < 32) ptx::bar_sync();",
         {"deadlock", "threads 0 to 31", "barrier 0, at which 32 of 64", "threads 32 to 63: returned"});
  expect(
      "if (t == 0) { ptx::mbarrier_init(s, 2); ptx::mbarrier_arrive(s); }\nptx::bar_sync();\nptx::mbarrier_wait(s, 0);",
      {"deadlock", "lacks 1 of 2 arrivals", "parity 0"});
}
TEST_F(EmulatorTest, DivergentCollective) {
  expect("if (t % 2) ptx::shfl_bfly(1.0f, 1);\nelse ptx::shfl_bfly(2.0f, 1);",
         {"divergent collective", "the other party", "kernel.cuh:1", "kernel.cuh:2"});
}
TEST_F(EmulatorTest, MBarrierOrders) {
  EXPECT_EQ(run("if (t == 0) { ptx::mbarrier_init(s, 32); }\nptx::bar_sync();\nif (t >= 32) { ptx::st_shared_u32(s + 4 "
                "* t, 7); ptx::mbarrier_arrive(s); }\n"
                "else { ptx::mbarrier_wait(s, 0); ptx::st_global_f32(p.data + t, "
                "static_cast<float>(ptx::ld_shared_u32(s + 4 * (t + 32)))); }"),
            "");
  EXPECT_EQ(at(31), 7.0f);
}
TEST_F(EmulatorTest, AtomicsHandOutEveryNumberOnce) {
  EXPECT_EQ(run("ptx::atomic_add_global(reinterpret_cast<unsigned*>(p.data), 1);", 8, 64, 1), "");
  unsigned sum;
  std::memcpy(&sum, buffer_->data(), 4);
  EXPECT_EQ(sum, 512u);
}

TEST(EmulatorDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(open_device("emulator")->info().limits.arch, 90);
  EXPECT_TRUE(open_device("emulator:sm_80")->info().limits.emulated);
  EXPECT_EQ(open_device("emulator:sm_80")->info().id, "emulator:sm_80");
  EXPECT_THROW(open_device("emulator:sm_12345"), Error);
  EXPECT_THROW(open_device("emulator")->ceilings(), Error);
}

}  // namespace
}  // namespace flashcore
