// flashcore profile --planted: is the bottleneck of each planted slow kernel named first, and of none without it.

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "cli/profile.h"
#include "core/error.h"
#include "kernels/source_hash.h"
#include "lab/diagnose/slow.h"
#include "lab/process/worker.h"
#include "lab/record/digest.h"
#include "lab/record/trial.h"

namespace flashcore::cli {

namespace {

struct SlowTally {
  int named = 0, missed = 0, lacking = 0;
};

std::string first_of(const Profile& profile) {
  return profile.bottlenecks.empty() ? "none" : word_of(profile.bottlenecks.front().cause);
}

// Of the same candidate on the same problem one profile is enough.
const SlowSide& side_without(const SlowKernel& kernel, GatherOptions gather, std::map<std::string, SlowSide>& known) {
  const std::string key = kernel.problem.id() + " " + kernel.unpatched;
  const auto [place, is_new] = known.try_emplace(key);
  if (!is_new) return place->second;
  gather.patches.clear();
  Gathered gathered = gather_facts(kernel.problem, kernel.unpatched, gather);
  place->second = {std::move(gathered.facts), std::move(gathered.failure)};
  return place->second;
}

std::string words_of_side_without(const SlowSide& side, Cause cause) {
  if (!side.failure.empty()) return side.failure;
  const std::string named = wrongly_named(slow_kernels(), diagnose(side.facts));
  if (!named.empty()) return named;
  return could_show(cause, side.facts) ? "not named" : "not tried";
}

}  // namespace

int profile_planted(const ProfileArguments& options, const DeviceInfo& device) {
  if (device.limits.kind != DeviceKind::kCuda)
    throw_bad_input("the planted slow kernels are GPU kernels; give --device emulator, or --device cuda");
  if (!options.arch.empty() || !options.counters.empty() || !options.common.family.empty() ||
      !options.common.config.empty() || !options.common.suite.empty())
    throw_bad_input(
        "--planted runs its own kernels on its own problems: leave out --arch, --counters, --family, --config and "
        "--suite");
  if (device.limits.emulated && options.gives_seconds)
    throw_bad_input("--seconds is of timing, and --planted on the emulator times nothing; leave it out");
  const auto& kernels = slow_kernels();
  const std::string& only = options.common.problem;
  std::vector<std::string_view> names;
  for (const auto& kernel : kernels) names.push_back(kernel.name);
  if (!only.empty() && std::none_of(kernels.begin(), kernels.end(), [&](const auto& k) { return k.name == only; }))
    throw_bad_input("'{}' is no planted slow kernel; give one of {}, or leave --problem out to run all", only,
                    fmt::join(names, ", "));
  Console console(options.common.quiet, json_on_stdout(options.common));
  GatherOptions gather = gather_options(options, device, console);
  SlowTally tally;
  std::map<std::string, SlowSide> unpatched;
  Table table({"slow kernel", "planted", "named first", "verdict", "without it"});
  nlohmann::json results = nlohmann::json::array();
  for (const SlowKernel& kernel : kernels) {
    if (interrupted()) break;
    if (!only.empty() && kernel.name != only) continue;
    gather.patches = kernel.patch ? std::vector<Patch>{*kernel.patch} : std::vector<Patch>{};
    try {
      Gathered gathered = gather_facts(kernel.problem, kernel.candidate_text(), gather);
      const SlowSide slow{std::move(gathered.facts), std::move(gathered.failure)};
      const Profile profile = diagnose(slow.facts);
      const SlowSide& without = side_without(kernel, gather, unpatched);
      const SlowJudgement judgement = judge_slow(kernel, slow, without);
      const bool named = judgement.verdict == SlowJudgement::Verdict::kNamed;
      const bool lacks = judgement.verdict == SlowJudgement::Verdict::kLacking;
      ++(named ? tally.named : lacks ? tally.lacking : tally.missed);
      console.end_progress();
      table.add({kernel.name, word_of(kernel.bottleneck), first_of(profile),
                 named   ? Cell("named", Tone::kGood)
                 : lacks ? Cell("not tried", Tone::kBad)
                         : Cell("MISSED", Tone::kBad),
                 words_of_side_without(without, kernel.bottleneck)});
      if (!named) {
        std::string detail = judgement.why;
        for (const SlowSide* side : {&slow, &without})
          for (const LostSource& lost : side->facts.lost)
            detail += fmt::format("\n{}without {}: {}", side == &slow ? "" : "the kernel without it, ", lost.source,
                                  lost.why);
        table.add_detail(kernel.name, detail);
      }
      nlohmann::json result = profile_json(slow.facts, profile);
      result["name"] = kernel.name;
      result["does"] = kernel.does;
      result["planted"] = kernel.bottleneck;
      result["named"] = named;
      result["why"] = judgement.why;
      results.push_back(std::move(result));
    } catch (const Cancelled&) {
      break;
    }
  }
  console.end_progress();
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.profile-planted/1"},
                              {kDigest, ""},
                              {"source_hash", source_hash()},
                              {"device", device.key},
                              {"created_at", now_iso8601()},
                              {"named", tally.named},
                              {"missed", tally.missed},
                              {"lacking", tally.lacking},
                              {"results", results}});
  console.summary("{} named by {} bottleneck, {} missed{}{}", plural(tally.named, "slow kernel"),
                  tally.named == 1 ? "its" : "their", tally.missed, lacking_words(tally.lacking), stopped_by());
  if (tally.missed > 0) return kFailed;
  if (tally.lacking > 0) return kNoEnvironment;
  return unless_interrupted(tally.named > 0 ? kDone : kNotJudged);
}

}  // namespace flashcore::cli
