#include "lab/record/trial.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "lab/record/json_io.h"
#include "lab/sample_trial.h"

namespace flashcore {
namespace {

using nlohmann::json;

Trial round_trip(const Trial& trial) { return json::parse(dump_line(trial)).get<Trial>(); }

TEST(Trial, EveryFieldSurvivesJson) {
  const Trial before = test::sample_trial();
  const Trial after = round_trip(before);
  // The text form holds every field, so equal texts are equal trials; the fields checked one by one below are those
  // whose text form could hide a loss.
  EXPECT_EQ(dump_line(after), dump_line(before));
  EXPECT_EQ(after.problem, before.problem);
  EXPECT_EQ(after.seed, before.seed);
  EXPECT_EQ(after.timing->p50_us, before.timing->p50_us);
  EXPECT_EQ(after.timing->samples.size(), 2u);
  EXPECT_EQ(after.timing->regime, Regime::kCold);
  EXPECT_EQ(after.device.limits.l2_bytes, before.device.limits.l2_bytes);
  EXPECT_EQ(after.device.limits.kind, DeviceKind::kCuda);
  EXPECT_EQ(after.artifact->warnings, before.artifact->warnings);
  EXPECT_EQ(after.error->nonfinite, 7);
  EXPECT_EQ(after.error->bias, -1e-300);
  EXPECT_EQ(after.comparison->margin, 0.02);
  EXPECT_EQ(after.phase, Phase::kHoldout);
}

TEST(Trial, NonFiniteNumbersSurviveJson) {
  const Trial after = round_trip(test::sample_trial());
  EXPECT_TRUE(std::isnan(after.timing->p90_us));
  EXPECT_TRUE(std::isinf(after.timing->samples[1].time_us));
  EXPECT_TRUE(std::isinf(after.error->worst_row_rel));
  EXPECT_LT(after.comparison->ci95_low, 0);
  EXPECT_TRUE(std::isinf(after.comparison->ci95_low));
  EXPECT_TRUE(std::isnan(after.gates[1].evidence.at("rel").get<double>()));
  EXPECT_TRUE(std::isinf(after.gates[1].evidence.at("rows").at(2).get<double>()));
}

TEST(Trial, TextThatIsNotUtf8OrLooksLikeANumberIsKeptAsText) {
  Trial trial = test::sample_trial();
  EXPECT_EQ(round_trip(trial).message, "compiler said \xEF\xBF\xBD\xEF\xBF\xBD and then inf");
  trial.message = "inf";
  EXPECT_EQ(round_trip(trial).message, "inf");
}

TEST(Trial, AbsentSectionsStayAbsent) {
  Trial trial;
  trial.created_at = now_iso8601();
  const Trial after = round_trip(trial);
  EXPECT_FALSE(after.artifact || after.error || after.bound || after.timing || after.comparison);
  EXPECT_TRUE(after.gates.empty());
}

TEST(Trial, DamagedJsonIsBadInputNotACrash) {
  json whole = test::sample_trial();
  for (const auto& [key, value] : whole.items()) {
    if (key == "artifact" || key == "error" || key == "bound" || key == "timing" || key == "comparison") continue;
    if (key == "machine") continue;  // trials of before it was recorded are still read
    json without = whole;
    without.erase(key);
    EXPECT_THROW(without.get<Trial>(), Error) << key;
  }
  whole["seed"] = "twelve";
  EXPECT_THROW(whole.get<Trial>(), Error);
}

TEST(Trial, WordsRoundTripAndUnknownOnesAreListed) {
  for (const Phase phase : {Phase::kDefault, Phase::kSearch, Phase::kHoldout, Phase::kBench, Phase::kCheck})
    EXPECT_EQ(parse_phase(to_string(phase)), phase);
  for (const GateStatus status : {GateStatus::kPassed, GateStatus::kFailed, GateStatus::kSkipped, GateStatus::kError})
    EXPECT_EQ(parse_gate_status(to_string(status)), status);
  try {
    parse_phase("warmup");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(e.what()).find("holdout"), std::string::npos);
  }
}

TEST(Trial, GatesAreFoundByName) {
  const Trial trial = test::sample_trial();
  EXPECT_TRUE(passed_gate(trial, "valid"));
  EXPECT_FALSE(passed_gate(trial, "correctness"));
  EXPECT_EQ(find_gate(trial, "performance"), nullptr);
}

TEST(Trial, CreatedAtIsIso8601Utc) {
  const std::string now = now_iso8601();
  ASSERT_EQ(now.size(), 24u);
  EXPECT_EQ(now[10], 'T');
  EXPECT_EQ(now.back(), 'Z');
}

}  // namespace
}  // namespace flashcore
