// flashcore leaderboard: best per problem and device, from held-out trials.

#include "lab/record/leaderboard.h"

#include "cli/common.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "kernels/source_hash.h"

namespace flashcore::cli {

namespace {

std::string interval_of(const Trial& trial) {
  if (!trial.comparison) return "-";
  const Comparison& c = *trial.comparison;
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", c.speedup, c.ci95_low, c.ci95_high);
}

void add_row(Table& table, const LeaderboardRow& row, std::size_t place) {
  const Trial& trial = row.standing[place];
  const bool first = place == 0;
  const Timing& t = *trial.timing;
  table.add({first ? row.device_key : "",
             first ? (row.problem_name.empty() ? row.problem_id : row.problem_name) : "",
             first ? std::string("1") : std::string("1 tie"),
             fmt::format("{:.2f}", t.p50_us),
             fmt::format("{:.2f}..{:.2f}", t.p10_us, t.p90_us),
             fmt::format("{:.2f}", t.floor_us),
             fmt::format("{:.3f}", trial.problem.flops() / t.p50_us * 1e-6),
             interval_of(trial),
             {row.stale ? "STALE" : "fresh", row.stale ? Tone::kWarn : Tone::kGood},
             trial.candidate()});
}

nlohmann::json row_json(const LeaderboardRow& row) {
  nlohmann::json standing = nlohmann::json::array();
  for (const Trial& trial : row.standing) {
    nlohmann::json entry = {
        {"candidate", trial.candidate()}, {"trial", trial.id}, {"run", trial.run}, {"source_hash", trial.source_hash}};
    if (trial.timing)
      entry["time_us"] = {{"p10", trial.timing->p10_us}, {"p50", trial.timing->p50_us}, {"p90", trial.timing->p90_us}};
    if (trial.comparison)
      entry["speedup"] = {{"against", trial.comparison->against},
                          {"estimate", trial.comparison->speedup},
                          {"ci95", {trial.comparison->ci95_low, trial.comparison->ci95_high}}};
    standing.push_back(std::move(entry));
  }
  return {{"device", row.device_key}, {"problem", row.problem_id}, {"name", row.problem_name},
          {"ties", row.ties},         {"stale", row.stale},        {"standing", standing}};
}

int show(const Common& common, const std::string& device_key) {
  check_json_target(common);
  Console console(common.quiet, json_on_stdout(common));
  TrialQuery query;
  if (!common.family.empty()) query.family = family_by_name(common.family).name();
  std::vector<LeaderboardRow> rows = leaderboard(stored_trials(common.store, query), is_current);
  std::erase_if(rows, [&](const LeaderboardRow& row) {
    const bool other_problem =
        !common.problem.empty() && row.problem_id != common.problem && row.problem_name != common.problem;
    return other_problem || !row.device_key.starts_with(device_key);
  });
  Table table({"device", "problem", "place", "p50 us", "p10..p90", "floor us", "TFLOP/s", "speed-up [95%]", "source",
               "candidate"});
  nlohmann::json results = nlohmann::json::array();
  int stale = 0;
  for (const LeaderboardRow& row : rows) {
    for (std::size_t place = 0; place <= static_cast<std::size_t>(row.ties) && place < row.standing.size(); ++place) {
      if (row.standing[place].timing) add_row(table, row, place);
    }
    stale += row.stale ? 1 : 0;
    results.push_back(row_json(row));
  }
  console.table(table);
  write_json(common, {{"schema", "flashcore.leaderboard/1"}, {"source_hash", source_hash()}, {"results", results}});
  console.summary("{} with a held-out winner, {} stale", plural(static_cast<std::int64_t>(rows.size()), "problem"),
                  stale);
  if (rows.empty()) return kNotJudged;
  return kDone;
}

}  // namespace

Run add_leaderboard(CLI::App& app) {
  auto common = std::make_shared<Common>();
  auto device_key = std::make_shared<std::string>();
  add_common(app, *common, kProblem | kFamily | kStore | kJson);
  app.add_option("--device", *device_key,
                 "only devices whose key begins so, as h200 or cpu (not opened: a board is read anywhere)")
      ->type_name("KEY");
  add_examples(app, {"leaderboard", "leaderboard --store .flashcore/trials.db --json leaderboard.json"});
  return [common, device_key] { return show(*common, *device_key); };
}

}  // namespace flashcore::cli
