#include "lab/diagnose/diagnosis_files.h"

#include <algorithm>
#include <map>
#include <set>

#include "lab/diagnose/slow.h"
#include "lab/diagnose/timeline.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

// What was named first is what was planted, and nothing else was said against it.
bool is_named(JudgedFile& file, const json& row) {
  const std::string name = name_of_row(row), planted = row.at("planted").get<std::string>();
  const json& bottlenecks = row.at("bottlenecks");
  for (std::size_t i = 0; i < bottlenecks.size(); ++i) {
    if (bottlenecks[i].at("rank").get<std::size_t>() != i + 1)
      file.complain("{}: its bottleneck {} has the rank {}", name, i + 1, bottlenecks[i].at("rank").dump());
    // Faults by their share, and limits behind them by theirs.
    if (i > 0 && text_in(bottlenecks[i], "kind") == text_in(bottlenecks[i - 1], "kind") &&
        bottlenecks[i].at("share").get<double>() > bottlenecks[i - 1].at("share").get<double>())
      file.complain("{}: {} costs more than {}, which comes before it", name, text_in(bottlenecks[i], "name"),
                    text_in(bottlenecks[i - 1], "name"));
  }
  const bool named = row.at("named").get<bool>();
  const std::string first = bottlenecks.empty() ? "nothing" : text_in(bottlenecks[0], "name");
  if (named && first != planted)
    file.complain("{}: it says that {} was named, and {} comes first", name, planted, first);
  if (named != text_in(row, "why").empty())
    file.complain("{}: it says that {} was {}named, and why not: '{}'", name, planted, named ? "" : "not ",
                  text_in(row, "why"));
  return named;
}

void compare_with_slow_kernels(JudgedFile& file) {
  std::set<std::string> told;
  for (std::size_t i = 0; i < file.rows().size(); ++i) {
    const std::string name = text_in(file.rows()[i], "name"), planted = text_in(file.rows()[i], "planted");
    told.insert(name);
    const auto& corpus = slow_kernels();
    const auto known = std::find_if(corpus.begin(), corpus.end(), [&](const SlowKernel& k) { return k.name == name; });
    if (known == corpus.end()) file.stale(i, name, "the corpus has no such slow kernel now");
    else if (word_of(known->bottleneck) != planted)
      file.stale(i, name, fmt::format("the corpus plants {} in it now, not {}", known->bottleneck, planted));
  }
  for (const SlowKernel& kernel : slow_kernels())
    if (!told.contains(kernel.name) && file.rows().size() > 1)
      file.stale(file.rows().size(), "the file", "it lacks a slow kernel of the corpus: " + kernel.name);
}

struct ActivityTotal {
  double total = 0;
  std::int64_t count = 0;
};
using ActivityTotals = std::map<std::pair<std::string, std::string>, ActivityTotal>;  // by role and activity

ActivityTotals totals_of_tracks(const json& tracks) {
  ActivityTotals totals;
  for (const json& track : tracks)
    for (const json& segment : track.at("segments")) {
      ActivityTotal& of = totals[{track.at("role").get<std::string>(), segment.at(0).get<std::string>()}];
      of.total += segment.at(3).get<double>() - segment.at(2).get<double>();
      ++of.count;
    }
  return totals;
}

class TimelineAudit {
 public:
  TimelineAudit(JudgedFile& file, const json& row) : file_(file), row_(row), name_(name_of_row(row)) {}

  void run(std::size_t index) {
    file_.judge_source(index, name_, row_, text_in(row_, "candidate"), text_in(row_, "problem"));
    if (row_.at("recorded_ctas").get<std::uint64_t>() > row_.at("launched_ctas").get<std::uint64_t>())
      file_.complain("{}: {} CTAs were recorded of {} that were launched", name_, row_.at("recorded_ctas").dump(),
                     row_.at("launched_ctas").dump());
    const double multiplying = row_.at("multiplying_share").get<double>();
    if (!(multiplying >= 0 && multiplying <= 1))
      file_.complain("{}: a share of {:.6g} of its time has a warp that multiplies", name_, multiplying);
    sums();
    distortion();
    if (!row_.at("faults").empty()) file_.did_not_pass();
    if (row_.at("dropped").get<std::uint64_t>() > 0)
      file_.incomplete(fmt::format("{}: {} records found no place", name_, row_.at("dropped").dump()));
    if (row_.at("sums").empty() && row_.at("faults").empty())
      file_.complain("{}: it has no sums, and no fault that would account for that", name_);
  }

 private:
  JudgedFile& file_;
  const json& row_;
  std::string name_;

  void sums() {
    std::map<std::string, double> of_role;
    for (const json& sum : row_.at("sums")) of_role[text_in(sum, "role")] += sum.at("total").get<double>();
    const ActivityTotals totals = totals_of_tracks(row_.at("tracks"));
    if (!totals.empty() && totals.size() != row_.at("sums").size())
      file_.complain("{}: it has {} sums, and its tracks have {}", name_, row_.at("sums").size(), totals.size());
    for (const json& sum : row_.at("sums")) {
      const std::string role = text_in(sum, "role"), activity = text_in(sum, "activity");
      const std::string of = fmt::format("{}: of {}, {}", name_, role, activity);
      const double total = sum.at("total").get<double>();
      file_.compare_number(of + ": the share", sum.at("share").get<double>(), total / of_role.at(role));
      const auto known = totals.find({role, activity});
      if (known == totals.end()) continue;
      file_.compare_number(of + ": the total", total, known->second.total);
      if (sum.at("count").get<std::int64_t>() != known->second.count)
        file_.complain("{} is counted {} times, and its tracks have {}", of, sum.at("count").dump(),
                       known->second.count);
    }
    // Without tracks a sum that was taken out shows in the shares of those that are left.
  }

  void distortion() {
    const json& told = row_.at("distortion");
    if (!told.contains("slowdown")) return;
    const double slowdown = told.at("slowdown").get<double>(), low = told.at("ci95").at(0).get<double>(),
                 high = told.at("ci95").at(1).get<double>();
    if (!(low <= slowdown && slowdown <= high))
      file_.complain("{}: marks that cost {:.4g} of the time, which their interval of {:.4g} to {:.4g} does not hold",
                     name_, slowdown, low, high);
    Distortion d;
    d.comparison = Comparison{};
    d.comparison->speedup = 1 / (1 + slowdown);
    d.comparison->ci95_low = 1 / (1 + high), d.comparison->ci95_high = 1 / (1 + low);
    told.at("plain_us").get_to(d.plain_us), told.at("instrumented_us").get_to(d.instrumented_us);
    if (text_in(told, "sentence") != d.sentence())
      file_.complain("{}: it says '{}' of its marks, and their times give '{}'", name_, text_in(told, "sentence"),
                     d.sentence());
  }
};

}  // namespace

Verification verify_profile_planted_file(const json& document) {
  JudgedFile file(document);
  std::size_t named = 0;
  for (const json& row : file.rows()) named += is_named(file, row);
  const std::size_t others = file.rows().size() - named;
  file.compare_count("named", named);
  const auto missed = document.at("missed").get<std::size_t>(), lacking = document.at("lacking").get<std::size_t>();
  if (missed + lacking != others)
    file.complain("it counts {} missed and {} not tried, and {} of its rows were not named", missed, lacking, others);
  file.expect_distinct("name");
  compare_with_slow_kernels(file);
  file.judge_all_sources(text_in(document, "source_hash"));
  if (others > 0) file.did_not_pass();
  return file.finish(
      file.rows().size(),
      fmt::format("it is of the present sources, and {} of {} slow kernels were named by their bottleneck", named,
                  file.rows().size()));
}

Verification verify_timeline_file(const json& document) {
  JudgedFile file(document);
  std::size_t index = 0;
  for (const json& row : file.rows()) TimelineAudit(file, row).run(index++);
  return file.finish(index, "its shares follow from its sums, and it is of the present source");
}

FileJudges diagnosis_file_judges() {
  return {{"flashcore.profile-planted/1", verify_profile_planted_file}, {kTimelineSchema, verify_timeline_file}};
}

}  // namespace flashcore
