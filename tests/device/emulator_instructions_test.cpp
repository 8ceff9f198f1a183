// Copies, clusters, atomics and 8-bit floats on the emulated GPU: what is right, and each fault's report.

#include <gtest/gtest.h>

#include "device/emulator_fixture.h"

namespace flashcore {
namespace {

// Line 1 makes the barrier of `arrivals` arrivals, everybody past its fence; line 2 is the first of `body`.
std::string with_barrier(const std::string& body, int arrivals = 1) {
  return fmt::format(
      "if (t == 0) {{ ptx::mbarrier_init(s, {}); ptx::fence_mbarrier_init(); }} ptx::cluster_arrive(); "
      "ptx::cluster_wait(); const int peer = 1 - ptx::cluster_ctarank(); (void)peer;\n{}",
      arrivals, body);
}
constexpr const char* kEnd = "\nptx::cluster_arrive(); ptx::cluster_wait();";

using BulkTest = EmulatorTest;

TEST_F(BulkTest, LoadsAndStores) {
  EXPECT_EQ(run("if (t < 32) ptx::st_global_f32(p.data + t, t);"), "");
  const std::string body =
      "if (t == 0) { ptx::st_global_v4(p.data, {1, 2, 3, 4}); ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init(); "
      "ptx::mbarrier_arrive_expect_tx(s, 32); ptx::bulk_load(s + 64, p.data, 32, s); }\n"
      "ptx::bar_sync(); ptx::mbarrier_wait(s, 0);\n"
      "if (t < 8) ptx::st_shared_u32(s + 64 + 4 * t, 10 + ptx::ld_shared_u32(s + 64 + 4 * t));\n"
      "ptx::fence_proxy_async(); ptx::bar_sync();\n"
      "if (t == 0) { ptx::bulk_store(p.data + 16, s + 64, 32); ptx::bulk_commit(); ptx::bulk_wait<0>(); }";
  EXPECT_EQ(run(body), "");
  std::uint32_t word;
  std::memcpy(&word, static_cast<const char*>(buffer_->data()) + 64 + 12, 4);
  EXPECT_EQ(word, 14u);
  std::string no_fence = body, no_wait = body;
  no_fence.replace(no_fence.find("ptx::fence_proxy_async(); "), 26, "");
  expect_in(run(no_fence), {"missing proxy fence", "starts a bulk store of 32 bytes", "kernel.cuh:5", "kernel.cuh:3"});
  no_wait.replace(no_wait.find("ptx::bulk_wait<0>();"), 20, "");
  expect_in(run(no_wait), {"unfinished store"});
}
TEST_F(BulkTest, RefusesWhatTheHardwareWouldNotTake) {
  const auto load = [&](const char* arguments) {
    return run(with_barrier(fmt::format("if (t == 0) ptx::bulk_load({}, s);", arguments)));
  };
  expect_in(load("s + 64, p.data, 24"), {"cp.async.bulk of 24 bytes", "multiples of 16", "kernel.cuh:2"});
  expect_in(load("s + 72, p.data, 16"), {"misaligned shared memory"});
  expect_in(load("s + 64, p.data + 1, 16"), {"misaligned global memory", "no multiple of 16"});
  expect_in(load("s + 64, p.data + 252, 32"), {"global memory out of bounds"});
  expect_in(load("s + 1008, p.data, 32"), {"shared memory out of bounds"});
}
TEST_F(BulkTest, ReadBeforeItIsThere) {
  expect(with_barrier("if (t == 0) { ptx::mbarrier_arrive_expect_tx(s, 16); ptx::bulk_load(s + 64, p.data, 16, s);\n"
                      "ptx::ld_shared_u32(s + 64); }"),
         {"race", "kernel.cuh:3", "kernel.cuh:2"}, 1, 32);
}

// A bulk store has read shared memory once bulk_wait_read returns, and is in global memory once bulk_wait does.
std::string stored_in_bulk(const char* wait, const char* after) {
  return fmt::format(
      "if (t == 0) {{ for (int i = 0; i < 8; ++i) ptx::st_shared_u32(s + 64 + 4 * i, i); ptx::fence_proxy_async();\n"
      "ptx::bulk_store(p.data + 16, s + 64, 32); ptx::bulk_commit(); ptx::{}<0>(); }}\n{}",
      wait, after);
}
TEST_F(BulkTest, ReadBackBehindBulkWaitOnly) {
  for (const char* after : {"if (t == 0) ptx::ld_global_f32(p.data + 17);",
                            "ptx::bar_sync(); if (t == 40) ptx::ld_global_f32(p.data + 17);",
                            "ptx::bar_sync(); if (t == 40) ptx::st_global_f32(p.data + 17, 1.0f);"}) {
    EXPECT_EQ(run(stored_in_bulk("bulk_wait", after)), "") << after;
    expect_in(run(stored_in_bulk("bulk_wait_read", after)),
              {"race", "a copy of thread 0", "kernel.cuh:2", "kernel.cuh:3", "bulk_wait"});
  }
  EXPECT_EQ(run(stored_in_bulk("bulk_wait_read", "ptx::bar_sync(); if (t == 40) ptx::ld_global_f32(p.data + 24);")), "")
      << "what was not stored may be read";
}
TEST_F(BulkTest, ReleasedBehindBulkWaitOnly) {
  const auto body = [](const char* wait) {
    return fmt::format(
        "unsigned* words = reinterpret_cast<unsigned*>(p.data);\n"
        "if (t == 0) {{ for (int i = 0; i < 8; ++i) ptx::st_shared_u32(s + 64 + 4 * i, i); ptx::fence_proxy_async();\n"
        "ptx::bulk_store(words + 64 + 32 * ptx::ctaid_x(), s + 64, 32); ptx::bulk_commit(); ptx::{}<0>();\n"
        "if (ptx::atomic_add_global_acq_rel(words, 1) % 2 == 1) ptx::st_global_f32(p.data + 8, "
        "ptx::ld_global_f32(p.data + 64) + ptx::ld_global_f32(p.data + 96)); }}",
        wait);
  };
  EXPECT_EQ(run(body("bulk_wait"), 2, 32), "");
  expect_in(run(body("bulk_wait_read"), 2, 32), {"race", "reads global memory", "a copy of thread 0", "bulk_wait"});
}

using MulticastTest = EmulatorTest;

std::string multicast(const char* mask, int bytes, const char* wait = "ptx::mbarrier_wait_cluster(s, 0);") {
  return with_barrier(
      fmt::format("if (t == 0) ptx::mbarrier_arrive_expect_tx(s, {});\n"
                  "if (t == 0 && peer == 1) ptx::tma_load_4d_multicast(s + 128, p.map, s, 8, 0, 0, 0, {});\n{}\n"
                  "ptx::cluster_arrive(); ptx::cluster_wait(); ptx::st_global_u32(reinterpret_cast<unsigned*>(p.data) "
                  "+ 64 * ptx::ctaid_x() + t, ptx::ld_shared_u32(s + 128 + "
                  "4 * t));{}",
                  bytes, mask, wait, kEnd));
}
TEST_F(MulticastTest, ReachesEveryCtaOfTheMask) {
  EXPECT_EQ(run(multicast("3", 128), pair(), 4), "");
  expect_in(run(multicast("1", 128), pair()), {"deadlock", "of CTA rank 1", "128 bytes"});
  expect_in(run(multicast("3", 64), pair()), {"wrong expect_tx|deadlock"});
  expect_in(run(multicast("7", 128), pair()), {"mask 0x7", "ranks 0 to 1", "kernel.cuh:3"});
  expect_in(run(multicast("3", 128, ""), pair()), {"kernel.cuh:5", "race|uninitialised"});
}
TEST_F(MulticastTest, PeerMustHaveStartedAndNotEnd) {
  expect_in(run("if (t == 0 && ptx::cluster_ctarank() == 0) { ptx::mbarrier_init(s, 1); ptx::fence_mbarrier_init();\n"
                "ptx::tma_load_4d_multicast(s + 128, p.map, s, 0, 0, 0, 0, 2); }",
                pair()),
            {"peer may not have started", "multicast", "kernel.cuh:2"});
  expect_in(run(with_barrier("if (peer == 0) return;\nif (t == 0) { ptx::mbarrier_arrive_expect_tx(s, 128); "
                             "ptx::tma_load_4d_multicast(s + 128, p.map, s, 0, 0, 0, 0, 2); }\n"),
                pair(), 1),
            {"CTA ends too early|peer has ended"});
}

using DistributedTest = EmulatorTest;

// Every thread writes to the peer and arrives there; line 4 waits.
std::string exchange(const char* arrive, const char* wait, const char* end = kEnd) {
  return with_barrier(fmt::format("ptx::st_cluster_u32(ptx::mapa(s + 64 + 4 * t, peer), 100 * peer + t);\n{}\n{}\n"
                                  "ptx::st_global_u32(reinterpret_cast<unsigned*>(p.data) + 64 * ptx::ctaid_x() + t, "
                                  "ptx::ld_shared_u32(s + 64 + 4 * (31 - t)));{}",
                                  arrive, wait, end),
                      32);
}
constexpr const char* kArrive = "ptx::mbarrier_arrive_cluster(ptx::mapa(s, peer));";

TEST_F(DistributedTest, StoresAreOrderedByARemoteArrival) {
  EXPECT_EQ(run(exchange(kArrive, "ptx::mbarrier_wait_cluster(s, 0);"), pair(), 4), "");
  std::uint32_t word;
  std::memcpy(&word, static_cast<const char*>(buffer_->data()) + 256, 4);
  EXPECT_EQ(word, 131u);
  EXPECT_EQ(counters_.at("cluster_bytes"), 2 * 32 * 4);
  expect_in(run(exchange(kArrive, "ptx::mbarrier_wait(s, 0);"), pair()), {"wrong scope", "kernel.cuh:4"});
  expect_in(run(exchange(kArrive, ""), pair()), {"race|uninitialised", "kernel.cuh:5"});
  // That the peer has read can be told without a release.
  const char* relaxed = "ptx::mbarrier_arrive_cluster_relaxed(ptx::mapa(s, peer));";
  EXPECT_EQ(run(exchange(kArrive, "ptx::mbarrier_wait_cluster(s, 0);",
                         fmt::format("{0}\n{1}\nptx::mbarrier_wait(s, 1);{0}", kEnd, relaxed).c_str()),
                pair()),
            "");
  expect_in(run(exchange("", "ptx::mbarrier_wait_cluster(s, 0);"), pair()), {"deadlock", "lacks 32 of 32 arrivals"});
}
TEST_F(DistributedTest, LoadsNeedOrderAndALivingPeer) {
  const auto body = [](const char* between, const char* end) {
    return fmt::format(
        "ptx::st_shared_u32(s + 4 * t, ptx::cluster_ctarank());\n{}\n"
        "ptx::st_global_u32(reinterpret_cast<unsigned*>(p.data) + 64 * ptx::ctaid_x() + t, "
        "ptx::ld_cluster_u32(ptx::mapa(s + 4 * t, 1 - ptx::cluster_ctarank())));{}",
        between, end);
  };
  EXPECT_EQ(run(body("ptx::cluster_arrive(); ptx::cluster_wait();", kEnd), pair()), "");
  expect_in(run(body("ptx::cluster_arrive_relaxed(); ptx::cluster_wait();", kEnd), pair()), {"race", "kernel.cuh:3"});
  expect_in(run(body("", kEnd), pair()), {"peer may not have started"});
  expect_in(run(body("ptx::cluster_arrive(); ptx::cluster_wait();", ""), pair()),
            {"CTA ends too early|peer has ended", "kernel.cuh:3"});
}

using AtomicTest = EmulatorTest;

// Each CTA stores, and the last to arrive reads what both stored.
TEST_F(AtomicTest, OneThatReleasesAndAcquiresOrdersCtas) {
  const auto body = [](const char* atomic, const char* before, const char* after) {
    return fmt::format(
        "unsigned* words = reinterpret_cast<unsigned*>(p.data);\n"
        "ptx::st_global_u32(words + 64 + 32 * ptx::ctaid_x() + t, 7);\n{}\n"
        "if (t == 0) ptx::st_shared_u32(s, ptx::{}(words, 1) == 1);\n{}\n"
        "if (ptx::ld_shared_u32(s)) ptx::st_global_f32(p.data + 8, ptx::ld_global_f32(p.data + 64 + 31 - t) + "
        "ptx::ld_global_f32(p.data + 64 + 63 - t));",
        before, atomic, after);
  };
  const char* barrier = "ptx::bar_sync();";
  const auto last = [&](const std::string& text) {
    return text.substr(0, text.rfind("if (ptx::ld")) + "if (t == 0 && ptx::ld_shared_u32(s)) " +
           text.substr(text.rfind("ptx::st_global_f32(p.data + 8"));
  };
  EXPECT_EQ(run(last(body("atomic_add_global_acq_rel", barrier, barrier)), 2, 32), "");
  for (const auto& broken :
       {body("atomic_add_global", barrier, barrier), body("atomic_add_global_acq_rel", "", barrier)}) {
    expect_in(run(last(broken), 2, 32), {"race"});
  }
}

TEST_F(AtomicTest, AddInAnyOrderAndRaceWithPlainAccesses) {
  const std::string body =
      "if (t == 0) ptx::st_shared_u32(s, 0);\nptx::bar_sync();\nptx::atomic_add_shared_u32(s, 2);\n"
      "ptx::atomic_add_global_f32(p.data, 0.5f);\nptx::bar_sync();\n"
      "if (t == 0) ptx::st_global_f32(p.data + 1, ptx::ld_shared_u32(s));";
  EXPECT_EQ(run(body, 1, 64, 1), "");
  EXPECT_EQ(at(0), 32.0f);
  EXPECT_EQ(at(1), 128.0f);
  expect(
      "if (t == 0) ptx::st_shared_u32(s, 0);\nptx::bar_sync();\nif (t < 32) ptx::atomic_add_shared_u32(s, 2);\n"
      "if (t == 40) ptx::ld_shared_u32(s);",
      {"race", "kernel.cuh:3", "kernel.cuh:4"});
  expect("ptx::atomic_add_shared_f32(s, 2);", {"uninitialised"});
}

using VoteTest = EmulatorTest;

TEST_F(VoteTest, OneLaneIsElectedAndNotAlwaysTheFirst) {
  // The sum of elected lanes over a few launches: each launch has one in each warp.
  const std::string body =
      "if (ptx::elect()) { ptx::atomic_add_global_f32(p.data, 1); ptx::atomic_add_global_f32(p.data + 1, t % 32); }";
  EXPECT_EQ(run(body, 1, 64, 8), "");
  EXPECT_EQ(at(0), 16.0f);
  EXPECT_GT(at(1), 0.0f);
}
TEST_F(VoteTest, ShufflesStopAtTheWarpsEnds) {
  EXPECT_EQ(run("ptx::st_global_f32(p.data + t, ptx::shfl_up(t, 3)); ptx::st_global_f32(p.data + 64 + t, "
                "ptx::shfl_down(t, 3));"),
            "");
  EXPECT_EQ(at(2), 2.0f);
  EXPECT_EQ(at(35), 32.0f);
  EXPECT_EQ(at(64 + 28), 31.0f);
  EXPECT_EQ(at(64 + 29), 29.0f);
}

TEST_F(EmulatorTest, TransposedStoreIsReadBackByATransposedLoad) {
  EXPECT_EQ(run("unsigned r[2]; ptx::stmatrix_x2_trans(s + 16 * (t % 16), 2 * t | (2 * t + 1) << 16, 7 * t);\n"
                "ptx::bar_warp_sync(); ptx::ldmatrix_x2_trans(r, s + 16 * (t % 16));\n"
                "ptx::st_global_f32(p.data + t, r[0] == (2u * t | (2u * t + 1) << 16) && r[1] == 7u * t);\n"
                "ptx::st_global_f32(p.data + 32 + t, ptx::ld_shared_u32(s + 16 + 4 * (t % 4)) & 0xffff);",
                1, 32),
            "");
  EXPECT_EQ(at(0), 1.0f);
  EXPECT_EQ(at(31), 1.0f);
  EXPECT_EQ(at(33), 17.0f);  // column 1, row 2 of the first tile: lane 8, its upper half
}

// One row of a and one column of b: a[0][k] and b[k][0] are k's bytes.
TEST_F(EmulatorTest, EightBitFloatsAreDecoded) {
  const auto dot = [&](const char* type, unsigned a, unsigned b) {
    EXPECT_EQ(run(fmt::format("float d[4] = {{0, 0, 0, 0}}; const unsigned a[4] = {{t == 0 ? {}u : 0, 0, 0, 0}};\n"
                              "ptx::mma_m16n8k32_{}(d, a, t == 0 ? {}u : 0, 0); if (t == 0) ptx::st_global_f32(p.data, "
                              "d[0]);",
                              a, type, b),
                  1, 32),
              "");
    return at(0);
  };
  EXPECT_EQ(dot("e4m3", 0x38, 0x7e), 448.0f);
  EXPECT_EQ(dot("e4m3", 0x3830, 0x40b8), 2.0f - 0.5f);
  EXPECT_EQ(dot("e4m3", 0x01, 0x38), 0x1p-9f);
  EXPECT_EQ(dot("e5m2", 0x3c, 0x7b), 57344.0f);
  EXPECT_EQ(dot("e5m2", 0x3c, 0x01), 0x1p-16f);
  EXPECT_EQ(dot("e4m3_e5m2", 0x38, 0x7b), 57344.0f);
  EXPECT_EQ(dot("e4m3_e5m2", 0x7e, 0x3c), 448.0f);
  EXPECT_EQ(dot("e4m3_e5m2", 0x01, 0x01), 0x1p-25f);
  EXPECT_TRUE(std::isnan(dot("e4m3", 0x38, 0xff)));
}

}  // namespace
}  // namespace flashcore
