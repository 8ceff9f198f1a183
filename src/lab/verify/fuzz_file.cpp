// Files of `flashcore check --fuzz --json`.

#include "lab/verify/fuzz_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/hash.h"
#include "lab/gates/gates.h"
#include "lab/record/digest.h"
#include "lab/record/freshness.h"
#include "lab/record/json_io.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

struct Counts {
  std::int64_t passed = 0, failed = 0;
  void add(bool has_passed) { ++(has_passed ? passed : failed); }
};
using CountsBy = std::map<std::string, Counts>;

json json_of(const CountsBy& counts) {
  json object = json::object();
  for (const auto& [name, of] : counts) object[name] = {{"passed", of.passed}, {"failed", of.failed}};
  return object;
}

// What the rows come to. Those that the machine could not try count nowhere.
struct Sums {
  Counts all;
  CountsBy by_family, by_kind;

  void add(const PlacedProblem& problem, const std::string& family, Ended ended) {
    if (ended == Ended::kEnvironment) return;
    const bool passed = ended == Ended::kPassed;
    all.add(passed);
    by_family[family].add(passed);
    for (const FuzzKind kind : kinds_of(problem)) by_kind[word_of(kind)].add(passed);
  }
};

// One hash for each family, of what all of its cases are compiled from and how they are launched: a file of thousands
// of rows need not repeat what most of them share.
class SourcesOf {
 public:
  void add(const std::string& candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
    hashers_[candidate.substr(0, candidate.find(':'))]
        .add(source_hash_of(candidate, problem, limits))
        .add(launch_hash_of(candidate, problem, limits));
  }
  std::map<std::string, std::string> hashes() const {
    std::map<std::string, std::string> hashes;
    for (const auto& [family, hasher] : hashers_) hashes[family] = hasher.hex();
    return hashes;
  }

 private:
  std::map<std::string, Hasher> hashers_;
};

json row_json(const FuzzRow& row) {
  json object = {{"index", row.index},
                 {"problem", row.drawn.problem.portable()},
                 {"candidate", row.drawn.candidate.print()},
                 {"pattern", to_string(row.drawn.pattern)},
                 {"data_seed", row.drawn.seed},
                 {"ended", row.ended}};
  if (row.share_of_bound) object["share_of_bound"] = *row.share_of_bound;
  if (!row.message.empty()) object["message"] = row.message;
  return object;
}

std::vector<FuzzKind> kinds_in(const json& document) {
  std::vector<FuzzKind> kinds;
  for (const json& kind : document.at("kinds")) kinds.push_back(parse_word<FuzzKind>(kind.get<std::string>()));
  return kinds;
}

class FuzzAudit {
 public:
  FuzzAudit(JudgedFile& file, const json& document)
      : file_(file),
        limits_(document.at("device").get<DeviceInfo>().limits),
        seed_(document.at("seed").get<std::uint64_t>()),
        families_(families_to_fuzz(limits_, document.at("family").get<std::string>())),
        drawn_(fuzz_limits(limits_, kinds_in(document))) {}

  void run(std::size_t at, const json& row) {
    const auto index = row.at("index").get<std::uint64_t>();
    const std::string name = fmt::format("case {}", index), candidate = text_in(row, "candidate");
    const auto ended = parse_word<Ended>(row.at("ended").get<std::string>());
    const PlacedProblem problem = PlacedProblem::parse(row.at("problem").get<std::string>());
    if (!indices_.insert(index).second) file_.complain("{} is in it twice", name);
    sums.add(problem, candidate.substr(0, candidate.find(':')), ended);
    if (ended == Ended::kEnvironment)
      file_.incomplete(fmt::format("{}: the machine lacked something: {}", name, text_in(row, "message")));
    else if (ended != Ended::kPassed) file_.did_not_pass();
    const json share = part(row, "share_of_bound");
    if (ended == Ended::kPassed && !(share.is_number() && share.get<double>() <= 1))
      file_.complain("{}: it passed, and its error is {} of its bound", name, share.dump());
    const auto again = random_case(seed_, index, families_, limits_, drawn_);
    if (!again || again->problem.portable() != problem.portable() || again->candidate.print() != candidate ||
        to_string(again->pattern) != text_in(row, "pattern") || again->seed != row.at("data_seed").get<std::uint64_t>())
      return file_.stale(at, name, "the fuzzer draws another case of this seed and number now");
    sources_.add(candidate, problem, limits_);
  }

  void compare(const json& document) {
    file_.compare_count("passed", static_cast<std::size_t>(sums.all.passed));
    file_.compare_count("failed", static_cast<std::size_t>(sums.all.failed));
    if (document.at("by_family") != json_of(sums.by_family) || document.at("by_kind") != json_of(sums.by_kind))
      file_.complain("its counts by family and by kind are not those of its rows");
    const auto told = document.at("sources").get<std::map<std::string, std::string>>();
    for (const auto& [family, hash] : sources_.hashes())
      if (const auto found = told.find(family); found == told.end() || found->second != hash)
        file_.stale(file_.rows().size(), family,
                    "what one of its kernels is compiled from, or how it is launched, has changed");
  }

  Sums sums;

 private:
  JudgedFile& file_;
  DeviceLimits limits_;
  std::uint64_t seed_;
  std::vector<const Family*> families_;
  FuzzLimits drawn_;
  std::set<std::uint64_t> indices_;
  SourcesOf sources_;
};

}  // namespace

FuzzRow fuzz_row(std::uint64_t index, const FuzzCase& drawn, const Trial& trial) {
  FuzzRow row{index, drawn, trial.ended, trial.message, std::nullopt, trial.seconds.value_or(TrialSeconds())};
  if (trial.error && trial.bound) row.share_of_bound = share_of_bound(*trial.error, *trial.bound);
  return row;
}

json fuzz_json(const FuzzRun& run) {
  std::vector<const FuzzRow*> rows;
  for (const FuzzRow& row : run.rows) rows.push_back(&row);
  std::ranges::sort(rows, {}, &FuzzRow::index);
  Sums sums;
  SourcesOf sources;
  TrialSeconds seconds;
  json results = json::array(), kinds = json::array();
  for (const FuzzKind kind : run.kinds) kinds.push_back(word_of(kind));
  for (const FuzzRow* row : rows) {
    const std::string candidate = row->drawn.candidate.print();
    sums.add(row->drawn.problem, candidate.substr(0, candidate.find(':')), row->ended);
    sources.add(candidate, row->drawn.problem, run.device.limits);
    seconds += row->seconds;
    results.push_back(row_json(*row));
  }
  return encode_nonfinite({{"schema", "flashcore.fuzz/1"},
                           {kDigest, ""},
                           {"device", run.device},
                           {"measured_at", now_iso8601()},
                           {"seed", run.seed},
                           {"asked", run.asked},
                           {"not_drawn", run.not_drawn},
                           {"family", run.family},
                           {"kinds", kinds},
                           {"passed", sums.all.passed},
                           {"failed", sums.all.failed},
                           {"by_family", json_of(sums.by_family)},
                           {"by_kind", json_of(sums.by_kind)},
                           {"seconds", {{"wall", run.wall_seconds}, {"trials", seconds}}},
                           {"sources", sources.hashes()},
                           {"results", results}});
}

std::string counts_by_kind(const std::vector<FuzzRow>& rows) {
  std::string text;
  for (const auto& entry : WordsOf<FuzzKind>::table) {
    const auto count = std::ranges::count_if(
        rows, [&](const FuzzRow& row) { return std::ranges::count(kinds_of(row.drawn.problem), entry.first) > 0; });
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", entry.second, count);
  }
  return text;
}

Verification verify_fuzz_file(const json& document) {
  JudgedFile file(document);
  FuzzAudit audit(file, document);
  const json& rows = file.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) audit.run(i, rows[i]);
  audit.compare(document);
  const auto asked = document.at("asked").get<std::int64_t>(), not_drawn = document.at("not_drawn").get<std::int64_t>();
  if (asked != not_drawn + std::ssize(rows))
    file.incomplete(
        fmt::format("{} cases were asked for, {} could not be drawn, and it has {}", asked, not_drawn, rows.size()));
  return file.finish(rows.size(), fmt::format("{} of {} passed", audit.sums.all.passed, rows.size()));
}

}  // namespace flashcore
