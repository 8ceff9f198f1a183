// Lines for a shell that make a page's trials again. A store may hold anything, so that every word is quoted.

#include <fmt/format.h>

#include <algorithm>

#include "core/suite.h"
#include "lab/record/machine.h"
#include "lab/report/model.h"

namespace flashcore::report {
namespace {

struct Ran {
  std::string verb, device, suite;
  std::vector<std::string> problems;  // ids
};

// Empty: what left the trial is no verb that times.
std::string verb_of(Phase phase) {
  switch (phase) {
    case Phase::kDefault:
    case Phase::kSearch:
    case Phase::kHoldout: return "tune";
    case Phase::kBench: return "bench";
    case Phase::kCheck: return "";
  }
  return "";
}

// Of suites that ship alone: another's name may be that of any file.
bool is_whole_suite(const std::string& name, const std::vector<std::string>& problems) {
  const std::vector<std::string> shipped = shipped_suites();
  if (std::find(shipped.begin(), shipped.end(), name) == shipped.end()) return false;
  const Suite suite = load_suite(name);
  return suite.problems.size() == problems.size() &&
         std::all_of(suite.problems.begin(), suite.problems.end(), [&](const NamedProblem& named) {
           return std::find(problems.begin(), problems.end(), named.problem.id()) != problems.end();
         });
}

}  // namespace

std::vector<std::string> commands_to_repeat(const std::vector<Trial>& trials) {
  std::vector<Ran> all;
  for (const Trial& trial : trials) {
    const std::string verb = verb_of(trial.phase), id = trial.problem.id();
    if (verb.empty()) continue;
    auto ran = std::find_if(all.begin(), all.end(), [&](const Ran& r) {
      return r.verb == verb && r.device == trial.device.id && r.suite == trial.suite;
    });
    if (ran == all.end()) ran = all.insert(all.end(), {verb, trial.device.id, trial.suite, {}});
    if (std::find(ran->problems.begin(), ran->problems.end(), id) == ran->problems.end()) ran->problems.push_back(id);
  }
  std::vector<std::string> lines;
  for (const Ran& ran : all) {
    const auto add = [&](const std::string& what) {
      lines.push_back(
          fmt::format("flashcore {} --device {} {} --store trials.db", ran.verb, shell_quote(ran.device), what));
    };
    if (is_whole_suite(ran.suite, ran.problems)) {
      add("--suite " + ran.suite);
      continue;
    }
    for (const std::string& id : ran.problems) add("--problem " + shell_quote(id));
  }
  return lines;
}

std::string bench_command(const ProblemRow& row) {
  if (!row.winner) return {};
  const Trial& winner = *row.winner;
  return fmt::format("{}flashcore bench --device {} --problem {} --family {} --config {}",
                     repro_prefix(winner.machine.variables, winner.device.id), shell_quote(winner.device.id),
                     shell_quote(row.problem_id), shell_quote(winner.family), shell_quote(winner.config));
}

}  // namespace flashcore::report
