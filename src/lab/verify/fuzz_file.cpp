// Files of `flashcore check --fuzz --json`.

#include "lab/verify/fuzz_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/json_number.h"
#include "lab/gates/gates.h"
#include "lab/record/digest.h"
#include "lab/record/json_io.h"
#include "lab/verify/by_family.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

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
        document_(document),
        limits_(file.device_of_run().limits),
        seed_(whole_in<std::uint64_t>(document, "seed")),
        asked_(whole_in<std::int64_t>(document, "asked")),
        not_drawn_(whole_in<std::int64_t>(document, "not_drawn")),
        families_(families_to_fuzz(limits_, document.at("family").get<std::string>())),
        drawn_(fuzz_limits(limits_, kinds_in(document))) {
    if (asked_ < 1 || asked_ > kMostFuzzCases)
      throw_bad_input("'asked' is {}, and a run has 1 to {} cases", asked_, kMostFuzzCases);
    const json& seconds = document.at("seconds");
    for (const double each : {seconds.at("wall").get<double>(), seconds.at("trials").at("device").get<double>(),
                              seconds.at("trials").at("host").get<double>()})
      if (!(each >= 0)) file_.complain("it took {} seconds", each);
    expect_sessions();
  }

  void run(std::size_t at, const json& row) {
    const auto index = whole_in<std::int64_t>(row, "index");
    const std::string name = fmt::format("case {}", index), candidate = text_in(row, "candidate"),
                      message = text_in(row, "message");
    const auto ended = parse_word<Ended>(row.at("ended").get<std::string>());
    const PlacedProblem problem = PlacedProblem::parse(row.at("problem").get<std::string>());
    if (index < 0 || index >= asked_) file_.complain("{}: {} were asked for", name, asked_);
    if (!cases_.try_emplace(index, Case{problem, candidate}).second) file_.complain("{} is in it twice", name);
    sums_.add(problem, family_of(candidate), ended);
    if (ended == Ended::kEnvironment)
      file_.incomplete(fmt::format("{}: the machine lacked something: {}", name, message));
    else if (ended != Ended::kPassed) file_.did_not_pass();
    const json share = part(row, "share_of_bound");
    if (ended == Ended::kPassed && !(share.is_number() && share.get<double>() >= 0 && share.get<double>() <= 1))
      file_.complain("{}: it passed, and its error is {} of its bound", name, share.dump());
    if (ended == Ended::kPassed && !message.empty())
      file_.complain("{}: it passed, and says '{}'", name, excerpt(message));
    if (const auto again = draw(index); again && is_row_of(row, *again)) return;
    redrawn_.insert(family_of(candidate));
    file_.stale(at, name, "the fuzzer draws another case of this seed and number now");
  }

  void finish() {
    file_.compare_count("passed", static_cast<std::size_t>(sums_.all.passed));
    file_.compare_count("failed", static_cast<std::size_t>(sums_.all.failed));
    if (document_.at("by_family") != json_of(sums_.by_family) || document_.at("by_kind") != json_of(sums_.by_kind))
      file_.complain("its counts by family and by kind are not those of its rows");
    FamilySources sources;
    for (const auto& [index, each] : cases_) sources.add(each.candidate, each.problem, limits_);
    sources.compare(file_, redrawn_);
    if (document_.value("interrupted", false)) return;  // told already, and it may lack any
    std::int64_t undrawable = 0;
    for (std::int64_t index = 0; index < asked_; ++index) {
      if (cases_.contains(index)) continue;
      if (draw(index)) return file_.incomplete(fmt::format("case {} of {} is not in it", index, asked_));
      ++undrawable;
    }
    if (undrawable != not_drawn_)
      file_.complain("it says that {} cases could not be drawn, and those are {}", not_drawn_, undrawable);
  }

  const Sums& sums() const { return sums_; }

 private:
  struct Case {
    PlacedProblem problem;
    std::string candidate;
  };

  JudgedFile& file_;
  const json& document_;
  DeviceLimits limits_;
  std::uint64_t seed_;
  std::int64_t asked_, not_drawn_;
  std::vector<const Family*> families_;
  FuzzLimits drawn_;
  Sums sums_;
  std::map<std::int64_t, Case> cases_;
  std::set<std::string> redrawn_;  // families of which a case is drawn otherwise now

  // The last one wrote the file, and each row is of one of them.
  void expect_sessions() {
    const std::vector<FuzzSession> sessions = sessions_of(document_);
    std::int64_t tried = 0;
    for (const FuzzSession& each : sessions) {
      tried += each.cases;
      if (each.cases < 0) file_.complain("a session of it tried {} cases", each.cases);
    }
    if (sessions.empty() || sessions.back().measured_at != text_in(document_, "measured_at"))
      file_.complain("its last session is not of the time at which it was measured");
    if (tried < static_cast<std::int64_t>(file_.rows().size()))
      file_.complain("its sessions tried {} cases, and it has {}", tried, file_.rows().size());
  }

  std::optional<FuzzCase> draw(std::int64_t index) const {
    return random_case(seed_, static_cast<std::uint64_t>(index), families_, limits_, drawn_);
  }
};

}  // namespace

FuzzRow fuzz_row(std::uint64_t index, const FuzzCase& drawn, const Trial& trial) {
  FuzzRow row{index, drawn, trial.ended, trial.message, std::nullopt, trial.seconds.value_or(TrialSeconds())};
  if (trial.error && trial.bound) row.share_of_bound = share_of_bound(*trial.error, *trial.bound);
  return row;
}

bool is_row_of(const json& row, const FuzzCase& drawn) {
  return drawn.problem.portable() == PlacedProblem::parse(row.at("problem").get<std::string>()).portable() &&
         drawn.candidate.print() == text_in(row, "candidate") && to_string(drawn.pattern) == text_in(row, "pattern") &&
         drawn.seed == whole_in<std::uint64_t>(row, "data_seed");
}

std::vector<FuzzSession> sessions_of(const json& document) {
  const json of_all = {{"measured_at", text_in(document, "measured_at")},
                       {"cases", document.at("results").size()},
                       {"seconds", document.at("seconds")}};
  const json told = document.value("sessions", json::array({of_all}));
  if (!told.is_array()) throw_bad_input("\"sessions\" is {}, and no list", excerpt(told.dump(), 40));
  std::vector<FuzzSession> sessions;
  for (const json& each : told)
    sessions.push_back({text_in(each, "measured_at"), whole_in<std::int64_t>(each, "cases"),
                        each.at("seconds").at("wall").get<double>(),
                        each.at("seconds").at("trials").get<TrialSeconds>()});
  return sessions;
}

json fuzz_json(const FuzzRun& run) {
  std::vector<const FuzzRow*> rows;
  for (const FuzzRow& row : run.rows) rows.push_back(&row);
  std::ranges::sort(rows, {}, &FuzzRow::index);
  Sums sums;
  FamilySources sources;
  TrialSeconds seconds;
  double wall = 0;
  json results = json::array(), kinds = json::array(), sessions = json::array();
  for (const FuzzKind kind : run.kinds) kinds.push_back(word_of(kind));
  for (const FuzzRow* row : rows) {
    sums.add(row->drawn.problem, row->drawn.candidate.family->name(), row->ended);
    sources.add(row->drawn.candidate.print(), row->drawn.problem, run.device.limits);
    results.push_back(row_json(*row));
  }
  for (const FuzzSession& each : run.sessions) {
    seconds += each.seconds, wall += each.wall_seconds;
    sessions.push_back({{"measured_at", each.measured_at},
                        {"cases", each.cases},
                        {"seconds", {{"wall", each.wall_seconds}, {"trials", each.seconds}}}});
  }
  return encode_nonfinite({{"schema", kFuzzSchema},
                           {kDigest, ""},
                           {"device", run.device},
                           {"measured_at", run.sessions.empty() ? now_iso8601() : run.sessions.back().measured_at},
                           {"seed", run.seed},
                           {"asked", run.asked},
                           {"not_drawn", run.not_drawn},
                           {"family", run.family},
                           {"kinds", kinds},
                           {"passed", sums.all.passed},
                           {"failed", sums.all.failed},
                           {"by_family", json_of(sums.by_family)},
                           {"by_kind", json_of(sums.by_kind)},
                           {"seconds", {{"wall", wall}, {"trials", seconds}}},
                           {"sessions", sessions},
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
  audit.finish();
  return file.finish(rows.size(), fmt::format("{} of {} passed", audit.sums().all.passed, rows.size()));
}

}  // namespace flashcore
