#include "lab/record/trial.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "lab/record/checks.h"
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

// Clock and DRAM decide which config a model chooses: of a trial from before they were recorded they are those of its
// GPU.
TEST(Trial, OlderTrialsHaveTheClockAndDramOfTheirGpu) {
  json old = test::sample_trial();
  old["device"]["limits"].erase("clock_mhz");
  old["device"]["limits"].erase("dram_peak_gbps");
  const DeviceLimits limits = old.get<Trial>().device.limits;
  EXPECT_EQ(limits.clock_mhz, 1980);
  EXPECT_EQ(limits.dram_peak_gbps, find_gpu_model("h200")->dram_peak_gbps);
  old["device"]["key"] = "a100";
  EXPECT_EQ(old.get<Trial>().device.limits.dram_peak_gbps, 0);
  EXPECT_EQ(round_trip(test::sample_trial()).device.limits.dram_peak_gbps, 4800.5);
}

TEST(Trial, DamagedJsonIsBadInputNotACrash) {
  json whole = test::sample_trial();
  for (const auto& [key, value] : whole.items()) {
    if (key == "artifact" || key == "error" || key == "bound" || key == "timing" || key == "comparison") continue;
    // Trials of before they were recorded are still read.
    if (key == "machine" || key == "chosen_by" || key == "launch_hash") continue;
    json without = whole;
    without.erase(key);
    EXPECT_THROW(without.get<Trial>(), Error) << key;
  }
  whole["seed"] = "twelve";
  EXPECT_THROW(whole.get<Trial>(), Error);
}

TEST(Trial, WordsRoundTripAndUnknownOnesAreListed) {
  for (const Phase phase : {Phase::kDefault, Phase::kSearch, Phase::kHoldout, Phase::kBench, Phase::kCheck})
    EXPECT_EQ(parse_word<Phase>(to_string(phase)), phase);
  for (const GateStatus status : {GateStatus::kPassed, GateStatus::kFailed, GateStatus::kSkipped, GateStatus::kError})
    EXPECT_EQ(parse_word<GateStatus>(to_string(status)), status);
  try {
    parse_word<Phase>("warmup");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(e.what()).find("holdout"), std::string::npos);
  }
}

template <class Enum>
std::vector<std::string> words_of() {
  std::vector<std::string> words;
  for (const auto& [value, word] : WordsOf<Enum>::table) {
    EXPECT_EQ(to_string(value), word);
    EXPECT_EQ(parse_word<Enum>(word), value);
    EXPECT_EQ(json(value), json(word));
    EXPECT_EQ(json(word).get<Enum>(), value);
    words.emplace_back(word);
  }
  EXPECT_EQ(std::set(words.begin(), words.end()).size(), words.size());
  EXPECT_THROW(parse_word<Enum>("surprise"), Error);
  return words;
}

// Stores and results of every version hold these.
TEST(Outcomes, TheirWordsAreThoseOnDisk) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words_of<Ended>(), (Words{"", "passed", "invalid", "compile_error", "resource", "incorrect", "slower",
                                      "inconclusive", "crashed", "timeout", "error", "environment"}));
  EXPECT_EQ(words_of<Gate>(), (Words{"start", "valid", "compile", "resource", "emulator", "correctness", "performance",
                                     "counters", "tune"}));
  EXPECT_EQ(words_of<GateStatus>(), (Words{"passed", "failed", "skipped", "error"}));
  EXPECT_EQ(words_of<Phase>(), (Words{"default", "search", "holdout", "bench", "check"}));
  EXPECT_EQ(words_of<SpeedVerdict>(), (Words{"FASTER", "SLOWER", "SAME", "INCONCLUSIVE", "NOT JUDGED", "WRONG"}));
  EXPECT_EQ(words_of<HypothesisVerdict>(), (Words{"CONFIRMED", "SIZE OUTSIDE", "REFUTED", "INCONCLUSIVE"}));
  EXPECT_EQ(words_of<PairEnded>(), (Words{"measured", "same_code", "not_timed", "baseline_failed", "candidate_failed",
                                          "crashed", "timeout", "error", "environment"}));
  words_of<Check>();  // those in evidence
}

TEST(Outcomes, AWordThatIsNoneIsAnErrorThatNamesIt) {
  const json whole = test::sample_trial();
  for (const char* where : {"/ended", "/phase", "/gates/0/gate", "/gates/0/status", "/comparison/verdict",
                            "/timing/regime", "/timing/condition"}) {
    json changed = whole;
    json& word = changed.at(json::json_pointer(where));
    ASSERT_TRUE(word.is_string()) << where;
    word = "surprise";
    try {
      changed.get<Trial>();
      ADD_FAILURE() << where << ": taken for another word";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kBadInput) << where;
      EXPECT_NE(std::string(e.what()).find("surprise"), std::string::npos) << where << ": " << e.what();
    }
    word = 3;
    EXPECT_THROW(changed.get<Trial>(), Error) << where;
  }
}

TEST(Trial, GatesAreFoundByName) {
  const Trial trial = test::sample_trial();
  EXPECT_TRUE(passed_gate(trial, Gate::kValid));
  EXPECT_FALSE(passed_gate(trial, Gate::kCorrectness));
  EXPECT_EQ(find_gate(trial, Gate::kPerformance), nullptr);
}

TEST(Trial, CreatedAtIsIso8601Utc) {
  const std::string now = now_iso8601();
  ASSERT_EQ(now.size(), 24u);
  EXPECT_EQ(now[10], 'T');
  EXPECT_EQ(now.back(), 'Z');
}

}  // namespace
}  // namespace flashcore
