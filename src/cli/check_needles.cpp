// flashcore check --needles: the long-context gate of 8-bit attention.

#include "cli/check.h"
#include "core/error.h"
#include "lab/verify/needles.h"

namespace flashcore::cli {
namespace {

std::string promotion_words(const Candidate& candidate) {
  const auto promotion = promotion_of(candidate);
  if (!promotion) return "-";
  const std::string word = fmt::format("{}={}", promotion->field, promotion->value);
  return promotion->value == 0 ? word + " (never)" : fmt::format("{} ({} keys)", word, promotion->keys);
}

std::string role_of(const NeedleCandidate& candidate, const CheckOptions& options) {
  if (!candidate.gated) return "by name";
  return options.common.config.empty() ? "default" : "named";
}

void print_verdicts(Console& console, const std::vector<NeedleRun>& runs, const CheckOptions& options) {
  Table table({"keys", "head dim", "family", "", "promoted", "found", "bf16", "drift of o, rms / limit", "max",
               "of lse, max / limit", "verdict"});
  for (const NeedleRun& run : runs)
    for (const NeedleResult& result : run.results) {
      const auto& [candidate, verdict, failure] = result;
      if (!failure.empty()) {
        const std::string keys = std::to_string(run.problem.seqlen_kv);
        table.add({keys, std::to_string(run.problem.head_dim), candidate.candidate.family->name(),
                   role_of(candidate, options), promotion_words(candidate.candidate), "-", "-", "-", "-", "-",
                   Cell("FAIL", Tone::kBad)});
        table.add_detail(fmt::format("{} keys by {}", keys, candidate.candidate.print()), failure, Tone::kBad);
        continue;
      }
      table.add({std::to_string(run.problem.seqlen_kv),
                 std::to_string(run.problem.head_dim),
                 candidate.candidate.family->name(),
                 role_of(candidate, options),
                 promotion_words(candidate.candidate),
                 fmt::format("{} of {}", verdict.found.all, run.needles),
                 std::to_string(run.bf16_found.all),
                 fmt::format("{:.2e} / {:.2e}", verdict.drift.o_rms, verdict.limit.o_rms),
                 fmt::format("{:.2e}", verdict.drift.o_max),
                 fmt::format("{:.2e} / {:.2e}", verdict.drift.lse_max, verdict.limit.lse_max),
                 {verdict.words(), verdict.passed()  ? Tone::kGood
                                   : candidate.gated ? Tone::kBad
                                                     : Tone::kWarn}});
    }
  console.table(table);
}

// Where needles were lost: of which weight and at which place.
void print_losses(Console& console, const std::vector<NeedleRun>& runs) {
  std::vector<std::string> header = {"keys", "head dim", "family", "promoted"};
  for (const double weight : kNeedleWeights) header.push_back(fmt::format("weight {:.2g}", weight));
  for (const NeedlePlace place : kNeedlePlaces) header.emplace_back(to_string(place));
  Table table(header);
  const auto add = [&](const NeedleRun& run, const std::string& name, const std::string& promoted,
                       const NeedleCount& count) {
    if (count.all == run.needles) return;
    std::vector<Cell> cells = {std::to_string(run.problem.seqlen_kv), std::to_string(run.problem.head_dim), name,
                               promoted};
    for (const int found : count.by_weight) cells.emplace_back(std::to_string(found));
    for (const int found : count.by_place) cells.emplace_back(std::to_string(found));
    table.add(cells);
  };
  for (const NeedleRun& run : runs) {
    if (!run.bf16_found.by_place.empty()) add(run, "bf16", "-", run.bf16_found);
    for (const auto& [candidate, verdict, failure] : run.results)
      if (failure.empty())
        add(run, candidate.candidate.family->name(), promotion_words(candidate.candidate), verdict.found);
  }
  if (table.empty()) return;
  console.line("found, where some were lost:");
  console.table(table);
}

}  // namespace

int check_needles(const CheckOptions& options) {
  const DeviceInfo device = describe_device(options.common.device);
  Worker worker(device.id);
  worker.cancel_when(interrupted);
  Console console(options.common.quiet, json_on_stdout(options.common));
  NeedleOptions needles;
  needles.seqlens_kv = options.seqlens_kv;
  needles.head_dims = options.head_dims;
  needles.seed = options.seed;
  needles.pinned = candidate_text(options.common);
  needles.progress = [&](int done, int total, const std::string& what) { console.progress(done, total, what); };
  needles.stop = interrupted;
  const std::vector<NeedleRun> runs = run_needles(worker, needles);
  console.end_progress();
  print_verdicts(console, runs, options);
  print_losses(console, runs);

  int passed = 0, failed = 0, skipped = 0, others = 0;
  std::string lacking;
  for (const NeedleRun& run : runs) {
    if (!run.why_none.empty()) {
      ++skipped;
      console.line("skipped {}: {}", run.problem.id(), run.why_none);
    }
    if (!run.failure.empty()) {
      ++failed;
      print_error(fmt::format("{}: nothing is judged, since bf16 has no outputs: {}", run.problem.id(), run.failure));
    }
    if (!run.lacking.empty()) lacking = fmt::format("{}: {}", run.problem.id(), run.lacking);
    // A setting that is asked for by name may lose needles. It must compile and run.
    for (const NeedleResult& result : run.results)
      if (result.candidate.gated || !result.failure.empty()) ++(result.passed() ? passed : failed);
      else others += !result.passed();
  }
  write_json(options.common, needles_json(runs, needles, device));
  console.summary("{} passed, {} failed, {} skipped; of settings that must be asked for by name {} would fail{}",
                  passed, failed, skipped, others, stopped_by());
  if (!lacking.empty()) print_error(lacking);
  if (failed > 0) return kFailed;
  if (!lacking.empty()) return kNoEnvironment;
  return unless_interrupted(passed > 0 ? kDone : kNotJudged);
}

}  // namespace flashcore::cli
