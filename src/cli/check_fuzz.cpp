// flashcore check --fuzz: random problems, configs and data; a failure is shrunk to one line.

#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/check.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "lab/verify/fuzz_again.h"

namespace flashcore::cli {

namespace {

// Shrinking runs hundreds of small cases; beyond a few failures the next ones are mostly the same fault.
constexpr std::size_t kShrinkAtMost = 3;

std::vector<const Family*> fuzzed_families(const CheckOptions& options, const DeviceInfo& device) {
  const std::string text = candidate_text(options.common);
  if (text.find(':') != std::string::npos)
    throw_bad_input("--fuzz draws its own configs: leave the config out of {}", text);
  std::vector<const Family*> families = families_to_fuzz(device.limits, text);
  if (families.empty())
    throw_bad_input("no family{} runs on {}: there is nothing to fuzz; choose another --device",
                    text.empty() ? "" : " '" + text + "'", device.id);
  return families;
}

// All that the run has no row of.
std::vector<std::uint64_t> cases_to_try(const FuzzRun& run) {
  std::set<std::uint64_t> kept;
  for (const FuzzRow& row : run.rows) kept.insert(row.index);
  std::vector<std::uint64_t> indices;
  for (std::uint64_t index = 0; index < static_cast<std::uint64_t>(run.asked); ++index)
    if (!kept.contains(index)) indices.push_back(index);
  return indices;
}

Trial run_case(Worker& worker, const FuzzCase& c) {
  return worker.evaluate(check_request({c.problem.id(), c.problem}, "fuzz", c.candidate, {c.pattern}, c.seed));
}

void report_failure(Console& console, Worker& worker, const FuzzRow& failure, const DeviceInfo& device,
                    std::set<std::string>& told) {
  // The same way of failing, so that shrinking a wrong result does not wander off to another fault.
  const auto still_fails = [&](const FuzzCase& c) {
    try {
      return !interrupted() && run_case(worker, c).ended == failure.ended;
    } catch (const Cancelled&) {
      return false;  // Ctrl-C: what is shrunk so far is told
    }
  };
  const FuzzCase smallest = shrink(failure.drawn, device.limits, still_fails);
  const std::string repro = repro_command(smallest, device.id);
  if (!told.insert(repro).second) return;
  console.summary("{}", console.paint("FAIL " + word_of(failure.ended), Tone::kBad));
  console.block(failure.message);
  console.summary("  found:  {}", repro_command(failure.drawn, device.id));
  console.summary("  shrunk: {}", repro);
}

}  // namespace

int check_fuzz(const CheckOptions& options, const DeviceInfo& device) {
  const std::vector<const Family*> families = fuzzed_families(options, device);
  const FuzzLimits limits = fuzz_limits(device.limits, options.fuzz.known_kinds());
  const std::int64_t cases = options.fuzz.cases;
  Console console(options.common.quiet, json_on_stdout(options.common));
  console.line("{} ({}): {} random problems{}, seed {}", device.name, device.id, cases,
               limits.kinds.empty() ? "" : fmt::format(" ({})", fmt::join(limits.kinds, " or ")), options.seed);
  FuzzRun run;
  run.device = device, run.seed = options.seed, run.asked = cases;
  run.family = candidate_text(options.common), run.kinds = limits.kinds;
  if (!options.again.empty()) {
    keep_what_has_not_changed(parse_json(read_file(options.again), options.again), options.again, run);
    console.line("{} of them are as they were in {}, and are not tried again", run.rows.size(), options.again);
  }
  const std::vector<std::uint64_t> indices = cases_to_try(run);
  CheckTally tally;
  tally.passed = static_cast<int>(run.rows.size());
  std::vector<FuzzRow> failures;
  std::int64_t done = 0;
  FuzzSession session;
  session.cases = static_cast<std::int64_t>(indices.size());
  const auto began = std::chrono::steady_clock::now();
  for_each_with_worker(options, device, session.cases, [&](Worker& worker, std::mutex& mutex, std::int64_t i) {
    const std::uint64_t index = indices[static_cast<std::size_t>(i)];
    const auto drawn = random_case(options.seed, index, families, device.limits, limits);
    std::optional<Trial> trial;
    if (drawn) trial = run_case(worker, *drawn);
    const std::lock_guard lock(mutex);
    if (!trial) {
      ++run.not_drawn;
      ++tally.skipped["no family supports what was drawn"];
    } else {
      run.rows.push_back(fuzz_row(index, *drawn, *trial));
      session.seconds += run.rows.back().seconds;
      if (tally.count(*trial) == Judgement::kFailed) failures.push_back(run.rows.back());
      else if (trial->ended == Ended::kEnvironment && tally.lacking == 1)
        console.summary("not tried: {}", trial->message);
    }
    console.progress(++done, session.cases,
                     fmt::format("{} failed  {}", tally.failed, drawn ? drawn->problem.id() : ""));
  });
  session.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  session.measured_at = now_iso8601();
  if (session.cases > 0) run.sessions.push_back(session);  // else the file stays of its earlier days
  console.end_progress();

  std::set<std::string> told;
  if (!failures.empty()) {
    Worker worker(device.id);
    worker.cancel_when(interrupted);
    for (std::size_t i = 0; i < failures.size() && i < kShrinkAtMost && !interrupted(); ++i) {
      console.line("shrinking failure {} of {}", i + 1, failures.size());
      report_failure(console, worker, failures[i], device, told);
    }
  }
  if (const std::string counts = counts_by_kind(run.rows); !counts.empty()) console.line("of these: {}", counts);
  write_rows(options.common, fuzz_json(run));
  return conclude(console, tally);
}

}  // namespace flashcore::cli
