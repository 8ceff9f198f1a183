#include "lab/diagnose/expectation.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/suite.h"
#include "kernels/family.h"
#include "lab/tune/user_table.h"

namespace flashcore {
namespace {

DeviceInfo gpu(const char* key) {
  DeviceInfo device;
  device.limits = limits_of_model("sm_90", key);
  device.key = device.id = key;
  return device;
}
DeviceInfo h200() { return gpu("h200"); }

Expectation expect(const char* id, const DeviceInfo& device, const std::vector<Trial>& stored = {}) {
  return expect_time(PlacedProblem::parse(id), "sm90_fwd:x=1", device, stored, std::nullopt);
}

// What dispatch chooses, which is what the results are of.
std::string chosen(const char* id, const DeviceInfo& device) {
  return dispatch_as_built(PlacedProblem::parse(id), device).candidate.print();
}

TEST(Expectation, AMeasuredProblemTakesWhatWasMeasuredOfTheCandidate) {
  const char* id = "b16_h16_s2048_d64_fp16";
  const Expectation e = expect_time(PlacedProblem::parse(id), chosen(id, h200()), h200(), {}, std::nullopt);
  ASSERT_TRUE(e.time_us && e.floor_us);
  EXPECT_GT(*e.time_us, *e.floor_us);
  EXPECT_EQ(e.basis.find("measured on h200"), 0u) << e.basis;
  EXPECT_EQ(expect(id, h200()).basis.find("as far from its floor as"), 0u) << "another candidate was not measured";
}

TEST(Expectation, ANeighbourIsScaledByTheFloors) {
  const Expectation measured = expect("b16_h16_s2048_d64_fp16", h200());
  const Expectation doubled = expect("b32_h16_s2048_d64_fp16", h200());
  ASSERT_TRUE(doubled.time_us);
  EXPECT_NEAR(*doubled.time_us / *measured.time_us, *doubled.floor_us / *measured.floor_us, 1e-9);
  EXPECT_NE(doubled.basis.find("as far from its floor as b16_h16_s2048_d64_fp16"), std::string::npos) << doubled.basis;
}

Expectation modelled(const char* id, const DeviceInfo& device, double us) {
  const ModelledTime time{us, fitted_device("sm90_fwd", device.limits)};
  return expect_time(PlacedProblem::parse(id), "sm90_fwd:x=1", device, {}, std::nullopt, time);
}

TEST(Expectation, AModelComesAfterMeasurementsAndBeforeNeighbours) {
  const Expectation e = modelled("b32_h16_s2048_d64_fp16", h200(), 1234.0);
  EXPECT_EQ(e.time_us, 1234.0);
  EXPECT_EQ(e.basis, "by its model, fitted on h200");
  EXPECT_EQ(e.carried_over_from, std::nullopt);
  const char* measured = "b16_h16_s2048_d64_fp16";
  const ModelledTime time{1234.0, fitted_device("sm90_fwd", h200().limits)};
  EXPECT_NE(
      expect_time(PlacedProblem::parse(measured), chosen(measured, h200()), h200(), {}, std::nullopt, time).time_us,
      1234.0);
}

TEST(Expectation, ACarriedOverModelSaysFromWhere) {
  const Expectation e = modelled("b32_h16_s2048_d64_fp16", gpu("h100"), 1234.0);
  EXPECT_EQ(e.time_us, 1234.0);
  EXPECT_EQ(e.carried_over_from, "h200");
  EXPECT_NE(e.basis.find("carried over from h200 to 132 SMs, 1980 MHz, 3352 GB/s"), std::string::npos) << e.basis;
  // Nothing was measured on it, but its SMs, clock and DRAM are known.
  const Expectation unmeasured = modelled("b32_h16_s2048_d64_fp16", gpu("h100pcie"), 1234.0);
  EXPECT_EQ(unmeasured.time_us, 1234.0);
  EXPECT_EQ(unmeasured.carried_over_from, "h200");
  EXPECT_FALSE(unmeasured.floor_us);
}

TEST(Expectation, IsNeverBelowTheFloor) {
  const Expectation e = modelled("b64_h32_hk8_sq1_sk4000_d128_bf16", gpu("h100"), 248.0);
  ASSERT_TRUE(e.floor_us);
  EXPECT_GT(*e.floor_us, 300);
  EXPECT_EQ(e.time_us, e.floor_us);
  EXPECT_EQ(e.basis.find("raised to the floor from 248.0 us, by its model, carried over from h200"), 0u) << e.basis;
  Trial trial;  // measured where clocks or ceilings were others
  trial.problem = PlacedProblem::parse("b16_h16_s2048_d64_fp16");
  trial.device = h200();
  trial.family = "sm90_fwd";
  trial.config = "x=1";
  trial.ended = Ended::kPassed;
  trial.timing.emplace().p50_us = 1;
  const Expectation own = expect("b16_h16_s2048_d64_fp16", h200(), {trial});
  EXPECT_EQ(own.time_us, own.floor_us);
  EXPECT_EQ(own.basis.find("raised to the floor from 1.0 us, your trial 0"), 0u) << own.basis;
}

// What the models themselves say on both, of every problem that ships.
TEST(Expectation, OfWhatShipsIsNeverBelowTheFloor) {
  int judged = 0;
  for (const char* key : {"h100", "h200"}) {
    const DeviceInfo device = gpu(key);
    for (const std::string& suite : shipped_suites()) {
      for (const NamedProblem& named : load_suite(suite).problems) {
        if (supporting_families(named.problem, device.limits).empty()) continue;
        const Candidate chosen = dispatch(named.problem, device).candidate;
        const auto time = modelled_time(chosen, named.problem, device.limits);
        const Expectation e = expect_time(named.problem, chosen.print(), device, {}, std::nullopt, time);
        if (!e.time_us || !e.floor_us) continue;  // of fp32 nothing was measured
        ++judged;
        EXPECT_GE(*e.time_us, *e.floor_us) << key << " " << named.problem.id();
      }
    }
  }
  EXPECT_GT(judged, 100);
}

TEST(Expectation, WhereNothingIsKnownItSaysSo) {
  DeviceInfo device = h200();
  device.key = "never_seen";
  const Expectation e = expect("b16_h16_s2048_d64_fp16", device);
  EXPECT_FALSE(e.time_us || e.floor_us);
  EXPECT_NE(e.basis.find("flashcore bench"), std::string::npos) << e.basis;
}

TEST(Expectation, TheUsersOwnTrialComesFirst) {
  Trial trial;
  trial.problem = PlacedProblem::parse("b16_h16_s2048_d64_fp16");
  trial.device = h200();
  trial.family = "sm90_fwd";
  trial.config = "x=1";
  trial.ended = Ended::kPassed;
  trial.timing.emplace().p50_us = 1234;
  EXPECT_EQ(expect("b16_h16_s2048_d64_fp16", h200(), {trial}).time_us, 1234);
  trial.ended = Ended::kIncorrect;
  EXPECT_NE(expect("b16_h16_s2048_d64_fp16", h200(), {trial}).time_us, 1234);
}

class UserTable : public ::testing::Test {
 protected:
  UserTable()
      : path_(std::filesystem::temp_directory_path() / ("flashcore-table-" + std::to_string(getpid()) + ".json")) {
    setenv("FLASHCORE_TUNED", path_.c_str(), 1);
  }
  ~UserTable() override {
    unsetenv("FLASHCORE_TUNED");
    std::filesystem::remove(path_);
    std::filesystem::remove(path_.string() + ".lock");
  }
  static Trial winner(const char* id, const char* config) {
    Trial trial;
    trial.problem = PlacedProblem::parse(id);
    trial.device = h200();
    trial.family = "sm90_fwd";
    trial.config = config;
    return trial;
  }
  const std::filesystem::path path_;
};

TEST_F(UserTable, KeepsWhatIsNotReplaced) {
  EXPECT_EQ(enter_user_table({}), 0u);
  EXPECT_FALSE(std::filesystem::exists(path_));
  enter_user_table({winner("b1_h1_s64_d64_fp16", "a=1"), winner("b1_h2_s64_d64_fp16", "a=2")});
  enter_user_table({winner("b1_h1_s64_d64_fp16", "a=3")});
  const auto table = nlohmann::json::parse(read_file(path_));
  EXPECT_EQ(table["h200"]["b1_h1_s64_d64_fp16"], "sm90_fwd:a=3");
  EXPECT_EQ(table["h200"]["b1_h2_s64_d64_fp16"], "sm90_fwd:a=2");
}

// Runs that end at once: each reads what those before it wrote.
TEST_F(UserTable, ProcessesThatEnterAtOnceLoseNothing) {
  constexpr int kProcesses = 4, kEach = 12;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int i = 1; i <= kEach; ++i)
      enter_user_table({winner(fmt::format("b{}_h{}_s64_d64_fp16", process + 1, i).c_str(), "a=1")});
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(nlohmann::json::parse(read_file(path_))["h200"].size(), std::size_t{kProcesses * kEach});
}

TEST_F(UserTable, AnEntryOfTheWrongKindIsReplacedAndTheOthersStay) {
  write_file_atomically(path_, R"({"h200": 7, "a100": {"not an id": "x"}})");
  enter_user_table({winner("b1_h1_s64_d64_fp16", "a=1")});
  const auto table = nlohmann::json::parse(read_file(path_));
  EXPECT_EQ(table["h200"]["b1_h1_s64_d64_fp16"], "sm90_fwd:a=1");
  EXPECT_EQ(table["a100"]["not an id"], "x");
}

TEST_F(UserTable, AFileThatIsNoTableIsLeftAlone) {
  write_file_atomically(path_, "my notes");
  EXPECT_THROW(enter_user_table({winner("b1_h1_s64_d64_fp16", "a=1")}), Error);
  EXPECT_EQ(read_file(path_), "my notes");
}

}  // namespace
}  // namespace flashcore
