#pragma once
// How things end: the words that stores, JSON files and verdicts are made of.

#include "core/words.h"
#include "kernels/family.h"

namespace flashcore {

// What judges a candidate, in order. kEmulator is the correctness of a patched kernel on the emulator before a GPU runs
// it. kCounters takes the place of kPerformance on an emulated GPU; kTune is the tuner's look at all trials together;
// kStart: the worker had not told any yet.
enum class Gate { kStart, kValid, kCompile, kResource, kEmulator, kCorrectness, kPerformance, kCounters, kTune };
template <>
struct WordsOf<Gate> {
  static constexpr std::string_view what = "gate";
  static constexpr std::pair<Gate, std::string_view> table[] = {{Gate::kStart, "start"},
                                                                {Gate::kValid, "valid"},
                                                                {Gate::kCompile, "compile"},
                                                                {Gate::kResource, "resource"},
                                                                {Gate::kEmulator, "emulator"},
                                                                {Gate::kCorrectness, "correctness"},
                                                                {Gate::kPerformance, "performance"},
                                                                {Gate::kCounters, "counters"},
                                                                {Gate::kTune, "tune"}};
};

template <>
struct WordsOf<ChosenBy> {
  static constexpr std::string_view what = "chosen_by";
  static constexpr std::pair<ChosenBy, std::string_view> table[] = {
      {ChosenBy::kCaller, "caller"}, {ChosenBy::kDispatch, "dispatch"}, {ChosenBy::kUserTable, "user_table"}};
};

// How much of the correctness gate: kQuick is for search only (two patterns, one repeat, aligned operands), and says
// so; what is published has passed kFull, in the process that timed it.
enum class GateLevel { kQuick, kFull };
template <>
struct WordsOf<GateLevel> {
  static constexpr std::string_view what = "gate level";
  static constexpr std::pair<GateLevel, std::string_view> table[] = {{GateLevel::kQuick, "quick"},
                                                                     {GateLevel::kFull, "full"}};
};

enum class GateStatus { kPassed, kFailed, kSkipped, kError };
template <>
struct WordsOf<GateStatus> {
  static constexpr std::string_view what = "gate status";
  static constexpr std::pair<GateStatus, std::string_view> table[] = {{GateStatus::kPassed, "passed"},
                                                                      {GateStatus::kFailed, "failed"},
                                                                      {GateStatus::kSkipped, "skipped"},
                                                                      {GateStatus::kError, "error"}};
};

// How a trial ended. kEnvironment: no compiler, memory, disk or folder, so the candidate is not judged, and tried
// again.
enum class Ended {
  kNotYet,
  kPassed,
  kInvalid,
  kCompileError,
  kResource,
  kIncorrect,
  kSlower,
  kInconclusive,
  kCrashed,
  kTimeout,
  kError,
  kEnvironment,
};
template <>
struct WordsOf<Ended> {
  static constexpr std::string_view what = "end of a trial";
  static constexpr std::pair<Ended, std::string_view> table[] = {
      {Ended::kNotYet, ""},           {Ended::kPassed, "passed"},
      {Ended::kInvalid, "invalid"},   {Ended::kCompileError, "compile_error"},
      {Ended::kResource, "resource"}, {Ended::kIncorrect, "incorrect"},
      {Ended::kSlower, "slower"},     {Ended::kInconclusive, "inconclusive"},
      {Ended::kCrashed, "crashed"},   {Ended::kTimeout, "timeout"},
      {Ended::kError, "error"},       {Ended::kEnvironment, "environment"}};
};

// What a trial was run for. Only kHoldout trials reach the leaderboard.
enum class Phase { kDefault, kSearch, kHoldout, kBench, kCheck };
template <>
struct WordsOf<Phase> {
  static constexpr std::string_view what = "phase";
  static constexpr std::pair<Phase, std::string_view> table[] = {{Phase::kDefault, "default"},
                                                                 {Phase::kSearch, "search"},
                                                                 {Phase::kHoldout, "holdout"},
                                                                 {Phase::kBench, "bench"},
                                                                 {Phase::kCheck, "check"}};
};

// A candidate's speed beside another's (statistics/verdict.h). kNotJudged: there is no comparison. kWrong: it failed
// its gates, where the regression gate asked for a comparison.
enum class SpeedVerdict { kFaster, kSlower, kSame, kInconclusive, kNotJudged, kWrong };
template <>
struct WordsOf<SpeedVerdict> {
  static constexpr std::string_view what = "verdict";
  static constexpr std::pair<SpeedVerdict, std::string_view> table[] = {{SpeedVerdict::kFaster, "FASTER"},
                                                                        {SpeedVerdict::kSlower, "SLOWER"},
                                                                        {SpeedVerdict::kSame, "SAME"},
                                                                        {SpeedVerdict::kInconclusive, "INCONCLUSIVE"},
                                                                        {SpeedVerdict::kNotJudged, "NOT JUDGED"},
                                                                        {SpeedVerdict::kWrong, "WRONG"}};
};

// A trial that passed its gates and was compared: only what is slower, or may be, did not pass.
constexpr Ended ended_of(SpeedVerdict verdict) {
  return verdict == SpeedVerdict::kSlower         ? Ended::kSlower
         : verdict == SpeedVerdict::kInconclusive ? Ended::kInconclusive
                                                  : Ended::kPassed;
}

// How two candidates' race ended.
//   kMeasured         there are log_ratios
//   kSameCode         the device would execute the same instructions: not timed
//   kNotTimed         both passed their gates, and nothing more was asked
//   kBaselineFailed   the baseline did not pass its gates, so nothing is judged against it
//   kCandidateFailed  the candidate did not: it gets no time
//   the others        as of a trial
enum class PairEnded {
  kMeasured,
  kSameCode,
  kNotTimed,
  kBaselineFailed,
  kCandidateFailed,
  kCrashed,
  kTimeout,
  kError,
  kEnvironment,
};
template <>
struct WordsOf<PairEnded> {
  static constexpr std::string_view what = "end of a race";
  static constexpr std::pair<PairEnded, std::string_view> table[] = {{PairEnded::kMeasured, "measured"},
                                                                     {PairEnded::kSameCode, "same_code"},
                                                                     {PairEnded::kNotTimed, "not_timed"},
                                                                     {PairEnded::kBaselineFailed, "baseline_failed"},
                                                                     {PairEnded::kCandidateFailed, "candidate_failed"},
                                                                     {PairEnded::kCrashed, "crashed"},
                                                                     {PairEnded::kTimeout, "timeout"},
                                                                     {PairEnded::kError, "error"},
                                                                     {PairEnded::kEnvironment, "environment"}};
};

// What an experiment's measurement means for its hypothesis. kSizeOutside: faster, slower or the same as predicted, but
// the measured interval does not reach the predicted range.
enum class HypothesisVerdict { kConfirmed, kSizeOutside, kRefuted, kInconclusive };
template <>
struct WordsOf<HypothesisVerdict> {
  static constexpr std::string_view what = "verdict of a hypothesis";
  static constexpr std::pair<HypothesisVerdict, std::string_view> table[] = {
      {HypothesisVerdict::kConfirmed, "CONFIRMED"},
      {HypothesisVerdict::kSizeOutside, "SIZE OUTSIDE"},
      {HypothesisVerdict::kRefuted, "REFUTED"},
      {HypothesisVerdict::kInconclusive, "INCONCLUSIVE"}};
};

}  // namespace flashcore
