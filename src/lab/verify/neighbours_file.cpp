// Files of `flashcore check --neighbours --json`.

#include "lab/verify/neighbours_file.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/record/digest.h"
#include "lab/record/json_io.h"
#include "lab/verify/by_family.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Numbers of neighbourhoods count from 1: the sequence alone is 0.
json batch_json(const Neighbourhood& n) {
  json sequences = json::array();
  for (const SequenceLengths& each : n.sequences) sequences.push_back({each.q, each.kv});
  return {{"problem", n.problem.portable()}, {"place", n.place}, {"padded", n.is_padded}, {"sequences", sequences}};
}

// What (seed, index) names, and the candidate that it is judged of.
json drawn_json(const NeighbourCase& drawn, const DeviceInfo& device, const std::string& pinned) {
  const Neighbourhood& alone = drawn.neighbourhoods.front();
  json batches = json::array();
  for (std::size_t i = 1; i < drawn.neighbourhoods.size(); ++i) batches.push_back(batch_json(drawn.neighbourhoods[i]));
  return {{"candidate", neighbour_candidate(alone.problem, device, pinned).print()},
          {"alone", alone.problem.portable()},
          {"rows", drawn.lengths.q},
          {"keys", drawn.lengths.kv},
          {"data_seed", drawn.seed},
          {"batches", batches}};
}

// Each batch, for the size of its pages, its layout and its bounds may be compiled into a kernel.
void add_sources(FamilySources& sources, const NeighbourCase& drawn, const DeviceInfo& device,
                 const std::string& pinned) {
  for (const Neighbourhood& n : drawn.neighbourhoods)
    sources.add(neighbour_candidate(n.problem, device, pinned).print(), n.problem, device.limits);
}

// Of neighbourhoods.
struct Sums {
  Counts all;
  CountsBy by_family;

  void add(const std::string& family, std::int64_t compared, std::int64_t different) {
    for (Counts* counts : {&all, &by_family[family]})
      counts->passed += compared - different, counts->failed += different;
  }
};

class NeighboursAudit {
 public:
  NeighboursAudit(JudgedFile& file, const json& document)
      : file_(file),
        document_(document),
        device_(file.device_of_run()),
        seed_(whole_in<std::uint64_t>(document, "seed")),
        asked_(whole_in<std::int64_t>(document, "asked")),
        not_drawn_(whole_in<std::int64_t>(document, "not_drawn")),
        pinned_(document.at("candidate").get<std::string>()) {
    if (asked_ < 1 || asked_ > kMostNeighbourhoods)
      throw_bad_input("'asked' is {}, and a run has 1 to {} neighbourhoods", asked_, kMostNeighbourhoods);
    if (const double wall = document.at("seconds").at("wall").get<double>(); !(wall >= 0))
      file_.complain("it took {} seconds", wall);
  }

  void run(std::size_t at, const json& row) {
    const auto index = whole_in<std::int64_t>(row, "index");
    const std::string name = fmt::format("case {}", index), candidate = row.at("candidate").get<std::string>(),
                      family = family_of(candidate), lacking = text_in(row, "lacking");
    if (index < 0 || index >= neighbour_cases(asked_))
      return file_.complain("{}: {} were asked for", name, neighbour_cases(asked_));
    const auto [found, is_new] = cases_.try_emplace(index);
    if (!is_new) return file_.complain("{} is in it twice", name);
    count(name, row, family, lacking);
    auto again = draw(index);
    const bool is_same = again && is_part(drawn_json(*again, device_, pinned_), row);
    found->second = {std::move(again), candidate, PlacedProblem::parse(row.at("alone").get<std::string>()), is_same};
    if (is_same) return;
    redrawn_.insert(family);
    file_.stale(at, name, "other batches, or another candidate, are drawn of this seed and number now");
  }

  void finish() {
    file_.compare_count("passed", static_cast<std::size_t>(sums_.all.passed));
    file_.compare_count("failed", static_cast<std::size_t>(sums_.all.failed));
    if (document_.at("by_family") != json_of(sums_.by_family))
      file_.complain("its counts by family are not those of its rows");
    compare_sources();
    if (document_.value("interrupted", false)) return;  // told already, and it may lack any
    std::int64_t undrawable = 0;
    for (std::int64_t index = 0; index < neighbour_cases(asked_); ++index) {
      if (cases_.contains(index)) continue;
      if (draw(index))
        return file_.incomplete(fmt::format("case {} of {} is not in it", index, neighbour_cases(asked_)));
      undrawable += neighbourhoods_of_case(index, asked_);
    }
    if (undrawable != not_drawn_)
      file_.complain("it says that {} neighbourhoods could not be drawn, and those are {}", not_drawn_, undrawable);
  }

  const Sums& sums() const { return sums_; }

 private:
  struct Case {
    std::optional<NeighbourCase> again;
    std::string candidate;
    PlacedProblem alone;
    bool is_same = false;
  };

  JudgedFile& file_;
  const json& document_;
  DeviceInfo device_;
  std::uint64_t seed_;
  std::int64_t asked_, not_drawn_;
  std::string pinned_;
  Sums sums_;
  std::map<std::int64_t, Case> cases_;
  std::set<std::string> redrawn_;  // families of which a case is drawn otherwise now

  std::optional<NeighbourCase> draw(std::int64_t index) const {
    return random_neighbours(seed_, static_cast<std::uint64_t>(index), neighbourhoods_of_case(index, asked_), device_,
                             pinned_);
  }

  static bool is_part(const json& drawn, const json& row) {
    for (const auto& [key, value] : drawn.items())
      if (part(row, key.c_str()) != value) return false;
    return true;
  }

  void count(const std::string& name, const json& row, const std::string& family, const std::string& lacking) {
    const auto batches = static_cast<std::int64_t>(row.at("batches").size());
    const auto compared = whole_in<std::int64_t>(row, "compared");
    const json& different = row.at("different");
    std::set<std::int64_t> which;
    for (const json& each : different) {
      const auto batch = whole_in<std::int64_t>(each, "batch");
      if (batch < 1 || batch > batches || !which.insert(batch).second || text_in(each, "why").empty())
        file_.complain("{}: it names batch {} as different, of {}, '{}'", name, batch, batches,
                       excerpt(text_in(each, "why")));
    }
    if (compared < 0 || compared > batches || (compared < batches && lacking.empty()) ||
        static_cast<std::int64_t>(different.size()) > compared)
      file_.complain("{}: it compared {} of {} batches, and {} were different", name, compared, batches,
                     different.size());
    if (!lacking.empty()) file_.incomplete(fmt::format("{}: the machine lacked something: {}", name, excerpt(lacking)));
    if (!different.empty()) file_.did_not_pass();
    sums_.add(family, compared, static_cast<std::int64_t>(different.size()));
  }

  void compare_sources() {
    FamilySources sources;
    for (const auto& [index, each] : cases_)
      if (each.is_same) add_sources(sources, *each.again, device_, pinned_);
      else sources.add(each.candidate, each.alone, device_.limits);  // its hash is not compared
    sources.compare(file_, redrawn_);
  }
};

json row_json(const NeighbourRow& row, const DeviceInfo& device, const std::string& pinned) {
  json object = drawn_json(row.drawn, device, pinned), different = json::array();
  for (const auto& [batch, why] : row.verdict.different) different.push_back({{"batch", batch}, {"why", why}});
  object["index"] = row.index;
  object["compared"] = row.verdict.compared;
  object["different"] = different;
  if (!row.verdict.lacking.empty()) object["lacking"] = row.verdict.lacking;
  return object;
}

}  // namespace

std::int64_t neighbour_cases(std::int64_t asked) {
  return (asked + kNeighboursOfOneSequence - 1) / kNeighboursOfOneSequence;
}

int neighbourhoods_of_case(std::int64_t index, std::int64_t asked) {
  return static_cast<int>(std::min(kNeighboursOfOneSequence, asked - index * kNeighboursOfOneSequence));
}

json neighbours_json(const NeighbourRun& run) {
  Sums sums;
  FamilySources sources;
  json results = json::array();
  for (const NeighbourRow& row : run.rows) {
    results.push_back(row_json(row, run.device, run.candidate));
    sums.add(family_of(results.back().at("candidate").get<std::string>()), row.verdict.compared,
             static_cast<std::int64_t>(row.verdict.different.size()));
    add_sources(sources, row.drawn, run.device, run.candidate);
  }
  return encode_nonfinite({{"schema", "flashcore.neighbours/1"},
                           {kDigest, ""},
                           {"device", run.device},
                           {"measured_at", now_iso8601()},
                           {"seed", run.seed},
                           {"asked", run.asked},
                           {"not_drawn", run.not_drawn},
                           {"candidate", run.candidate},
                           {"passed", sums.all.passed},
                           {"failed", sums.all.failed},
                           {"by_family", json_of(sums.by_family)},
                           {"seconds", {{"wall", run.wall_seconds}}},
                           {"sources", sources.hashes()},
                           {"results", results}});
}

Verification verify_neighbours_file(const json& document) {
  JudgedFile file(document);
  NeighboursAudit audit(file, document);
  const json& rows = file.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) audit.run(i, rows[i]);
  audit.finish();
  const Counts& all = audit.sums().all;
  return file.finish(rows.size(),
                     fmt::format("equal bits in {} of {} neighbourhoods", all.passed, all.passed + all.failed));
}

}  // namespace flashcore
