#include "cli/tune_replay.h"

#include "cli/arguments.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "lab/record/freshness.h"
#include "lab/statistics/statistics.h"
#include "lab/tune/landscape.h"

namespace flashcore::cli {

namespace {

constexpr int kSeeds = 25;

struct Summary {
  double median_regret, worst_regret, half_way;  // half_way: regret of the incumbent after half of the budget
};

Summary summarise(const Landscape& landscape, const std::string& strategy, int budget) {
  std::vector<double> regrets, half_way;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    ReplayOptions options;
    options.strategy = strategy;
    options.budget = budget;
    options.seed = static_cast<std::uint64_t>(seed);
    const Replay run = replay(landscape, options);
    regrets.push_back(run.regret(landscape));
    half_way.push_back(run.best_so_far[run.best_so_far.size() / 2] / landscape.best_us() - 1);
  }
  return {median(regrets), quantile(regrets, 1), median(half_way)};
}

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

}  // namespace

int replay_landscapes(const Common& common, const std::string& file, int budget) {
  check_json_target(common);
  require_distinct({{"--json", common.json}}, {{"--replay", file}});
  Console console(common.quiet, json_on_stdout(common));
  const auto landscapes = parse_landscapes(parse_json(read_file(file), file), file);
  Table table({"landscape", "points", "best us", "strategy", "trials", "regret (median)", "(worst)", "after half"});
  nlohmann::json results = nlohmann::json::array();
  for (const Landscape& l : landscapes) {
    const int trials = std::min(budget, static_cast<int>(l.points.size()));
    for (const char* strategy : {"evolution", "random"}) {
      const Summary s = summarise(l, strategy, trials);
      table.add({l.problem_id + " " + l.family, std::to_string(l.points.size()), fmt::format("{:.2f}", l.best_us()),
                 strategy, std::to_string(trials), percent(s.median_regret), percent(s.worst_regret),
                 percent(s.half_way)});
      results.push_back({{"problem", l.problem_id},
                         {"family", l.family},
                         {"device", l.device_key},
                         {"strategy", strategy},
                         {"trials", trials},
                         {"seeds", kSeeds},
                         {"median_regret", s.median_regret},
                         {"worst_regret", s.worst_regret},
                         {"half_way_regret", s.half_way}});
    }
  }
  console.table(table);
  write_json(common, {{"schema", "flashcore.replay/1"}, {"results", results}});
  console.summary("{} replayed with {} seeds each; regret: how much slower than the best point what was found is",
                  plural(static_cast<std::int64_t>(landscapes.size()), "landscape"), kSeeds);
  return kDone;
}

void record_landscapes(const std::string& file, const Store& store, const TuneOptions& options, Console& console) {
  const DeviceInfo device = describe_device(options.device);
  std::vector<Trial> trials;
  for (const NamedProblem& named : options.suite.problems) {
    TrialQuery query;
    query.problem_id = named.problem.id();
    query.device_key = device.key;
    query.family = options.family;
    std::vector<std::string> damaged;  // the run has named them
    for (Trial& t : store.query(query, &damaged))
      if (is_current(t)) trials.push_back(std::move(t));
  }
  const auto landscapes = landscapes_of(trials, device.limits);
  if (landscapes.empty()) {
    console.summary("nothing recorded: no family has two timed configs on these problems");
    return;
  }
  write_file_atomically(file, landscapes_json(landscapes).dump() + "\n");
  std::size_t points = 0;
  for (const Landscape& l : landscapes) points += l.points.size();
  console.summary("{} with {} recorded in {}", plural(static_cast<std::int64_t>(landscapes.size()), "landscape"),
                  plural(static_cast<std::int64_t>(points), "point"), file);
}

}  // namespace flashcore::cli
