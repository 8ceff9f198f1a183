// flashcore profile --planted: is the bottleneck of each planted slow kernel named first, and of none without it.

#include <algorithm>
#include <map>

#include "cli/profile.h"
#include "core/error.h"
#include "lab/diagnose/slow.h"
#include "lab/process/worker.h"

namespace flashcore::cli {

namespace {

struct SlowTally {
  int named = 0, missed = 0, lacking = 0;
};

std::string first_of(const Profile& profile) {
  return profile.bottlenecks.empty() ? "none" : word_of(profile.bottlenecks.front().cause);
}

// Of the same candidate on the same problem one profile is enough.
const std::string& wrongly_named_of(const SlowKernel& kernel, GatherOptions gather,
                                    std::map<std::string, std::string>& known) {
  const std::string key = kernel.problem.id() + " " + kernel.unpatched;
  const auto [place, is_new] = known.try_emplace(key);
  if (!is_new) return place->second;
  gather.patches.clear();
  const Gathered gathered = gather_facts(kernel.problem, kernel.unpatched, gather);
  place->second =
      !gathered.failure.empty() ? gathered.failure : wrongly_named(slow_kernels(), diagnose(gathered.facts));
  return place->second;
}

}  // namespace

int profile_planted(const ProfileArguments& options, const DeviceInfo& device) {
  if (device.limits.kind != DeviceKind::kCuda)
    throw_bad_input("the planted slow kernels are GPU kernels; give --device emulator, or --device cuda");
  if (!options.arch.empty() || !options.counters.empty() || !options.common.family.empty() ||
      !options.common.suite.empty())
    throw_bad_input(
        "--planted runs its own kernels on its own problems: leave out --arch, --counters, --family and --suite");
  const auto& kernels = slow_kernels();
  const std::string& only = options.common.problem;
  if (!only.empty() && std::none_of(kernels.begin(), kernels.end(), [&](const auto& k) { return k.name == only; }))
    throw_bad_input("'{}' is no planted slow kernel; `flashcore profile --planted` without --problem lists all {}",
                    only, kernels.size());
  Console console(options.common.quiet, json_on_stdout(options.common));
  GatherOptions gather = gather_options(options, device, console);
  SlowTally tally;
  std::map<std::string, std::string> unpatched;
  Table table({"slow kernel", "planted", "named first", "verdict", "without it"});
  nlohmann::json results = nlohmann::json::array();
  for (const SlowKernel& kernel : kernels) {
    if (interrupted()) break;
    if (!only.empty() && kernel.name != only) continue;
    gather.patches = kernel.patch ? std::vector<Patch>{*kernel.patch} : std::vector<Patch>{};
    try {
      const Gathered gathered = gather_facts(kernel.problem, kernel.candidate_text(), gather);
      const Profile profile = diagnose(gathered.facts);
      const std::string& extra = wrongly_named_of(kernel, gather, unpatched);
      std::string why = !gathered.failure.empty() ? gathered.failure : why_not_named(kernel, profile);
      if (why.empty() && !extra.empty()) why = fmt::format("the kernel without it is accused too: {}", extra);
      // Where a source is missing it may be the one that the cause shows in.
      const bool lacks = !why.empty() && gathered.failure.empty() && !gathered.facts.lost.empty() && extra.empty();
      ++(why.empty() ? tally.named : lacks ? tally.lacking : tally.missed);
      console.end_progress();
      table.add({kernel.name, word_of(kernel.bottleneck), first_of(profile),
                 why.empty() ? Cell("named", Tone::kGood)
                 : lacks     ? Cell("not tried", Tone::kBad)
                             : Cell("MISSED", Tone::kBad),
                 extra.empty() ? "not named" : extra});
      if (!why.empty()) {
        std::string detail = why;
        for (const LostSource& lost : gathered.facts.lost)
          detail += fmt::format("\nwithout {}: {}", lost.source, lost.why);
        table.add_detail(kernel.name, detail);
      }
      nlohmann::json result = profile_json(gathered.facts, profile);
      result["name"] = kernel.name;
      result["does"] = kernel.does;
      result["planted"] = kernel.bottleneck;
      result["named"] = why.empty();
      result["why"] = why;
      results.push_back(std::move(result));
    } catch (const Cancelled&) {
      break;
    }
  }
  console.end_progress();
  console.table(table);
  write_json(options.common, {{"schema", "flashcore.profile-planted/1"},
                              {"device", device.key},
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
