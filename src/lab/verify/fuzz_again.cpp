#include "lab/verify/fuzz_again.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/record/digest.h"
#include "lab/verify/by_family.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A file says of what all its kernels of a family were compiled, and not of each.
std::set<std::string> changed_families(const json& document, const DeviceLimits& limits) {
  FamilySources now;
  for (const json& row : document.at("results"))
    now.add(text_in(row, "candidate"), PlacedProblem::parse(row.at("problem").get<std::string>()), limits);
  const auto told = document.at("sources").get<std::map<std::string, std::string>>();
  std::set<std::string> changed;
  for (const auto& [family, hash] : now.hashes())
    if (const auto found = told.find(family); found == told.end() || found->second != hash) changed.insert(family);
  return changed;
}

void expect_same(const std::string& origin, const char* what, const std::string& there, const std::string& here) {
  if (there != here)
    throw_bad_input(
        "'{}' is of another {} ({}, and this run has {}): give the file of a run like this one, or leave "
        "--again out",
        excerpt(origin), what, there.empty() ? "none" : excerpt(there), here.empty() ? "none" : here);
}

// Of many limits, those that differ.
void expect_same_limits(const std::string& origin, const json& there, const json& here) {
  const bool is_cpu = here.at("kind") == json("cpu");
  std::vector<std::string> differ;
  for (const auto& [key, value] : here.items()) {
    const json told = part(there, key.c_str());
    const bool is_threads = is_cpu && key == "multiprocessors";
    if (told != value)
      differ.push_back(fmt::format("{} {}, and this run has {}", is_threads ? "threads (FLASHCORE_THREADS)" : key,
                                   told.is_null() ? "none" : excerpt(told.dump(), 40), value.dump()));
  }
  for (const auto& [key, value] : there.items())
    if (!here.contains(key))
      differ.push_back(
          fmt::format("{} {}, of which this run knows nothing", excerpt(key, 40), excerpt(value.dump(), 40)));
  if (differ.empty()) return;
  throw_bad_input(
      "'{}' is of a device with other limits: {}. Give the file of a run like this one, or leave --again out",
      excerpt(origin), fmt::join(differ, "; "));
}

void expect_run_like(const json& document, const std::string& origin, const FuzzRun& run) {
  if (seal_of(document) != Seal::kIntact)
    throw_bad_input("'{}' is not what the program wrote: its digest is missing, or of another text", excerpt(origin));
  std::vector<std::string> there, here;
  for (const json& kind : document.at("kinds")) there.push_back(kind.get<std::string>());
  for (const FuzzKind kind : run.kinds) here.emplace_back(word_of(kind));
  std::ranges::sort(there);
  std::ranges::sort(here);
  expect_same(origin, "seed", document.at("seed").dump(), std::to_string(run.seed));
  expect_same(origin, "choice of kinds", fmt::format("{}", fmt::join(there, ",")),
              fmt::format("{}", fmt::join(here, ",")));
  expect_same(origin, "family", text_in(document, "family"), run.family);
  const json device = run.device;
  expect_same(origin, "device", document.at("device").at("name").dump(), device.at("name").dump());
  expect_same_limits(origin, document.at("device").at("limits"), device.at("limits"));
}

// A run writes what it takes over as its own.
void expect_sound(const json& document, const std::string& origin) {
  const Verification audit = judge_by_schema(document, origin, {{kFuzzSchema, verify_fuzz_file}});
  if (audit.wrong.empty()) return;
  throw_bad_input(
      "'{}' does not hold together: {}{}. Give a file as check --fuzz --json wrote it, or leave --again out",
      excerpt(origin), audit.wrong.front(),
      audit.wrong.size() == 1 ? "" : fmt::format(" (and {} more)", audit.wrong.size() - 1));
}

void keep(const json& document, FuzzRun& run) {
  const std::vector<const Family*> families = families_to_fuzz(run.device.limits, run.family);
  const FuzzLimits limits = fuzz_limits(run.device.limits, run.kinds);
  const std::set<std::string> changed = changed_families(document, run.device.limits);
  for (const json& row : document.at("results")) {
    const auto index = row.at("index").get<std::uint64_t>();
    if (row.at("ended") != json(Ended::kPassed) || index >= static_cast<std::uint64_t>(run.asked) ||
        changed.contains(family_of(text_in(row, "candidate"))))
      continue;
    const auto drawn = random_case(run.seed, index, families, run.device.limits, limits);
    if (!drawn || !is_row_of(row, *drawn)) continue;
    FuzzRow kept{index, *drawn, Ended::kPassed, "", row.at("share_of_bound").get<double>(), {}};
    run.rows.push_back(std::move(kept));
  }
  run.sessions = sessions_of(document);
}

}  // namespace

void keep_what_has_not_changed(const json& document, const std::string& origin, FuzzRun& run) {
  try {
    if (text_in(document, "schema") != kFuzzSchema)
      throw_bad_input("'{}' is no file of check --fuzz --json", excerpt(origin));
    expect_run_like(document, origin, run);
    expect_sound(document, origin);
    keep(document, run);
  } catch (const json::exception& e) {
    throw_bad_input("'{}' cannot be read as a file of check --fuzz --json: {}", excerpt(origin), e.what());
  }
}

}  // namespace flashcore
