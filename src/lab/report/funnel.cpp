#include "lab/report/funnel.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

#include "lab/record/funnel_stage.h"

namespace flashcore::report {
namespace {

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
  std::map<std::string, FunnelStage> furthest;
  for (const Trial* trial : trials) {
    if (trial->phase != Phase::kDefault && trial->phase != Phase::kSearch) continue;
    FunnelStage& stage = furthest.try_emplace(trial->candidate(), FunnelStage::kProposed).first->second;
    stage = std::max(stage, funnel_stage_of(*trial));
  }
  Funnel funnel;
  for (const auto& [candidate, stage] : furthest) {
    ++funnel.proposed;
    funnel.valid += stage >= FunnelStage::kValid;
    funnel.compiled += stage >= FunnelStage::kCompiled;
    funnel.correct += stage >= FunnelStage::kCorrect;
    funnel.raced += stage >= FunnelStage::kRaced;
    funnel.led += stage >= FunnelStage::kLed;
  }
  return funnel;
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
