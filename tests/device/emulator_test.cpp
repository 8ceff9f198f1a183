// The emulated GPU on kernels of a few lines, one fault each: the report must say what, where and who.

#include "device/emulator/emulator_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "device/emulator_fixture.h"

namespace flashcore {
namespace {

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

TEST_F(EmulatorTest, CountsLanesAndWaitsPerSite) {
  EXPECT_EQ(run("if (t % 2 == 1) ptx::st_global_f32(p.data + t, 1.0f);\nptx::bar_sync();\nptx::cp_async_wait<0>();"),
            "");
  EXPECT_EQ(counters_.at("global_store").at("lanes"), 32);
  EXPECT_EQ(counters_.at("global_store").at("possible_lanes"), 64);
  EXPECT_EQ(counters_.at("sites").at(0).at("lanes"), 32);
  ASSERT_EQ(counters_.at("sites").size(), 1u);
  ASSERT_EQ(counters_.at("waits").size(), 2u);
  std::map<std::string, std::string> lines;
  for (const auto& wait : counters_.at("waits")) {
    EXPECT_EQ(wait.at("threads"), 64);
    lines[wait.at("kind").get<std::string>()] = wait.at("where").get<std::string>();
  }
  EXPECT_TRUE(lines.at("barrier wait").starts_with("kernels/test/kernel.cuh:2")) << lines.at("barrier wait");
  EXPECT_TRUE(lines.at("copy wait").starts_with("kernels/test/kernel.cuh:3")) << lines.at("copy wait");
}

// One instruction of one thread moves them: no warp's requests, and no part of the sums over those.
TEST_F(EmulatorTest, CountsTilesPerLineBySectors) {
  EXPECT_EQ(run("if (t == 0) { ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init();\n"
                "ptx::mbarrier_arrive_expect_tx(s, 144);\n"
                "ptx::tma_load_4d(s + 128, p.map, s, 0, 0, 0, 0);\n"
                "ptx::bulk_load(s + 64, p.data, 16, s);\nptx::mbarrier_wait(s, 0); }"),
            "");
  EXPECT_EQ(counters_.at("global_load").at("requests"), 0);
  EXPECT_EQ(counters_.at("tma_bytes"), 144);
  ASSERT_EQ(counters_.at("sites").size(), 2u) << counters_.at("sites").dump();
  const auto at_line = [&](const char* line) {
    for (const auto& site : counters_.at("sites"))
      if (site.at("where").get<std::string>().starts_with(line)) return site;
    return nlohmann::json();
  };
  const nlohmann::json tile = at_line("kernels/test/kernel.cuh:3"), bulk = at_line("kernels/test/kernel.cuh:4");
  ASSERT_TRUE(tile.is_object() && bulk.is_object()) << counters_.at("sites").dump();
  EXPECT_EQ(tile.at("kind"), "TMA load");
  EXPECT_EQ(tile.at("requests"), 1);
  EXPECT_EQ(tile.at("bytes"), 128);
  EXPECT_EQ(tile.at("sectors_per_request"), 4.0);
  EXPECT_EQ(tile.at("least_sectors_per_request"), 4.0);
  EXPECT_EQ(bulk.at("sectors_per_request"), 1.0);
}

// A fiber runs until it must wait, so its stores come long before those of the next lane.
TEST_F(EmulatorTest, ALaneThatRunsAheadSplitsNoRequest) {
  EXPECT_EQ(run("for (int i = 0; i < 300; ++i) ptx::st_shared_u32(s + 4 * t, i);", 1, 32), "");
  EXPECT_EQ(counters_.at("shared_store").at("requests"), 300);
  EXPECT_EQ(counters_.at("shared_store").at("lanes"), 300 * 32);
}

TEST_F(EmulatorTest, GlobalOutOfBoundsNamesTheBuffer) {
  expect("ptx::st_global_f32(p.data + 256 + t, 1.0f);",
         {"global memory out of bounds", "past the end of data", "kernels/test/kernel.cuh:1", "st_global_f32"});
}
// The register knows which buffers there are, and not which of them a pointer was made from. Red zones lie between.
TEST_F(EmulatorTest, APointerThatLandsInAnotherBufferIsNotFound) {
  EXPECT_EQ(run("if (t == 0) ptx::st_global_f32(p.data + (p.other - p.data), 1.0f);"), "");
  expect("if (t == 0) ptx::st_global_f32(p.data + (p.other - p.data) - 1, 1.0f);", {"global memory out of bounds"});
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
// A shuffle makes the order of the two certain here, and orders nothing.
TEST_F(EmulatorTest, GlobalMemoryReadBeforeAnotherThreadWritesIt) {
  const auto body = [](const char* read, const char* between) {
    return fmt::format(
        "if (t == 0) {{\n{}; }}\n{}; ptx::shfl_idx(0, 0);\nif (t == 1) ptx::st_global_f32(p.data, 1.0f);", read,
        between);
  };
  const std::string plain = "ptx::ld_global_f32(p.data)",
                    copy = "ptx::cp_async_16(s, p.data, 16); ptx::cp_async_commit()";
  const std::string bulk =
      "ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init(); ptx::mbarrier_arrive_expect_tx(s, 16); "
      "ptx::bulk_load(s + 64, p.data, 16, s)";
  const std::string tile =
      "ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init(); ptx::mbarrier_arrive_expect_tx(s, 128); "
      "ptx::tma_load_4d(s + 128, p.map, s, 0, 0, 0, 0)";
  EXPECT_EQ(run(body(plain.c_str(), "ptx::bar_sync()")), "");
  EXPECT_EQ(run(body((copy + "; ptx::cp_async_wait<0>()").c_str(), "ptx::bar_sync()")), "");
  for (const std::string& loads : {bulk, tile})
    EXPECT_EQ(run(body(loads.c_str(), "ptx::bar_sync(); ptx::mbarrier_wait(s, 0)")), "");
  const std::vector<std::string> words = {"race",     "writes global memory", "after an earlier read",
                                          "thread 0", "kernel.cuh:2",         "kernel.cuh:4"};
  expect_in(run(body(plain.c_str(), "")), words);
  expect_in(run(body((copy + "; ptx::cp_async_wait<0>()").c_str(), "")), words);
  for (const std::string& loads : {copy, bulk, tile}) expect_in(run(body(loads.c_str(), "ptx::bar_sync()")), words);
  EXPECT_EQ(run("if (t == 0) ptx::ld_global_f32(p.data + 1);\nptx::shfl_idx(0, 0);\nif (t == 1) "
                "ptx::st_global_f32(p.data, 1.0f);"),
            "")
      << "other bytes of the same sixteen";
}
TEST_F(EmulatorTest, GlobalMemoryReadByAnotherCta) {
  expect("if (t == 0) { if (ptx::ctaid_x() == 0) ptx::ld_global_f32(p.data); else ptx::st_global_f32(p.data, 1.0f); }",
         {"race", "of CTA 0", "of CTA 1"}, 2);
}
// A tile of a tensor map is read as any other memory.
TEST_F(EmulatorTest, TmaReadsWhatNobodyHasOrdered) {
  const auto body = [](const char* between) {
    return fmt::format(
        "if (t == 1) ptx::st_global_f32(p.data, 1.0f);\n{}; ptx::shfl_idx(0, 0);\nif (t == 0) {{ ptx::mbarrier_init(s, "
        "1); "
        "ptx::fence_mbarrier_init(); ptx::mbarrier_arrive_expect_tx(s, 128); ptx::tma_load_4d(s + 128, p.map, s, 0, 0, "
        "0, 0); "
        "ptx::mbarrier_wait(s, 0); }}",
        between);
  };
  EXPECT_EQ(run(body("ptx::bar_sync()")), "");
  expect_in(run(body("")), {"race", "reads global memory", "earlier write", "kernel.cuh:1", "kernel.cuh:3"});
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
TEST_F(EmulatorTest, ARaceNamesTheBarrierThatIsMissingAndTheLastThatEachPassed) {
  // Of the two barriers that a reduction needs the second is gone.
  expect(
      "ptx::st_shared_u32(s + 4 * t, 1);\nptx::bar_sync();\nptx::ld_shared_u32(s + 4 * (63 - "
      "t));\nptx::st_shared_u32(s + 4 * t, 2);",
      {"A barrier is missing between these two lines", "__syncthreads", "last barrier passed by thread",
       "barrier 0\n    at kernels/test/kernel.cuh:2"});
  // No barrier at all.
  expect("ptx::st_shared_u32(s + 4 * t, 1);\nptx::ld_shared_u32(s + 4 * (t ^ 1));",
         {"A barrier is missing between these two lines|a barrier is missing between that write and this line",
          ": none yet"});
  // An mbarrier was the last.
  expect(
      "if (t == 0) { ptx::mbarrier_init(s, 64); }\nptx::bar_sync();\nptx::mbarrier_arrive(s);\nptx::mbarrier_wait(s, "
      "0);\nptx::st_shared_u32(s + 512, t);",
      {"race", "the mbarrier at offset 0\n    at kernels/test/kernel.cuh:4"});
  expect("if (t < 2) ptx::st_global_f32(p.data, 1.0f);",
         {"A barrier is missing between these two lines", ": none yet"});
  expect("if (t == 3) ptx::st_global_f32(p.data, 1.0f);", {"No barrier spans CTAs"}, 2);
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

// Two CTAs of a cluster, 32 threads each: each sends 16 bytes a thread to the other.
class ClusterTest : public EmulatorTest {
 protected:
  // Line 1 makes the barrier, 2 starts the cluster, 3 sends, 4 waits, 5 reads.
  static constexpr const char* kLines[] = {
      "if (t == 0) { ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init(); ptx::mbarrier_arrive_expect_tx(s, 512); }\n",
      "ptx::cluster_arrive_relaxed(); ptx::cluster_wait(); const int peer = 1 - ptx::cluster_ctarank();\n",
      "ptx::st_async_v4(ptx::mapa(s + 512 + 16 * t, peer), t, 0, 0, ptx::cluster_ctarank(), ptx::mapa(s, peer));\n",
      "ptx::mbarrier_wait_cluster(s, 0);\n",
      "const auto v = ptx::ld_shared_v4(s + 512 + 16 * (31 - t));\n"
      "ptx::st_global_u32(reinterpret_cast<unsigned*>(p.data) + ptx::ctaid_x() * 64 + t, v.x);\n"
      "ptx::st_global_u32(reinterpret_cast<unsigned*>(p.data) + ptx::ctaid_x() * 64 + 32 + t, v.w);\n"};
  // The lines, one of them exchanged.
  static std::string lines(int changed = -1, const std::string& by = "") {
    std::string text;
    for (int i = 0; i < 5; ++i) text += i == changed ? by + "\n" : kLines[i];
    return text;
  }
};
constexpr const char* ClusterTest::kLines[];

TEST_F(ClusterTest, HandsOverAndCounts) {
  EXPECT_EQ(run(lines(), pair(), 8), "");
  EXPECT_EQ(at(0), 31.0f);
  EXPECT_EQ(at(32), 1.0f);  // rank 0 has what rank 1 sent
  EXPECT_EQ(at(96), 0.0f);
  EXPECT_EQ(counters_.at("cluster_bytes"), 1024);
}
TEST_F(ClusterTest, PeerMayNotHaveStarted) {
  expect_in(run(lines(1, "const int peer = 1 - ptx::cluster_ctarank();"), pair()),
            {"peer may not have started", "of CTA rank", "kernel.cuh:3", "st_async_v4"});
}
TEST_F(ClusterTest, BarrierOfThePeerNotFenced) {
  expect_in(run(lines(0, "if (t == 0) { ptx::mbarrier_init(s, 1); ptx::mbarrier_arrive_expect_tx(s, 512); }"), pair()),
            {"race", "signals", "kernel.cuh:3", "the other party: thread 0", "kernel.cuh:1"});
  // A releasing arrival needs no fence.
  std::string releasing = lines(0, "if (t == 0) { ptx::mbarrier_init(s, 1); ptx::mbarrier_arrive_expect_tx(s, 512); }");
  releasing.replace(releasing.find("_relaxed"), 8, "");
  EXPECT_EQ(run(releasing, pair()), "");
}
TEST_F(ClusterTest, NotWaitedFor) { expect_in(run(lines(3, ""), pair()), {"kernel.cuh:5"}); }
TEST_F(ClusterTest, EndsBeforeWhatIsSentHasCome) {
  expect_in(run(lines(3, "return;"), pair(), 1), {"CTA ends too early|peer has ended", "kernel.cuh:3"});
}
TEST_F(ClusterTest, WaitOfTheCtasScope) {
  expect_in(run(lines(3, "ptx::mbarrier_wait(s, 0);"), pair()), {"wrong scope", "kernel.cuh:4"});
}
TEST_F(ClusterTest, OutOfThePeersBounds) {
  expect_in(
      run(lines(2, "ptx::st_async_v4(ptx::mapa(s, peer) + 1024 + 16 * t, 0, 0, 0, 0, ptx::mapa(s, peer));"), pair()),
      {"shared memory out of bounds", "of CTA rank"});
  expect_in(run(lines(2, "ptx::st_async_v4(ptx::mapa(s, peer) + 520, 0, 0, 0, 0, ptx::mapa(s, peer));"), pair()),
            {"misaligned"});
  expect_in(run(lines(2, "ptx::mapa(s, 2);"), pair()), {"mapa to rank 2", "2 CTAs"});
  expect_in(run(lines(2, "ptx::st_async_v4(s + 512, 0, 0, 0, 0, s);"), pair()), {"no address of the cluster"});
}
TEST_F(ClusterTest, TwoSendersToOnePlace) {
  expect_in(run(lines(2, "ptx::st_async_v4(ptx::mapa(s + 512 + 16 * (t / 2), peer), 0, 0, 0, 0, ptx::mapa(s, peer));"),
                pair()),
            {"race", "st.async", "kernel.cuh:3"});
}
TEST_F(ClusterTest, TooFewAndTooManyBytes) {
  expect_in(run("if (t == 0) { ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init(); ptx::mbarrier_arrive_expect_tx(s, "
                "496); }\n" +
                    lines(0, ""),
                pair()),
            {"wrong expect_tx|deadlock"});
  expect_in(run(lines(0,
                      "if (t == 0) { ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init(); "
                      "ptx::mbarrier_arrive_expect_tx(s, 528); }"),
                pair()),
            {"deadlock", "and 16 bytes", "of CTA rank 1"});
}
TEST_F(ClusterTest, BarrierIsOfAllThreadsThatLive) {
  EXPECT_EQ(run("if (ptx::cluster_ctarank() == 1) return;\nptx::cluster_arrive(); ptx::cluster_wait();", pair()), "");
  expect_in(run("if (ptx::cluster_ctarank() == 1) ptx::bar_sync(1, 64);\nptx::cluster_arrive(); ptx::cluster_wait();",
                pair()),
            {"deadlock", "the cluster's barrier, at which 32 of 64", "barrier 1"});
  expect_in(run("ptx::cluster_arrive();\nptx::cluster_arrive();", pair()), {"arrived at twice", "kernel.cuh:2"});
  expect_in(run("ptx::cluster_wait();", pair()), {"without an arrival"});
}
TEST_F(ClusterTest, ReleaseOrdersGlobalMemoryAcrossCtasAndRelaxedDoesNot) {
  const auto body = [](const char* arrive) {
    return fmt::format(
        "if (ptx::ctaid_x() == 0 && t == 0) ptx::st_global_f32(p.data, 1.0f);\n{}(); ptx::cluster_wait();\n"
        "if (ptx::ctaid_x() == 1 && t == 0) ptx::st_global_f32(p.data, 2.0f);",
        arrive);
  };
  EXPECT_EQ(run(body("ptx::cluster_arrive"), pair()), "");
  expect_in(run(body("ptx::cluster_arrive_relaxed"), pair()), {"race", "of CTA 0"});
}
TEST_F(ClusterTest, ProgrammaticLaunchWaitsBeforeGlobalMemory) {
  LaunchSpec spec = pair();
  spec.cluster.x = 1;
  spec.programmatic = true;
  EXPECT_EQ(run("if (t == 0) ptx::griddepcontrol_wait();\nptx::griddepcontrol_launch_dependents(); ptx::bar_sync();\n"
                "ptx::st_global_f32(p.data + ptx::ctaid_x() * 32 + t, 1.0f);",
                spec),
            "");
  expect_in(
      run("if (t == 0) ptx::griddepcontrol_wait();\nptx::st_global_f32(p.data + ptx::ctaid_x() * 32 + t, 1.0f);", spec),
      {"before griddepcontrol.wait", "kernel.cuh:2"});
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
