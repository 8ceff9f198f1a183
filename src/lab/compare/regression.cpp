#include "lab/compare/regression.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/visible_text.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// What the present candidate took in each process, from either side's point of view.
struct Now {
  std::vector<double> p50_us, kcycles;
};
Now times_of(const AbResult& raced) {
  Now now;
  for (const PairOutcome& process : raced.processes) {
    if (process.ended != PairEnded::kMeasured) continue;
    now.p50_us.push_back(process.candidate.timing->p50_us);
    now.kcycles.push_back(process.candidate.timing->kcycles);
  }
  return now;
}

class EntryJudge {
 public:
  EntryJudge(const BaselineEntry& entry, const GateOptions& options, const DeviceInfo& device,
             const std::function<bool()>& stop)
      : entry_(entry), options_(options), device_(device), stop_(stop) {
    row_.baseline = entry;
    row_.verdict = SpeedVerdict::kNotJudged;
  }

  GateRow judge() {
    if (entry_.device_key != device_.key)
      return unjudged(fmt::format("the baseline was measured on {}, and this is {}", entry_.device_key, device_.key));
    try {
      row_.candidate =
          options_.candidate ? *options_.candidate : dispatch(entry_.problem.problem, device_).candidate.print();
      parse_candidate(row_.candidate, entry_.problem.problem, device_.limits);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kBadInput) throw;
      return unjudged(e.what());
    }
    if (!old_candidate_exists()) return judge_by_record("the baseline's candidate is no longer one");
    const AbResult raced = race(entry_.candidate, false);
    if (raced.ended == PairEnded::kCandidateFailed) return wrong(raced);
    row_.lacking = raced.ended == PairEnded::kEnvironment;
    if (raced.verdict == SpeedVerdict::kNotJudged) return unjudged(raced.sentence);
    const Trial& old = raced.processes.front().baseline;
    const bool same_launches = entry_.launch_hash.empty() || old.launch_hash == entry_.launch_hash;
    const bool unchanged = old.artifact && old.artifact->code_hash == entry_.code_hash && same_launches;
    if (unchanged || raced.verdict == SpeedVerdict::kSlower) return interleaved(raced);
    if (!same_launches) return judge_by_record("the baseline's candidate is launched otherwise since");
    return judge_by_record("the code of the baseline's candidate has changed since");
  }

 private:
  AbResult race(const std::string& baseline, bool same_code) {
    AbResult raced = ab(request(baseline, same_code), {}, stop_);
    for (const PairOutcome& process : raced.processes) row_.machine.push_back(process.candidate.machine);
    return raced;
  }

  AbOptions request(const std::string& baseline, bool same_code) const {
    AbOptions ab_options;
    ab_options.device = options_.device;
    ab_options.problem = entry_.problem;
    ab_options.baseline = baseline;
    ab_options.candidate = row_.candidate;
    ab_options.processes = options_.processes;
    ab_options.spec() = options_.spec();
    ab_options.regime = entry_.regime;
    ab_options.condition = entry_.condition;
    ab_options.same_code = same_code;
    if (options_.refusal) ab_options.refusal = options_.refusal(device_.key, entry_.regime, entry_.condition);
    ab_options.worker_executable = options_.worker_executable;
    return ab_options;
  }

  bool old_candidate_exists() const {
    try {
      parse_candidate(entry_.candidate, entry_.problem.problem, device_.limits);
      return true;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kBadInput) throw;
      return false;
    }
  }

  GateRow unjudged(std::string why) {
    row_.sentence = std::move(why);
    return row_;
  }
  GateRow wrong(const AbResult& raced) {
    row_.verdict = SpeedVerdict::kWrong;
    row_.sentence = fmt::format("{}: {}", row_.candidate, raced.processes.back().message);
    return row_;
  }
  GateRow interleaved(const AbResult& raced) {
    row_.interleaved = !raced.same_code;
    row_.same_code = raced.same_code;
    row_.verdict = raced.verdict;
    row_.sentence = raced.sentence;
    row_.inert_fields = raced.inert_fields;
    row_.speedup = raced.comparison.speedup;
    row_.ci95_low = raced.comparison.ci95_low;
    row_.ci95_high = raced.comparison.ci95_high;
    return row_;
  }

  // The present candidate against itself: its times in several processes, and what differs between them by luck.
  GateRow judge_by_record(const std::string& why) {
    const AbResult raced = race(row_.candidate, true);
    if (raced.ended == PairEnded::kCandidateFailed || raced.ended == PairEnded::kBaselineFailed) return wrong(raced);
    row_.lacking = raced.ended == PairEnded::kEnvironment;
    if (raced.verdict == SpeedVerdict::kNotJudged) return unjudged(raced.sentence);
    const Now now = times_of(raced);
    const bool in_cycles = device_.limits.kind == DeviceKind::kCuda && entry_.kcycles > 0 &&
                           std::all_of(now.kcycles.begin(), now.kcycles.end(), [](double c) { return c > 0; });
    GateRow judged = judge_recorded(entry_, in_cycles ? now.kcycles : now.p50_us,
                                    in_cycles ? entry_.kcycles : entry_.p50_us, in_cycles, options_.margin);
    judged.candidate = row_.candidate;
    judged.machine = row_.machine;
    judged.sentence = fmt::format("{}; {}, so it was not interleaved", judged.sentence, why);
    return judged;
  }

  const BaselineEntry& entry_;
  const GateOptions& options_;
  const DeviceInfo& device_;
  const std::function<bool()>& stop_;
  GateRow row_;
};

AbOptions against_itself(const NamedProblem& problem, const std::string& candidate, const GateOptions& options) {
  AbOptions ab_options;
  ab_options.device = options.device;
  ab_options.problem = problem;
  ab_options.baseline = ab_options.candidate = candidate;
  ab_options.processes = options.processes;
  ab_options.spec() = options.spec();
  ab_options.same_code = true;
  ab_options.worker_executable = options.worker_executable;
  return ab_options;
}

// Both sides are one candidate, so that a crash in the race is its own.
Recording recording_of(PairEnded ended) {
  switch (ended) {
    case PairEnded::kMeasured: return Recording::kRecorded;
    case PairEnded::kBaselineFailed:
    case PairEnded::kCandidateFailed:
    case PairEnded::kCrashed:
    case PairEnded::kTimeout: return Recording::kFailed;
    case PairEnded::kEnvironment: return Recording::kLacking;
    case PairEnded::kSameCode:
    case PairEnded::kNotTimed:
    case PairEnded::kError: return Recording::kUnjudged;
  }
  throw_internal("no end of a race has the number {}", static_cast<int>(ended));
}

RecordedProblem record_one(const NamedProblem& problem, const GateOptions& options, const DeviceInfo& device,
                           const std::function<bool()>& stop) {
  const auto lost = [&](Recording ended, std::string why) {
    return RecordedProblem{problem, ended, std::move(why), {}};
  };
  if (problem.problem.seqlen_q == 0)
    return lost(Recording::kUnsupported, "its queries have no rows, so there is nothing to time");
  BaselineEntry entry;
  try {
    entry.problem = problem;
    entry.device_key = device.key;
    entry.candidate = options.candidate ? parse_candidate(*options.candidate, problem.problem, device.limits).print()
                                        : dispatch(problem.problem, device).candidate.print();
    entry.regime = options.regime;
    entry.condition = options.condition;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    return lost(Recording::kUnsupported, e.what());
  }
  AbResult raced;
  try {
    raced = ab(against_itself(problem, entry.candidate, options), {}, stop);
  } catch (const Error& e) {  // a process that cannot be started
    if (e.kind() != ErrorKind::kEnvironment) throw;
    return lost(Recording::kLacking, e.what());
  }
  if (const Recording ended = recording_of(raced.ended); ended != Recording::kRecorded)
    return lost(ended, raced.sentence);
  const Now now = times_of(raced);
  entry.code_hash = raced.processes.front().candidate.artifact->code_hash;
  entry.launch_hash = raced.processes.front().candidate.launch_hash;
  entry.p50_us = median(now.p50_us);
  entry.kcycles = median(now.kcycles);
  entry.process_p50_us = now.p50_us;
  for (const PairOutcome& process : raced.processes) entry.machine.push_back(process.candidate.machine);
  return {problem, Recording::kRecorded, "", std::move(entry)};
}

double variance_of_logs(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double v : values) mean += std::log(v) / n;
  for (const double v : values) squares += (std::log(v) - mean) * (std::log(v) - mean);
  return squares / (n - 1);
}

}  // namespace

std::vector<BaselineEntry> baseline_of(const std::vector<LeaderboardRow>& rows) {
  std::vector<BaselineEntry> entries;
  for (const LeaderboardRow& row : rows) {
    const Trial& best = row.standing.front();
    if (!best.timing) continue;
    BaselineEntry entry;
    entry.problem = {row.problem_name.empty() ? row.problem_id : row.problem_name, best.problem};
    entry.device_key = row.device_key;
    entry.candidate = best.candidate();
    if (best.artifact) entry.code_hash = best.artifact->code_hash;
    entry.launch_hash = best.launch_hash;
    entry.regime = best.timing->regime;
    entry.condition = best.timing->condition;
    entry.p50_us = best.timing->p50_us;
    entry.kcycles = best.timing->kcycles;
    entries.push_back(std::move(entry));
  }
  return entries;
}

GateRow judge_recorded(const BaselineEntry& entry, const std::vector<double>& now, double recorded, bool in_cycles,
                       double margin) {
  FC_CHECK(!now.empty() && recorded > 0);
  GateRow row;
  row.baseline = entry;
  const auto n = static_cast<double>(now.size());
  double mean = 0;
  for (const double value : now) mean += std::log(recorded / value) / n;
  // The larger of what processes differ by now and what they differed by then.
  const double variance = std::max(variance_of_logs(now), variance_of_logs(entry.process_p50_us));
  row.speedup = std::exp(mean);
  const std::string what =
      fmt::format("{} in {} process{} against {:.6g} {} as recorded", in_cycles ? "cycles" : "time", now.size(),
                  now.size() == 1 ? "" : "es", recorded, in_cycles ? "kcycles" : "us");
  if (now.size() < 2) {
    row.verdict = SpeedVerdict::kInconclusive;
    row.sentence = fmt::format(
        "speed-up {:.4f} ({}): one process says nothing of what differs between "
        "processes; three are the least that tell",
        row.speedup, what);
    return row;
  }
  const double half = student_quantile(0.975, n - 1) * std::sqrt(variance * (1 + 1 / n));
  row.ci95_low = std::exp(mean - half);
  row.ci95_high = std::exp(mean + half);
  const bool same = verdict_of({row.speedup, row.ci95_low, row.ci95_high}, margin) == SpeedVerdict::kSame;
  row.verdict = same                               ? SpeedVerdict::kSame
                : row.ci95_low > 1 + margin        ? SpeedVerdict::kFaster
                : row.ci95_high < 1 / (1 + margin) ? SpeedVerdict::kSlower
                                                   : SpeedVerdict::kInconclusive;
  row.sentence = fmt::format("speed-up {:.4f}, 95% interval {:.4f} to {:.4f} ({}), against a margin of {:.1f}%",
                             row.speedup, row.ci95_low, row.ci95_high, what, 100 * margin);
  return row;
}

std::vector<GateRow> gate(const std::vector<BaselineEntry>& entries, const GateOptions& options,
                          const std::function<void(const GateRow&)>& progress, const std::function<bool()>& stop) {
  std::vector<GateRow> rows;
  const DeviceInfo device = Worker(options.device, options.worker_executable).device();
  try {
    for (const BaselineEntry& entry : entries) {
      if (stop && stop()) break;
      rows.push_back(EntryJudge(entry, options, device, stop).judge());
      if (progress) progress(rows.back());
    }
  } catch (const Cancelled&) {
    // What is judged is told.
  }
  return rows;
}

std::vector<RecordedProblem> record_baseline(const std::vector<NamedProblem>& problems, const GateOptions& options,
                                             const std::function<void(const RecordedProblem&)>& progress,
                                             const std::function<bool()>& stop) {
  const DeviceInfo device = Worker(options.device, options.worker_executable).device();
  std::vector<RecordedProblem> rows;
  try {
    for (const NamedProblem& problem : problems) {
      if (stop && stop()) break;
      rows.push_back(record_one(problem, options, device, stop));
      if (progress) progress(rows.back());
    }
  } catch (const Cancelled&) {
    // What is recorded is kept.
  }
  return rows;
}

std::vector<BaselineEntry> entries_of(const std::vector<RecordedProblem>& rows) {
  std::vector<BaselineEntry> entries;
  for (const RecordedProblem& row : rows)
    if (row.entry) entries.push_back(*row.entry);
  return entries;
}

json gate_json(const std::vector<GateRow>& rows, const GateOptions& options) {
  json results = json::array();
  for (const GateRow& row : rows)
    results.push_back({{"problem", row.baseline.problem.problem.id()},
                       {"name", row.baseline.problem.name},
                       {"device", row.baseline.device_key},
                       {"baseline",
                        {{"candidate", row.baseline.candidate},
                         {"code_hash", row.baseline.code_hash},
                         {"p50_us", row.baseline.p50_us}}},
                       {"candidate", row.candidate},
                       {"verdict", row.verdict},
                       {"sentence", row.sentence},
                       {"interleaved", row.interleaved},
                       {"same_code", row.same_code},
                       {"inert_fields", row.inert_fields},
                       {"machine", row.machine},
                       {"speedup", row.speedup > 0 ? json(row.speedup) : json()},
                       {"ci95", row.ci95_high > 0 ? json{row.ci95_low, row.ci95_high} : json()}});
  return encode_nonfinite({{"schema", "flashcore.gate/1"},
                           {"source_hash", source_hash()},
                           {"margin", options.margin},
                           {"processes", options.processes},
                           {"created_at", now_iso8601()},
                           {"results", results}});
}

std::string gate_junit(const std::vector<GateRow>& rows) {
  int failures = 0, errors = 0;
  std::string cases;
  for (const GateRow& row : rows) {
    const std::string text = escape_html(row.sentence);
    cases += fmt::format("  <testcase classname=\"flashcore.gate.{}\" name=\"{}\"",
                         escape_html(row.baseline.device_key), escape_html(row.baseline.problem.name));
    if (row.passed()) {
      cases += fmt::format("><system-out>{}</system-out></testcase>\n", text);
      continue;
    }
    (row.failed() ? failures : errors) += 1;
    const char* tag = row.failed() ? "failure" : "error";
    cases += fmt::format("><{} type=\"{}\" message=\"{}\"/></testcase>\n", tag, row.verdict, text);
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"flashcore gate\" tests=\"{}\" failures=\"{}\" "
      "errors=\"{}\" skipped=\"0\">\n{}</testsuite>\n",
      rows.size(), failures, errors, cases);
}

int gate_exit_code(const std::vector<GateRow>& rows) {
  const auto any = [&](auto&& wanted) { return std::any_of(rows.begin(), rows.end(), wanted); };
  if (any([](const GateRow& r) { return r.failed(); })) return 1;
  if (any([](const GateRow& r) { return r.lacking; })) return 4;
  return rows.empty() || any([](const GateRow& r) { return !r.passed(); }) ? 2 : 0;
}

int baseline_exit_code(const std::vector<RecordedProblem>& rows) {
  const auto any = [&](Recording ended) {
    return std::any_of(rows.begin(), rows.end(), [ended](const RecordedProblem& r) { return r.ended == ended; });
  };
  if (any(Recording::kFailed)) return 1;
  if (any(Recording::kLacking)) return 4;
  return any(Recording::kUnjudged) || !any(Recording::kRecorded) ? 2 : 0;
}

}  // namespace flashcore
