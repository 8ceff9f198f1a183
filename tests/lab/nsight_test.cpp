// Nsight Compute's CSV, written by hand after its documentation: no GPU has run here. And a script in its place, for
// all that a profiler may answer.

#include "lab/diagnose/nsight.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

// Written by hand.
constexpr const char* kCsv = R"csv(==PROF== Connected to process 4711 (/opt/flashcore)
==PROF== Profiling "forward" - 0: 0%....50%....100% - 8 passes
what the program prints, with a , comma
"ID","Process ID","Kernel Name","Grid Size","gpu__time_duration.sum","lts__t_sector_hit_rate.pct","sm__no_such.avg"
"","","","","us","%",""
"0","4711","list_blocks","(4, 1, 1)","3.5","10","n/a"
"1","4711","forward, ""cold""","(64, 1, 1)","120.25","70","n/a"
"2","4711","forward","(64, 1, 1)","1,012.5","80","n/a"
"3","4711","forward","(64, 1, 1)","1,000.5","91.5","n/a"
==PROF== Disconnected from process 4711
)csv";

TEST(NsightCsv, IsReadAmongOtherLines) {
  const std::vector<ProfiledKernel> kernels = parse_ncu_csv(kCsv);
  ASSERT_EQ(kernels.size(), 4u);
  EXPECT_EQ(kernels[1].name, "forward, \"cold\"");
  const ProfiledKernel& kernel = main_kernel(kernels);
  EXPECT_EQ(kernel.name, "forward");
  EXPECT_EQ(value_of(kernel.counters, Metric::kL2Hits), std::optional(91.5));  // the last, not the longest
  EXPECT_EQ(value_of(kernel.counters, Metric::kDuration), std::optional(1000500.0));
  EXPECT_FALSE(kernel.counters.contains("sm__no_such.avg"));
  EXPECT_FALSE(kernel.counters.contains("Process ID"));
}

TEST(NsightCsv, ErrorsAroundItAreToldApart) {
  EXPECT_TRUE(has_ncu_table(kCsv));
  EXPECT_FALSE(has_ncu_table("a line with \"ID\", in it\n"));
  EXPECT_TRUE(ncu_errors(kCsv).empty());
  const std::string text = "==PROF== a\n==ERROR== one\r\nthe program's words\n==ERROR== two\x1b[1m";
  EXPECT_EQ(ncu_errors(text), (std::vector<std::string>{"==ERROR== one", "==ERROR== two\\x1b[1m"}));
  EXPECT_EQ(why_counters_are_refused(text), "");
  EXPECT_NE(why_counters_are_refused("==ERROR== ERR_NVGPUCTRPERM - no\n").find("NVreg_RestrictProfilingToAdminUsers=0"),
            std::string::npos);
}

TEST(NsightCsv, KernelsAreKnownByTheirName) {
  constexpr const char* kName = "flashcore::sm80_fwd::forward<flashcore::Traits{1, 2}, flashcore::sm80_fwd::Config{}>";
  EXPECT_TRUE(is_kernel_of("forward", kName));
  EXPECT_TRUE(is_kernel_of("void flashcore::sm80_fwd::forward<flashcore::Traits{1, 2}>(int, Args<1>)", kName));
  EXPECT_TRUE(is_kernel_of("sm80_fwd::forward", kName));
  for (const char* other : {"", "ward", "forward_fp8", "void flashcore::sm90_fwd::forward<1>(int)",
                            "void at::native::elementwise_kernel<forward>(int)"})
    EXPECT_FALSE(is_kernel_of(other, kName)) << other;
}

void expect_refused(const std::string& text, const std::string& words) {
  try {
    parse_ncu_csv(text);
    ADD_FAILURE() << "taken: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

TEST(NsightCsv, WhatIsNoneOrIsCutShortIsRefused) {
  const std::string whole = kCsv;
  expect_refused("", "no line begins with \"ID\"");
  expect_refused("==ERROR== nothing\n", "no line begins with \"ID\"");
  const std::string head = whole.substr(0, whole.find("\"0\","));
  expect_refused(head, "has no row");
  expect_refused(head + "\"0\",\"4711\"\n", "line 6: 2 fields");
  expect_refused(head + "\"0\",\"4711\",\"forw", "line 6: a quote is left open");
  expect_refused("\"ID\",\"Process ID\"\n", "no column \"Kernel Name\"");
}

TEST(NsightCsv, ACommaThatIsAPointIsRefused) {
  const std::string head = "\"ID\",\"Kernel Name\",\"sm__a.avg\"\n\"\",\"\",\"\"\n\"0\",\"forward\",";
  const auto value = [&](const std::string& text) {
    return parse_ncu_csv(head + "\"" + text + "\"\n").front().counters.at("sm__a.avg");
  };
  EXPECT_EQ(value("1,234.5"), 1234.5);
  EXPECT_EQ(value("12,345,678"), 12345678);
  EXPECT_EQ(value("1234.5"), 1234.5);
  for (const char* text : {"1.234,5", "12,5", "1,2345", ",5", "1,23,456"})
    expect_refused(head + "\"" + text + "\"\n", "line 3: '" + std::string(text) + "' has no decimal point");
}

TEST(NsightCsv, EveryCutOfAFileIsReadOrRefused) {
  const std::string whole = kCsv;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    try {
      EXPECT_FALSE(parse_ncu_csv(whole.substr(0, length)).empty());
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    }
  }
}

TEST(Metrics, NamesAreOneMetricEachAndStallsAreSorted) {
  for (const std::string& name : profile_metrics()) EXPECT_NO_THROW(check_metric_name(name)) << name;
  EXPECT_EQ(metric_of("lts__t_sector_hit_rate.pct"), std::optional(Metric::kL2Hits));
  EXPECT_EQ(metric_of("nobody__knows.sum"), std::nullopt);
  // It is documented as a sample of PCs (smsp__pcsamp_...) only, and a metric that is unknown costs a run.
  for (const StallReason& reason : stall_reasons()) EXPECT_NE(reason.name, "warpgroup_arrive");
  const auto stalls = stalls_of({{stall_metric("barrier"), 10},
                                 {stall_metric("gmma"), 30},
                                 {stall_metric("selected"), 90},
                                 {stall_metric("not_selected"), 80}});
  ASSERT_EQ(stalls.size(), 2u);
  EXPECT_EQ(stalls.front().first.name, "gmma");
  for (const char* bad : {"", "busy", "sm_busy", "sm__busy;rm", "sm__a b", "--metrics"})
    EXPECT_THROW(check_metric_name(bad), Error) << bad;
}

TEST(Metrics, WhatNoGpuCanCountIsTakenOut) {
  CounterValues counters = {{"lts__t_sector_hit_rate.pct", 180},
                            {"sm__cycles_active.avg.pct_of_peak_sustained_elapsed", 100.4},
                            {"smsp__thread_inst_executed_per_inst_executed.ratio", 33},
                            {"launch__registers_per_thread", 255},
                            {"lts__t_sectors.sum", -1},
                            {"smsp__inst_executed.sum", std::nan("")},
                            {"gpu__time_duration.sum", 0},
                            {"nobody__knows.sum", 1e18}};
  const std::vector<std::string> dropped = drop_impossible(counters);
  EXPECT_EQ(dropped.size(), 5u);
  EXPECT_EQ(counters.size(), 3u);
  EXPECT_NE(std::find(dropped.begin(), dropped.end(), "lts__t_sector_hit_rate.pct is 180, and at most 110 is possible"),
            dropped.end());
  EXPECT_NE(std::find(dropped.begin(), dropped.end(), "lts__t_sectors.sum is -1, which is impossible"), dropped.end());
}

TEST(Metrics, TheDocumentedCommandAsksForAll) {
  const std::string page = read_file(std::string(FLASHCORE_SOURCE_DIR) + "/docs/profile.md", 1 << 20);
  std::string all;
  for (const std::string& name : profile_metrics()) all += (all.empty() ? "" : ",\\\n") + name;
  EXPECT_NE(page.find("--csv --page raw --print-units base"), std::string::npos);
  EXPECT_NE(page.find("--metrics \\\n" + all + " \\\n"), std::string::npos)
      << "docs/profile.md prints another list than profile_metrics()";
}

class FakeNcu : public testing::Test {
 protected:
  // A shell script in the place of ncu; it finds the metrics in "$metrics" and the words before in "$@".
  CollectedCounters collect(const std::string& body, std::vector<std::string> metrics = {"sm__a.avg", "sm__b.avg"},
                            double seconds = 30, const std::function<bool()>& stop = {}) {
    const std::string path = (folder_.path() / "ncu").string();
    std::ofstream(path) << "#!/bin/sh\nmetrics=; last=\nfor word in \"$@\"; do [ \"$last\" = --metrics ] && "
                           "metrics=$word; last=$word; done\necho $metrics >> "
                        << (folder_.path() / "asked").string() << "\n"
                        << body << "\n";
    chmod(path.c_str(), 0755);
    return collect_counters({path, std::move(metrics), seconds, stop}, {"/bin/true", "a b"});
  }
  std::string asked() const {
    std::ifstream file(folder_.path() / "asked");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string table(const std::string& names, const std::string& values) {
    return table_of_one(names, values) + "; echo '\"1\",\"forward\"," + values + "'";
  }
  static std::string table_of_one(const std::string& names, const std::string& values) {
    return "echo '\"ID\",\"Kernel Name\"," + names + "'; echo '\"\",\"\",\"%\"'; echo '\"0\",\"forward\"," + values +
           "'";
  }

  test::TemporaryFolder folder_;
};

TEST_F(FakeNcu, GivesCountersOfTheLaunchedProgram) {
  const CollectedCounters got = collect("for word in \"$@\"; do last=$word; done\n[ \"$last\" = 'a b' ] || exit 9\n" +
                                        table("\"sm__a.avg\"", "\"12.5\""));
  EXPECT_EQ(got.why_none, "");
  EXPECT_EQ(got.counters, (CounterValues{{"sm__a.avg", 12.5}}));
  EXPECT_EQ(got.kernel, "forward");
}

TEST_F(FakeNcu, IsEndedWhereTheProfileIsStopped) {
  const CollectedCounters got = collect("exec sleep 1000", {"sm__a.avg"}, 600, [] { return true; });
  EXPECT_EQ(got.why_none, "Nsight Compute was interrupted and ended");
}

TEST_F(FakeNcu, LeavesOutAMetricThatItDoesNotKnowAndAsksAgain) {
  const CollectedCounters got = collect(
      "case $metrics in *sm__b.avg*) echo '==ERROR== Failed to find metric regex:^sm__b\\.avg(\\.|$)'; exit 1;; "
      "esac\n" +
      table("\"sm__a.avg\"", "\"1\""));
  EXPECT_EQ(got.why_none, "");
  EXPECT_EQ(got.unknown, std::vector<std::string>{"sm__b.avg"});
  EXPECT_EQ(asked(), "sm__a.avg,sm__b.avg\nsm__a.avg\n");
}

TEST_F(FakeNcu, MayNameOneUnknownMetricPerRun) {
  std::vector<std::string> metrics = {"sm__a.avg"};
  for (int i = 0; i < 7; ++i) metrics.push_back(fmt::format("sm__no{}.avg", i));
  const CollectedCounters got = collect(
      "case $metrics in *sm__no*) one=${metrics#*,}; echo \"==ERROR== Failed to find metric ${one%%,*}\"; exit 1;; "
      "esac\n" +
          table("\"sm__a.avg\"", "\"1\""),
      metrics);
  EXPECT_EQ(got.why_none, "");
  EXPECT_EQ(got.counters, (CounterValues{{"sm__a.avg", 1}}));
  EXPECT_EQ(got.unknown.size(), 7u);
}

TEST_F(FakeNcu, IsAskedNoLongerThanTheTimeLimitInAll) {
  std::vector<std::string> metrics;
  for (int i = 0; i < 50; ++i) metrics.push_back(fmt::format("sm__no{}.avg", i));
  const CollectedCounters got =
      collect("sleep 0.1; echo \"==ERROR== Failed to find metric ${metrics%%,*}\"; exit 1", metrics, 0.6);
  EXPECT_TRUE(got.counters.empty());
  EXPECT_LT(got.unknown.size(), 10u);
  EXPECT_TRUE(got.why_none.find("of 50 metrics") != std::string::npos ||
              got.why_none.find("was still running") != std::string::npos)
      << got.why_none;
}

TEST_F(FakeNcu, KnowsNone) {
  const CollectedCounters got =
      collect("echo \"==ERROR== Failed to find metric ${metrics%%,*}\"; exit 1", {"sm__a.avg", "sm__b.avg"});
  EXPECT_TRUE(got.counters.empty());
  EXPECT_EQ(got.unknown.size(), 2u);
  EXPECT_EQ(got.why_none, "Nsight Compute knows none of the metrics");
}

TEST_F(FakeNcu, SaysWhyThereAreNoCounters) {
  const auto why = [&](const std::string& body, double seconds = 30) {
    const CollectedCounters got = collect(body, {"sm__a.avg"}, seconds);
    EXPECT_TRUE(got.counters.empty());
    return got.why_none;
  };
  EXPECT_NE(why("echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1")
                .find("does not let this user read counters"),
            std::string::npos);
  EXPECT_NE(why("echo '==WARNING== No kernels were profiled.'; exit 0").find("could not attach"), std::string::npos);
  EXPECT_EQ(why("echo '==ERROR== Profiler is already in use'; exit 1"),
            "Nsight Compute reports: ==ERROR== Profiler is already in use");
  EXPECT_EQ(why("exit 3"), "Nsight Compute ended with code 3 and printed no table");
  EXPECT_NE(why(table("\"sm__a.avg\",\"sm__b.avg\"", "\"1\"")).find("cannot be read: line 2"), std::string::npos);
  EXPECT_NE(why(table("\"sm__a.avg\"", "\"n/a\"")).find("n/a"), std::string::npos);
  EXPECT_EQ(why(table("\"sm__a.avg\"", "\"1\"") + "; exit 3"),
            "Nsight Compute ended with code 3 and printed a table all the same; the program that it ran has failed");
  EXPECT_EQ(why(table_of_one("\"sm__a.avg\"", "\"1\"")),
            "Nsight Compute saw 1 launch of forward, where the first of 2 warms the caches");
  EXPECT_NE(why("sleep 30", 0.3).find("was still running"), std::string::npos);
}

TEST_F(FakeNcu, IsFoundByPathOnly) {
  EXPECT_EQ(find_ncu((folder_.path() / "nothing").string()), "");
  collect("exit 0");
  EXPECT_EQ(find_ncu((folder_.path() / "ncu").string()), (folder_.path() / "ncu").string());
  EXPECT_EQ(find_ncu("no-such-program-of-nvidia"), "");
}

}  // namespace
}  // namespace flashcore
