#include "lab/verify/judged_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/foreign_text.h"
#include "kernels/source_hash.h"
#include "lab/record/digest.h"
#include "lab/record/freshness.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

// A file keeps all digits of a number; what follows from it is added up in another order at most.
constexpr double kSameFigure = 1e-9;

std::string first_of_list(const std::vector<Verification::StaleRow>& list) {
  return fmt::format("{}: {}{}", list.front().name, list.front().why,
                     list.size() == 1 ? "" : fmt::format(" (and {} more)", list.size() - 1));
}

// What wrote the files that nobody judges, by the schema without its version. A Python module or a verb has the name of
// its schema, if nothing else is said.
constexpr std::string_view kModules[] = {"block_mask_bench", "cache_error",   "decode_sweep", "fp8_error", "model",
                                         "overhead",         "quantize_bench"};
constexpr std::string_view kVerbs[] = {"ab",        "campaign", "check",  "compile",     "doctor",
                                       "economics", "explain",  "gate",   "leaderboard", "problem",
                                       "profile",   "run",      "submit", "verify",      "warmup"};
constexpr std::pair<std::string_view, std::string_view> kCommands[] = {
    {"calibration", "flashcore ab --calibrate"},
    {"calibration-run", "flashcore ab --calibrate --json FILE"},
    {"campaign_criteria", "flashcore campaign --out FOLDER"},
    {"campaign_ledger", "flashcore campaign --out FOLDER"},
    {"check_conformance", "flashcore check --conformance --json FILE"},
    {"crosscheck_tools", "python -m flashcore.crosscheck --json FILE"},
    {"experiment", "flashcore experiment run --out FOLDER"},
    {"experiment-check", "flashcore experiment check --json FILE"},
    {"experiment-samples", "flashcore experiment run --out FOLDER"},
    {"experiments", "flashcore experiment run --json FILE"},
    {"gate-baseline", "flashcore gate --write-baseline FILE"},
    {"landscape", "flashcore tune --record FILE"},
    {"ledger", "flashcore experiment list --json FILE"},
    {"replay", "flashcore tune --replay LANDSCAPE --json FILE"},
    {"report", "flashcore report --out FILE.json"},
};

std::string command_of(std::string_view schema) {
  if (!schema.starts_with("flashcore.")) return "";
  const std::string_view name = schema.substr(10, schema.find('/') - 10);
  if (std::ranges::count(kModules, name) > 0) return fmt::format("python -m flashcore.{} --json FILE", name);
  if (std::ranges::count(kVerbs, name) > 0) return fmt::format("flashcore {} --json FILE", name);
  const auto* const found = std::ranges::find(kCommands, name, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kCommands) ? "" : std::string(found->second);
}

[[noreturn]] void refuse_unjudged(const json& document, const std::string& origin, const FileJudges& judges) {
  const std::string schema = text_in(document, "schema");
  const std::string kind = schema.empty() ? "names no schema" : fmt::format("is of the schema {}", excerpt(schema));
  if (const std::string command = command_of(schema); !command.empty())
    throw_bad_input("'{}' {}, which verify cannot judge: leave it out; `{}` makes such a file anew", origin, kind,
                    command);
  if (const json how = part(document, "how"); !schema.empty() && (how.is_string() || how.is_object()))
    throw_bad_input("'{}' {}, which verify cannot judge: leave it out; its \"how\" says how it was measured", origin,
                    kind);
  std::vector<std::string> known;
  for (const auto& [name, each] : judges) known.push_back(name);
  throw_bad_input(
      "'{}' {}, which verify cannot judge: it judges flashcore.bench/1, flashcore.ab-self-test/1, {}. Leave the file "
      "out",
      origin, kind, fmt::join(known, ", "));
}

}  // namespace

JudgedFile::JudgedFile(const json& document) : document_(document) {
  switch (seal_of(document)) {
    case Seal::kIntact: break;
    case Seal::kBroken: complain("its text is not what the program wrote: its digest is of another one"); break;
    case Seal::kNone:
      remark("it has no digest (written before digests): an edit of what no other part of it repeats is not seen");
  }
  for (const char* key : {"created_at", "measured_at"})
    if (const auto time = time_in(document, key);
        time && *time > static_cast<double>(std::time(nullptr)) + kClockSkewSeconds)
      complain("it was written at {}, which is later than now", text_in(document, key));
  if (document.value("interrupted", json()) == json(true)) incomplete("it was interrupted before its end");
}

const json& JudgedFile::rows() const {
  const auto found = document_.find("results");
  if (found == document_.end() || !found->is_array() || found->empty()) throw_bad_input("\"results\" holds no row");
  for (const json& row : *found)
    if (!row.is_object()) throw_bad_input("a row under \"results\" is {}, and no object", excerpt(row.dump()));
  return *found;
}

void JudgedFile::stale(std::size_t row, const std::string& name, std::string why) {
  verification_.stale.push_back({row, excerpt(name), std::move(why)});
}
void JudgedFile::unknown(std::size_t row, const std::string& name, std::string why) {
  verification_.unknown.push_back({row, excerpt(name), std::move(why)});
}
void JudgedFile::incomplete(std::string why) {
  if (verification_.incomplete.empty()) verification_.incomplete = std::move(why);
  else remark("{}", why);
}

void JudgedFile::compare_count(const char* key, std::size_t rows) {
  const auto says = document_.at(key).get<std::int64_t>();
  if (says != static_cast<std::int64_t>(rows)) complain("it counts {} {}, and its rows give {}", says, key, rows);
}

void JudgedFile::expect_distinct(const char* key) {
  std::set<std::string> seen;
  for (const json& row : rows())
    if (const std::string value = text_in(row, key); !seen.insert(value).second)
      complain("two of its rows have the {} '{}'", key, excerpt(value));
}

void JudgedFile::compare_number(const std::string& what, double says, double follows) {
  if (std::isnan(says) && std::isnan(follows)) return;
  if (!(std::abs(says - follows) <= kSameFigure * std::max(1.0, std::abs(follows))))
    complain("{} is {:.12g}, and {:.12g} follows from the rest", what, says, follows);
}

DeviceInfo JudgedFile::device_of_run() {
  const json& device = document_.at("device");
  const auto info = device.get<DeviceInfo>();
  if (text_in(device, "id").starts_with("emulator") != info.limits.emulated)
    complain("its device is '{}', and the limits of that are {}of an emulated one", excerpt(text_in(device, "id")),
             info.limits.emulated ? "" : "not ");
  if (!time_in(document_, "measured_at")) complain("it names no time at which it was measured");
  return info;
}

bool JudgedFile::has_known_condition(const std::string& name, const json& object) {
  const std::string why = why_unknown_condition(object);
  if (!why.empty()) complain("{}: {}", name, why);
  return why.empty();
}

void JudgedFile::judge_source(std::size_t row, const std::string& name, const json& holder,
                              const std::string& candidate, const std::string& problem) {
  const json hash = part(holder, kCandidateHash), device = part(holder, "device");
  if (!hash.is_object()) {
    const std::string recorded = text_in(holder, "source_hash");
    if (recorded.empty())
      return unknown(row, name, "it does not say what source it is of (an older flashcore wrote it)");
    if (recorded == source_hash()) return;
    return stale(row, name,
                 fmt::format("it is of sources {}, and these are {}; which kernels have changed since is not in it",
                             excerpt(recorded.substr(0, 12)), source_hash().substr(0, 12)));
  }
  const PlacedProblem placed = PlacedProblem::parse(hash.at("problem").get<std::string>());
  if (placed.id() != problem) complain("{}: it is of {}, and its hashes are of {}", name, problem, placed.id());
  const DeviceLimits limits = device.get<DeviceInfo>().limits;
  if (text_in(hash, "source") == source_hash_of(candidate, placed, limits) &&
      text_in(hash, "launch") == launch_hash_of(candidate, placed, limits))
    return;
  stale(row, name,
        fmt::format("what {} is compiled from, or how it is launched, has changed",
                    excerpt(candidate.substr(0, candidate.find(':')))));
}

void JudgedFile::judge_all_sources(const std::string& recorded) {
  if (recorded.empty()) unknown(0, "the file", "it does not say what source it is of (an older flashcore wrote it)");
  else if (recorded != source_hash())
    stale(0, "the file",
          fmt::format("it is of sources {}, and these are {}", excerpt(recorded.substr(0, 12)),
                      source_hash().substr(0, 12)));
}

Verification JudgedFile::finish(std::size_t rows, const std::string& told) {
  Verification& v = verification_;
  v.timed = rows;
  v.fresh = rows > 0 && v.wrong.empty() && v.stale.empty() && v.unknown.empty() && v.incomplete.empty();
  v.reason = !v.wrong.empty()        ? "what it says does not hold together: " + v.wrong.front()
             : !v.stale.empty()      ? first_of_list(v.stale)
             : !v.unknown.empty()    ? first_of_list(v.unknown)
             : !v.incomplete.empty() ? v.incomplete
             : rows == 0             ? "it holds no result"
                                     : told;
  return std::move(v);
}

json candidate_hash_of(std::string_view candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  return {{"problem", problem.portable()},
          {"source", source_hash_of(candidate, problem, limits)},
          {"launch", launch_hash_of(candidate, problem, limits)}};
}

FileJudges check_file_judges() {
  return {{"flashcore.planted/1", verify_planted_file},
          {"flashcore.needles/1", verify_needles_file},
          {"flashcore.fuzz/1", verify_fuzz_file},
          {"flashcore.neighbours/1", verify_neighbours_file},
          {"flashcore.crosscheck/1", verify_crosscheck_file},
          {"flashcore.invert/1", verify_invert_file},
          {"flashcore.tune/1", verify_tune_file},
          {"flashcore.conformance/1", verify_conformance_file}};
}

Verification judge_by_schema(const json& document, const std::string& origin, const FileJudges& judges) {
  const std::string schema = text_in(document, "schema");
  const auto judge = judges.find(schema);
  if (judge == judges.end()) refuse_unjudged(document, origin, judges);
  try {
    return judge->second(document);
  } catch (const json::exception& e) {
    throw_bad_input("'{}' cannot be read as {} ({}): run again what wrote it", origin, schema, e.what());
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    throw_bad_input("'{}' cannot be read as {} ({}): run again what wrote it", origin, schema, e.what());
  }
}

}  // namespace flashcore
