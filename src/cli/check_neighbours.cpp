// flashcore check --neighbours: whether rows keep their bits in other batches.

#include <chrono>

#include "cli/check.h"
#include "core/error.h"
#include "lab/verify/neighbours_file.h"

namespace flashcore::cli {
namespace {

constexpr std::size_t kToldAtMost = 5;

}  // namespace

int check_neighbours(const CheckOptions& options) {
  const DeviceInfo device = describe_device(options.common.device);
  Console console(options.common.quiet, json_on_stdout(options.common));
  console.line("{} ({}): {} neighbourhoods, seed {}", device.name, device.id, options.neighbours, options.seed);
  Worker worker(device.id);
  worker.cancel_when(interrupted);
  NeighbourRun run;
  run.device = device, run.seed = options.seed, run.asked = options.neighbours;
  run.candidate = candidate_text(options.common);
  CheckTally tally;
  std::map<std::string, int> by_family;
  std::size_t told = 0;
  const auto began = std::chrono::steady_clock::now();
  for (std::int64_t index = 0; index < neighbour_cases(run.asked) && !interrupted(); ++index) {
    const NeighbourName name{run.seed, static_cast<std::uint64_t>(index), neighbourhoods_of_case(index, run.asked),
                             run.candidate};
    auto drawn = random_neighbours(name.seed, name.index, name.neighbourhoods, device, name.pinned);
    if (!drawn) {
      tally.skipped["no family promises equal bits for anything drawn"] += name.neighbourhoods;
      run.not_drawn += name.neighbourhoods;
      continue;
    }
    const PlacedProblem alone = drawn->neighbourhoods.front().problem;
    const Candidate candidate = neighbour_candidate(alone, device, name.pinned);
    NeighbourVerdict verdict;
    try {
      verdict = judge_neighbours(*drawn, ask_worker(worker, name, *drawn));
    } catch (const Cancelled&) {
      break;  // Ctrl-C: the case in hand is neither passed nor failed
    }
    const int different = static_cast<int>(verdict.different.size());
    tally.failed += different, tally.passed += verdict.compared - different;
    by_family[candidate.family->name()] += verdict.compared;
    for (const auto& [batch, why] : verdict.different)
      if (++told <= kToldAtMost) {
        console.summary("{}", console.paint("FAIL", Tone::kBad));
        console.block(fmt::format("{}, {} rows and {} keys: {}: {}", candidate.print(), drawn->lengths.q,
                                  drawn->lengths.kv, drawn->neighbourhoods[batch].words(), why));
      }
    run.rows.push_back({name.index, *std::move(drawn), std::move(verdict)});
    if (const std::string& lacking = run.rows.back().verdict.lacking; !lacking.empty()) {
      ++tally.lacking;
      print_error(fmt::format("{}: {}", alone.id(), lacking));
      break;
    }
    console.progress(index * kNeighboursOfOneSequence + name.neighbourhoods, run.asked,
                     fmt::format("{} failed  {}", tally.failed, alone.id()));
  }
  run.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  console.end_progress();
  for (const auto& [family, count] : by_family) console.line("{}: {} neighbourhoods", family, count);
  write_rows(options.common, neighbours_json(run));
  return conclude(console, tally);
}

}  // namespace flashcore::cli
