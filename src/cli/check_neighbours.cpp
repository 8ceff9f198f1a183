// flashcore check --neighbours: whether rows keep their bits in other batches.

#include "cli/check.h"
#include "core/error.h"
#include "lab/verify/neighbours.h"

namespace flashcore::cli {
namespace {

// Of one sequence: its kernel is compiled once for all of them.
constexpr int kOfOneSequence = 10;
constexpr std::size_t kToldAtMost = 5;

}  // namespace

int check_neighbours(const CheckOptions& options) {
  const DeviceInfo device = describe_device(options.common.device);
  const std::string pinned = candidate_text(options.common);
  Console console(options.common.quiet, json_on_stdout(options.common));
  console.line("{} ({}): {} neighbourhoods, seed {}", device.name, device.id, options.neighbours, options.seed);
  Worker worker(device.id);
  worker.cancel_when(interrupted);
  CheckTally tally;
  nlohmann::json results = nlohmann::json::array();
  std::map<std::string, int> by_family;
  std::size_t told = 0;
  for (int done = 0, index = 0; done < options.neighbours && !interrupted(); ++index) {
    const NeighbourName name{options.seed, static_cast<std::uint64_t>(index),
                             std::min(kOfOneSequence, options.neighbours - done), pinned};
    const auto drawn = random_neighbours(name.seed, name.index, name.neighbourhoods, device, pinned);
    if (!drawn) {
      tally.skipped["no family promises equal bits for anything drawn"] += name.neighbourhoods;
      done += name.neighbourhoods;
      continue;
    }
    const Neighbourhood& alone = drawn->neighbourhoods.front();
    const Candidate candidate = neighbour_candidate(alone.problem, device, pinned);
    NeighbourVerdict verdict;
    try {
      verdict = judge_neighbours(*drawn, ask_worker(worker, name, *drawn));
    } catch (const Cancelled&) {
      break;  // Ctrl-C: the case in hand is neither passed nor failed
    }
    const int different = static_cast<int>(verdict.different.size());
    tally.failed += different, tally.passed += verdict.compared - different;
    by_family[candidate.family->name()] += verdict.compared;
    if (different > 0)
      results.push_back({{"index", index},
                         {"candidate", candidate.print()},
                         {"alone", alone.problem.id()},
                         {"different", verdict.different}});
    for (const std::string& which : verdict.different)
      if (++told <= kToldAtMost) {
        console.summary("{}", console.paint("FAIL", Tone::kBad));
        console.block(
            fmt::format("{}, {} rows and {} keys: {}", candidate.print(), drawn->lengths.q, drawn->lengths.kv, which));
      }
    if (!verdict.lacking.empty()) {
      ++tally.lacking;
      print_error(fmt::format("{}: {}", alone.problem.id(), verdict.lacking));
      break;
    }
    done += name.neighbourhoods;
    console.progress(done, options.neighbours, fmt::format("{} failed  {}", tally.failed, alone.problem.id()));
  }
  console.end_progress();
  for (const auto& [family, count] : by_family) console.line("{}: {} neighbourhoods", family, count);
  return finish(options, console, tally, results);
}

}  // namespace flashcore::cli
