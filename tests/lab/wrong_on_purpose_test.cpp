#include "lab/record/wrong_on_purpose.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "device/emulator/emulator_device.h"
#include "kernels/registry.h"
#include "lab/fake.h"
#include "lab/gates/evaluate.h"
#include "lab/gates/pair.h"
#include "lab/invert/variant.h"
#include "lab/record/leaderboard.h"
#include "lab/record/store.h"
#include "lab/sample_trial.h"
#include "lab/tune/user_table.h"
#include "temporary_folder.h"

namespace flashcore {
namespace {

using nlohmann::json;

TEST(WrongOnPurpose, TheNameOfTheFamilyIsTheMark) {
  EXPECT_TRUE(is_wrong_on_purpose("sm80_fwd+wrong_no_stores"));
  EXPECT_TRUE(is_wrong_on_purpose("sm80_fwd+wrong_no_stores:block_m=64"));
  EXPECT_TRUE(is_wrong_on_purpose("sm80_fwd+mine+wrong_no_stores:block_m=64"));
  EXPECT_FALSE(is_wrong_on_purpose("sm80_fwd+slow_divergence:block_m=64"));
  EXPECT_FALSE(is_wrong_on_purpose("sm80_fwd+mine+not_wrong_at_all:block_m=64+wrong_"));
  EXPECT_FALSE(is_wrong_on_purpose("sm80_fwd"));
  EXPECT_FALSE(is_wrong_on_purpose("wrong_fwd:+wrong_=1"));
  const DeviceLimits limits = open_emulator()->info().limits;
  const PlacedProblem problem = PlacedProblem::parse("b1_h2_s200_d64_fp16");
  for (const Variant& variant : variants()) {
    const PlantedVariant planted = plant(variant, parse_candidate("sm80_fwd", problem, limits), problem, limits);
    if (!planted.why_not.empty()) continue;
    EXPECT_EQ(is_wrong_on_purpose(planted.candidate), variant.wrong_on_purpose) << variant.name;
  }
}

Trial ranked_trial() {
  Trial trial = test::sample_trial();
  trial.phase = Phase::kHoldout;
  trial.gates = {{Gate::kCorrectness, GateStatus::kPassed, "", nullptr}};
  trial.timing.emplace();
  return trial;
}

Trial wrong_trial() {
  Trial trial = ranked_trial();
  trial.family = "sm80_fwd+wrong_no_stores";
  return trial;
}

TEST(WrongOnPurpose, NoStoreTakesItAndAForgedRowIsRefused) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "trials.db";
  Store store(file);
  EXPECT_THROW(store.append(wrong_trial()), Error);
  EXPECT_TRUE(store.query({}).empty());
  const Trial honest = test::sample_trial();
  store.append(honest);
  // As somebody would who writes into the file.
  SQLite::Database(file, SQLite::OPEN_READWRITE)
      .exec(fmt::format("UPDATE trials SET json = replace(json, '\"{}\"', '\"sm80_fwd+wrong_no_stores\"')",
                        honest.family));
  EXPECT_THROW(store.query({}), Error);
  std::vector<std::string> damaged;
  EXPECT_TRUE(store.query({}, &damaged).empty());
  ASSERT_EQ(damaged.size(), 1U);
  EXPECT_NE(damaged[0].find("wrong on purpose"), std::string::npos) << damaged[0];
}

TEST(WrongOnPurpose, ItIsNeverRankedAndNoTableTakesIt) {
  ASSERT_TRUE(is_ranked(ranked_trial()));
  EXPECT_FALSE(is_ranked(wrong_trial()));
  EXPECT_TRUE(leaderboard({wrong_trial()}, [](const Trial&) { return true; }).empty());
  const test::TemporaryFolder folder;
  setenv("FLASHCORE_TUNED", (folder.path() / "tuned.json").c_str(), 1);
  EXPECT_THROW(enter_user_table({wrong_trial()}), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "tuned.json"));
  unsetenv("FLASHCORE_TUNED");
}

// A race on a device with a clock of its own: the wrong side gets a ratio, and a trial that nothing ranks; the right
// side is judged as ever.
TEST(WrongOnPurpose, ItIsTimedBesideACorrectKernelThatIsJudged) {
  const ScopedFamily wrong(test::make_fake_family("fake+wrong_tail", test::Fault::kWrongTail));
  const ScopedFamily fast(test::make_fake_family("fake+wrong_too_fast", test::Fault::kTooFast));
  const test::AllFakeFamilies families;
  const std::unique_ptr<Device> device = test::make_fake_device();
  PairRequest request;
  request.problem.dtype = DType::kF32;
  request.problem.seqlen_q = request.problem.seqlen_kv = 33;
  request.problem.head_dim = request.problem.head_dim_v = 16;
  request.baseline = "fake_none:block=16";
  request.candidate = "fake+wrong_tail:block=32";
  request.measure.max_blocks = 12;
  request.gates = false;
  EXPECT_EQ(measure_pair(*device, request).ended, PairEnded::kError) << "not asked for";
  request.wrong_on_purpose = true;
  const json travelled = request;
  const PairOutcome pair = measure_pair(*device, travelled.get<PairRequest>());
  ASSERT_EQ(pair.ended, PairEnded::kMeasured) << pair.message;
  EXPECT_GT(pair.log_ratios.size(), 5U);
  EXPECT_EQ(pair.candidate.ended, Ended::kIncorrect);
  EXPECT_FALSE(is_ranked(pair.candidate));
  // What leaves its work out may be faster than any honest kernel.
  request.candidate = "fake+wrong_too_fast";
  EXPECT_EQ(measure_pair(*device, request).ended, PairEnded::kMeasured);
  request.baseline = "fake_wrong_tail";
  EXPECT_EQ(measure_pair(*device, request).ended, PairEnded::kBaselineFailed)
      << "the plain kernel is excused by nobody";
}

TEST(WrongOnPurpose, NoGatePassesItAndNoPairTakesItUnasked) {
  const std::unique_ptr<Device> device = open_emulator();
  const PlacedProblem problem = PlacedProblem::parse("b1_h1_s64_d64_fp16");
  const DeviceLimits& limits = device->info().limits;
  const PlantedVariant variant =
      plant(variant_by_name("no_stores"), parse_candidate("sm80_fwd", problem, limits), problem, limits);
  EvaluateRequest request;
  request.problem = problem;
  request.candidate = variant.candidate;
  request.patches = {*variant.patch};
  const Trial trial = evaluate(*device, request);
  EXPECT_EQ(trial.ended, Ended::kInvalid);
  EXPECT_NE(trial.message.find("wrong on purpose"), std::string::npos);
  PairRequest pair;
  pair.problem = problem;
  pair.patches = {*variant.patch};
  pair.baseline = "sm80_fwd";
  pair.candidate = variant.candidate;
  EXPECT_EQ(measure_pair(*device, pair).ended, PairEnded::kError);
  std::swap(pair.baseline, pair.candidate);
  pair.wrong_on_purpose = true;
  EXPECT_EQ(measure_pair(*device, pair).ended, PairEnded::kError);
  std::swap(pair.baseline, pair.candidate);
  pair.gates = false;
  pair.count = true;
  const PairOutcome counted = measure_pair(*device, pair);
  EXPECT_EQ(counted.ended, PairEnded::kNotTimed) << counted.message;
  EXPECT_EQ(counted.candidate.ended, Ended::kIncorrect);
  EXPECT_FALSE(is_ranked(counted.candidate));
}

}  // namespace
}  // namespace flashcore
