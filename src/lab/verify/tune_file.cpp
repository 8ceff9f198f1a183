// Files of `flashcore tune --json`: are winners correct, of the present source, and as fast as their intervals say?

#include <algorithm>

#include "core/error.h"
#include "lab/record/freshness.h"
#include "lab/record/json_io.h"
#include "lab/statistics/statistics.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A stage of the funnel holds no more than the one before it.
constexpr const char* kFunnel[] = {"proposed", "valid", "compiled", "correct", "raced"};

class TuneAudit {
 public:
  TuneAudit(JudgedFile& file, const json& row, std::size_t index)
      : file_(file), row_(row), index_(index), name_(name_of_row(row)) {}

  // Whether it has a winner.
  bool run() {
    funnel();
    arms();
    const json winner = part(row_, "winner");
    if (winner.is_null()) return false;
    if (!file_.has_known_condition(name_, part(winner, "timing"))) return true;
    const Trial trial = winner.get<Trial>();
    if (trial.problem.id() != text_in(row_, "problem"))
      file_.complain("{}: its winner is of {}", name_, trial.problem.id());
    if (trial.ended != Ended::kPassed || trial.phase != Phase::kHoldout)
      file_.complain("{}: its winner ended '{}' in the phase '{}': only a held-out one that passed wins", name_,
                     trial.ended, trial.phase);
    timing(trial);
    comparison(trial);
    source(trial);
    return true;
  }

 private:
  JudgedFile& file_;
  const json& row_;
  std::size_t index_;
  std::string name_;

  void funnel() {
    const json& funnel = row_.at("funnel");
    for (std::size_t i = 1; i < std::size(kFunnel); ++i)
      if (funnel.at(kFunnel[i]).get<int>() > funnel.at(kFunnel[i - 1]).get<int>())
        file_.complain("{}: {} {} of {} {}", name_, funnel.at(kFunnel[i]).dump(), kFunnel[i],
                       funnel.at(kFunnel[i - 1]).dump(), kFunnel[i - 1]);
  }

  void arms() {
    for (const json& arm : row_.at("arms")) {
      const json numbers = decode_nonfinite(json::array({arm.at("heldout"), arm.at("heldout_ci95")}));
      const double heldout = numbers[0].get<double>(), low = numbers[1].at(0).get<double>(),
                   high = numbers[1].at(1).get<double>();
      if (!(low <= heldout && heldout <= high))
        file_.complain(
            "{}: the strategy {} is {:.6g} times as fast, which its interval of {:.6g} to {:.6g} does not hold", name_,
            text_in(arm, "strategy"), heldout, low, high);
    }
  }

  void timing(const Trial& trial) {
    if (!trial.timing || trial.timing->samples.empty()) return file_.complain("{}: its winner keeps no samples", name_);
    std::vector<double> times;
    for (const Sample& sample : trial.timing->samples) times.push_back(sample.time_us);
    const json& timing = row_.at("winner").at("timing");
    for (const auto& [key, q] : {std::pair("p10_us", 0.1), {"p50_us", 0.5}, {"p90_us", 0.9}})
      file_.compare_number(fmt::format("{}: {} of its winner", name_, key), timing.at(key).get<double>(),
                           quantile(times, q));
  }

  void comparison(const Trial& trial) {
    if (!trial.comparison) return;
    const Comparison& c = *trial.comparison;
    if (!(c.ci95_low <= c.speedup && c.speedup <= c.ci95_high))
      file_.complain("{}: its winner is {:.6g} times as fast, which its interval of {:.6g} to {:.6g} does not hold",
                     name_, c.speedup, c.ci95_low, c.ci95_high);
    if (const SpeedVerdict follows = verdict_of({c.speedup, c.ci95_low, c.ci95_high}, c.margin); c.verdict != follows)
      file_.complain("{}: its winner is told as {}, and its interval gives {}", name_, c.verdict, follows);
    arm_of_winner(trial, c);
  }

  // The arm whose best won says the same of it.
  void arm_of_winner(const Trial& trial, const Comparison& c) {
    for (const json& arm : row_.at("arms"))
      if (text_in(arm, "best") == trial.candidate() && arm.at("heldout") != json(c.speedup))
        file_.complain("{}: its winner is {:.6g} times as fast, and {} by the strategy that found it", name_, c.speedup,
                       arm.at("heldout").dump());
  }

  void source(const Trial& trial) {
    const Freshness freshness = freshness_of(trial);
    if (freshness.state == Freshness::State::kStale) file_.stale(index_, name_, freshness.why);
    if (freshness.state == Freshness::State::kUnknown) file_.unknown(index_, name_, freshness.why);
  }
};

}  // namespace

Verification verify_tune_file(const json& document) {
  JudgedFile file(document);
  file.expect_distinct("problem");
  std::size_t winners = 0, index = 0;
  for (const json& row : file.rows()) winners += TuneAudit(file, row, index++).run();
  if (const json problems = part(document, "problems");
      problems.is_number_integer() && problems.get<std::size_t>() != index)
    file.incomplete(fmt::format("{} problems were to be tuned, and {} are in it", problems.dump(), index));
  return file.finish(index, fmt::format("{} winners of {} problems are of the present source", winners, index));
}

}  // namespace flashcore
