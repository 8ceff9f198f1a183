#include "lab/report/funnel.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string>
#include <utility>

namespace flashcore::report {
namespace {

// How many stages of the funnel a trial got through, "proposed" being the first.
int stages_passed(const Trial& trial) {
  if (!passed_gate(trial, Gate::kValid)) return 1;
  // A CPU candidate has nothing to compile: its gates are skipped, which does not stop it.
  const auto stopped = [&](Gate gate) {
    const Verdict* verdict = find_gate(trial, gate);
    return verdict != nullptr && verdict->status != GateStatus::kPassed && verdict->status != GateStatus::kSkipped;
  };
  const bool judged = find_gate(trial, Gate::kCorrectness) != nullptr;
  if (stopped(Gate::kCompile) || stopped(Gate::kResource)) return 2;
  if (!judged && !passed_gate(trial, Gate::kCompile)) return 2;
  // Passed the gate, but its timed launches left wrong outputs: not correct.
  if (!passed_gate(trial, Gate::kCorrectness) || trial.ended == Ended::kIncorrect) return 3;
  if (!is_ranked(trial)) return 4;
  return trial.comparison && trial.comparison->verdict == SpeedVerdict::kFaster ? 6 : 5;
}

// The gate that ended it; a crash or a hang may have left none, then how it ended.
std::string last_gate(const Trial& trial) {
  for (const Verdict& verdict : trial.gates) {
    if (verdict.status == GateStatus::kFailed || verdict.status == GateStatus::kError) return word_of(verdict.gate);
  }
  return word_of(trial.ended);
}

std::string reason_of(const Trial& trial) {
  for (const Verdict& verdict : trial.gates) {
    if ((verdict.status == GateStatus::kFailed || verdict.status == GateStatus::kError) && !verdict.reason.empty())
      return verdict.reason;
  }
  return trial.message.empty() ? word_of(trial.ended) : trial.message;
}

// "needs 131072 bytes, 101376 allowed" and the same with other numbers are one reason.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) {
      out += c;
    } else if (out.empty() || out.back() != '#') {
      out += '#';
    }
  }
  return out;
}

}  // namespace

std::vector<int> counts(const Funnel& funnel) {
  return {funnel.proposed, funnel.valid, funnel.compiled, funnel.correct, funnel.raced, funnel.led};
}

bool stopped_by_gate(const Trial& trial) {
  switch (trial.ended) {
    case Ended::kNotYet:
    case Ended::kPassed:
    case Ended::kSlower:
    case Ended::kInconclusive: return false;
    default: return true;
  }
}

Funnel make_funnel(const std::vector<const Trial*>& trials) {
  std::map<std::string, int> furthest;
  for (const Trial* trial : trials) {
    if (trial->phase != Phase::kDefault && trial->phase != Phase::kSearch) continue;
    int& stage = furthest[trial->candidate()];
    stage = std::max(stage, stages_passed(*trial));
  }
  std::array<int, 7> reached{};
  for (const auto& [candidate, stage] : furthest) {
    for (int i = 1; i <= stage; ++i) ++reached[static_cast<std::size_t>(i)];
  }
  return {reached[1], reached[2], reached[3], reached[4], reached[5], reached[6]};
}

std::vector<RejectedGroup> group_rejected(const std::vector<Trial>& trials) {
  std::map<std::pair<std::string, std::string>, RejectedGroup> groups;
  for (const Trial& trial : trials) {
    if (!stopped_by_gate(trial)) continue;
    const std::string gate = last_gate(trial), reason = reason_of(trial);
    RejectedGroup& group = groups[{gate, without_numbers(reason)}];
    if (group.count++ == 0) {
      group.gate = gate;
      group.reason = reason;
      group.example = trial.candidate();
    }
    const std::string& problem = trial.problem_name.empty() ? trial.problem.id() : trial.problem_name;
    if (std::find(group.problems.begin(), group.problems.end(), problem) == group.problems.end())
      group.problems.push_back(problem);
  }
  std::vector<RejectedGroup> out;
  for (auto& [key, group] : groups) out.push_back(std::move(group));
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  return out;
}

}  // namespace flashcore::report
