#include "lab/report/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lab/record/leaderboard.h"
#include "lab/report/funnel.h"
#include "lab/report/text.h"
#include "lab/statistics/statistics.h"
#include "lab/tune/facts.h"

namespace flashcore::report {
namespace {

template <class T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// A time belongs only to a candidate that passed correctness, its timed outputs included.
bool timed_and_correct(const Trial& trial) {
  return is_ranked(trial) && trial.timing->p50_us > 0 && !stopped_by_gate(trial);
}

// --- header ---------------------------------------------------------------------------------------------------------

void widen(double& low, double& high, double value) {
  if (value <= 0) return;
  low = low == 0 ? value : std::min(low, value);
  high = std::max(high, value);
}

void observe(DeviceSummary& device, const Trial& trial) {
  widen(device.clock_low_mhz, device.clock_high_mhz, trial.environment.clock_sm_mhz);
  device.power_high_w = std::max(device.power_high_w, trial.environment.power_w);
  device.temperature_high_c = std::max(device.temperature_high_c, trial.environment.temperature_c);
  if (!trial.environment.throttle_reasons.empty())
    add_once(device.throttle_reasons, trial.environment.throttle_reasons);
  for (const double load : {trial.machine.load_before, trial.machine.load_after}) {
    if (load < 0) continue;
    device.load_low = device.load_low < 0 ? load : std::min(device.load_low, load);
    device.load_high = std::max(device.load_high, load);
    device.cores = std::max(device.cores, trial.machine.cores);
  }
  for (const Verdict& verdict : trial.gates) {
    if (!verdict.evidence.is_object() || !verdict.evidence.contains("ceilings")) continue;
    try {
      device.ceilings = verdict.evidence.at("ceilings").get<Ceilings>();
    } catch (const nlohmann::json::exception&) {  // damaged: another trial's draw the roofs, or there are none
    }
  }
}

DeviceSummary& device_of(Model& model, const Trial& trial) {
  for (DeviceSummary& device : model.devices) {
    if (device.info.key == trial.device.key) return device;
  }
  model.devices.push_back({});
  model.devices.back().info = trial.device;
  return model.devices.back();
}

void fill_header(Model& model, const std::vector<Trial>& trials) {
  std::set<std::string> candidates;
  for (const Trial& trial : trials) {
    observe(device_of(model, trial), trial);
    if (!trial.suite.empty()) add_once(model.suites, trial.suite);
    if (trial.timing) {
      add_once(model.conditions,
               fmt::format("{}, {}", to_string(trial.timing->regime), to_string(trial.timing->condition)));
    }
    if (model.first_at.empty() || trial.created_at < model.first_at) model.first_at = trial.created_at;
    model.last_at = std::max(model.last_at, trial.created_at);
    candidates.insert(trial.device.key + " " + trial.problem.id() + " " + trial.candidate());
    if (stopped_by_gate(trial)) ++model.stopped_by_gate;
  }
  model.trials = static_cast<int>(trials.size());
  model.candidates = static_cast<int>(candidates.size());
}

// --- rows -----------------------------------------------------------------------------------------------------------

// The fastest of those of one phase group that are current; older ones only if there is no other.
const Trial* fastest(const std::vector<const Trial*>& trials, std::initializer_list<Phase> phases,
                     const IsCurrent& is_current) {
  const Trial* best = nullptr;
  const auto better = [&](const Trial& a, const Trial& b) {
    const bool a_current = is_current(a), b_current = is_current(b);
    return a_current != b_current ? a_current : a.timing->p50_us < b.timing->p50_us;
  };
  for (const Trial* trial : trials) {
    if (!timed_and_correct(*trial) || std::find(phases.begin(), phases.end(), trial->phase) == phases.end()) continue;
    if (best == nullptr || better(*trial, *best)) best = trial;
  }
  return best;
}

// By the rule of tune: a challenger must beat the default, corrected for how many tried; leading the board is not
// enough.
std::optional<Trial> held_out_winner(const std::vector<Trial>& standing) {
  std::string baseline;
  for (const Trial& trial : standing) {
    if (trial.comparison && baseline.empty()) baseline = trial.comparison->against;
  }
  if (baseline.empty() && !standing.empty()) baseline = standing.front().candidate();
  std::optional<Trial> winner = choose_winner(standing, baseline);
  if (!winner || !timed_and_correct(*winner)) return std::nullopt;
  return winner;
}

void fill_winner(ProblemRow& row, const std::vector<const Trial*>& trials, const LeaderboardRow* standing,
                 const IsCurrent& is_current) {
  const std::optional<Trial> held_out = standing == nullptr ? std::nullopt : held_out_winner(standing->standing);
  if (held_out) {
    row.winner = held_out;
    row.ties = standing->ties;
    row.basis = Basis::kHoldout;
  } else if (const Trial* bench = fastest(trials, {Phase::kBench}, is_current)) {
    row.winner = *bench;
    row.basis = Basis::kBench;
  } else if (const Trial* found = fastest(trials, {Phase::kDefault, Phase::kSearch}, is_current)) {
    row.winner = *found;
    row.basis = Basis::kDiscovery;
  }
  row.stale = row.winner && !is_current(*row.winner);
}

// The config that tuning measured its finalists against: the default of the most preferred family that worked, not of
// every family. Held-out trials name it; before there are any, it is the first default that was timed.
std::string default_candidate(const ProblemRow& row, const std::vector<const Trial*>& trials) {
  std::string first;
  for (const Trial* trial : trials) {
    if (trial->phase != Phase::kDefault || !timed_and_correct(*trial)) continue;
    const std::string candidate = trial->candidate();
    const bool named =
        row.winner && candidate == (row.winner->comparison ? row.winner->comparison->against : row.winner->candidate());
    if (named) return candidate;
    if (first.empty()) first = candidate;
  }
  return first;
}

// The default's time: held out if it was measured again, the latest.
void choose_baseline(ProblemRow& row, const std::vector<const Trial*>& trials) {
  const std::string wanted = default_candidate(row, trials);
  if (wanted.empty()) return;
  for (const Trial* trial : trials) {
    if (trial->candidate() != wanted || !timed_and_correct(*trial)) continue;
    if (trial->phase == Phase::kHoldout ||
        (trial->phase == Phase::kDefault && !(row.baseline && row.baseline->phase == Phase::kHoldout))) {
      row.baseline = *trial;
    }
  }
}

// Winner against the default, as raced; else against whatever it was raced with in its own trial.
void choose_speedup(ProblemRow& row, const std::vector<const Trial*>& trials) {
  if (!row.winner) return;
  row.default_won = row.baseline && row.baseline->candidate() == row.winner->candidate();
  if (row.default_won) return;
  if (row.winner->comparison) row.speedup = row.winner->comparison;
  if (!row.baseline) return;
  const std::string wanted = row.baseline->candidate();
  if (row.speedup && row.speedup->against == wanted) return;
  for (const Trial* trial : trials) {
    if (trial->phase == row.winner->phase && trial->candidate() == row.winner->candidate() && trial->comparison &&
        trial->comparison->against == wanted && trial->source_hash == row.winner->source_hash) {
      row.speedup = trial->comparison;
    }
  }
}

std::string why_no_winner(const std::vector<const Trial*>& trials) {
  std::vector<Trial> copies;
  for (const Trial* trial : trials) copies.push_back(*trial);
  const std::vector<RejectedGroup> groups = group_rejected(copies);
  if (groups.empty()) return "no candidate was timed";
  return fmt::format("no candidate passed; {} ended at {}: {}", groups.front().count, groups.front().gate,
                     groups.front().reason);
}

ProblemRow make_row(const std::vector<const Trial*>& trials, const std::vector<LeaderboardRow>& board,
                    const IsCurrent& is_current) {
  const Trial& any = *trials.back();
  ProblemRow row;
  row.device_key = any.device.key;
  row.device_name = any.device.name;
  row.problem = any.problem;
  row.problem_id = any.problem.id();
  row.name = any.problem_name.empty() ? row.problem_id : any.problem_name;
  row.suite = any.suite;
  const auto standing = std::find_if(board.begin(), board.end(), [&](const LeaderboardRow& each) {
    return each.device_key == row.device_key && each.problem_id == row.problem_id;
  });
  fill_winner(row, trials, standing == board.end() ? nullptr : &*standing, is_current);
  choose_baseline(row, trials);
  choose_speedup(row, trials);
  row.funnel = make_funnel(trials);
  if (!row.winner) row.no_winner_reason = why_no_winner(trials);
  return row;
}

void fill_rows(Model& model, const std::vector<Trial>& trials, const IsCurrent& is_current) {
  std::vector<std::pair<std::string, std::vector<const Trial*>>> groups;
  std::map<std::string, std::size_t> where;
  for (const Trial& trial : trials) {
    const std::string key = trial.device.key + " " + trial.problem.id();
    const auto [at, fresh] = where.emplace(key, groups.size());
    if (fresh) groups.push_back({key, {}});
    groups[at->second].second.push_back(&trial);
  }
  const std::vector<LeaderboardRow> board = leaderboard(trials, is_current);
  for (const auto& [key, group] : groups) {
    ProblemRow row = make_row(group, board, is_current);
    row.label = model.devices.size() > 1 ? fmt::format("{} · {}", row.name, row.device_key) : row.name;
    model.any_stale = model.any_stale || row.stale;
    model.rows.push_back(std::move(row));
  }
}

void fill_noise(Model& model) {
  for (DeviceSummary& device : model.devices) {
    std::vector<double> known;
    for (const ProblemRow& row : model.rows) {
      if (row.device_key != device.info.key || !row.winner) continue;
      if (const double of_row = noise(*row.winner->timing); std::isfinite(of_row)) known.push_back(of_row);
    }
    if (!known.empty()) device.noise = median(known);
  }
}

std::optional<double> geomean_over_default(const std::vector<ProblemRow>& rows) {
  std::vector<double> speedups;
  for (const ProblemRow& row : rows) {
    if (row.stale || row.basis != Basis::kHoldout) continue;
    if (row.default_won) speedups.push_back(1);
    if (row.speedup && row.baseline && row.speedup->against == row.baseline->candidate())
      speedups.push_back(row.speedup->speedup);
  }
  if (speedups.empty()) return std::nullopt;
  return geometric_mean(speedups);
}

}  // namespace

Model make_model(const std::vector<Trial>& trials, const IsCurrent& is_current) {
  Model model;
  fill_header(model, trials);
  fill_rows(model, trials, is_current);
  fill_noise(model);
  model.rejected = group_rejected(trials);
  model.accounts = accounts_of(trials);
  model.geomean_speedup = geomean_over_default(model.rows);
  return model;
}

const char* words(Basis basis) {
  switch (basis) {
    case Basis::kHoldout: return "held out";
    case Basis::kBench: return "bench";
    case Basis::kDiscovery: return "not held out";
    case Basis::kNone: break;
  }
  return "no result";
}

double tflops(const Problem& problem, double time_us) { return problem.flops() / time_us * 1e-6; }
double gbps(const Problem& problem, double time_us) { return problem.bytes() / time_us * 1e-3; }
double intensity(const Problem& problem) {
  const double moved = problem.bytes();
  return moved > 0 ? problem.flops() / moved : 0;
}

std::string throughput(const Problem& problem, double time_us) {
  if (problem.is_decode()) return number(gbps(problem, time_us)) + " GB/s";
  const double rate = tflops(problem, time_us);
  return rate < 1 ? number(rate * 1e3) + " GFLOP/s" : number(rate) + " TFLOP/s";
}

double noise(const Timing& timing) {
  std::vector<double> times;
  for (const Sample& sample : timing.samples) {
    if (std::isfinite(sample.time_us)) times.push_back(sample.time_us);
  }
  if (times.empty()) return std::numeric_limits<double>::quiet_NaN();
  const Interval of_median = bootstrap_median(times, 1, 500);
  return of_median.half_width() / of_median.estimate;
}

std::vector<std::pair<std::string, std::string>> machine_facts(const DeviceSummary& device) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (device.load_high >= 0) {
    const std::string low = fmt::format("{:.1f}", device.load_low), high = fmt::format("{:.1f}", device.load_high);
    facts.emplace_back("machine load",
                       fmt::format("{}{}", low == high ? low : low + " to " + high,
                                   device.cores > 0 ? fmt::format(" (of {})", plural(device.cores, "core")) : ""));
  }
  if (device.noise >= 0) facts.emplace_back("noise of a median", "±" + percent(device.noise));
  return facts;
}

std::optional<double> floor_fraction(const Timing& timing) {
  if (timing.floor_us <= 0 || timing.p50_us <= 0) return std::nullopt;
  return timing.floor_us / timing.p50_us;
}

std::vector<std::string> config_parts(const std::string& config) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < config.size();) {
    const std::size_t comma = std::min(config.find(',', at), config.size());
    parts.push_back(config.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

std::vector<std::string> changed_parts(const ProblemRow& row) {
  if (!row.winner || !row.baseline || row.winner->family != row.baseline->family) return {};
  const std::vector<std::string> defaults = config_parts(row.baseline->config);
  std::vector<std::string> changed;
  for (const std::string& part : config_parts(row.winner->config)) {
    if (std::find(defaults.begin(), defaults.end(), part) == defaults.end()) changed.push_back(part);
  }
  return changed;
}

std::string verdict_words(const ProblemRow& row) {
  if (!row.winner) return "no result";
  if (row.stale) return "stale";
  if (row.basis == Basis::kDiscovery) return "not held out";
  if (row.default_won) return "default remains";
  return row.speedup ? word_of(row.speedup->verdict) : words(row.basis);
}

RowTone tone_of(const ProblemRow& row) {
  if (!row.winner) return RowTone::kBad;
  if (row.stale || row.basis == Basis::kDiscovery) return RowTone::kWarn;
  if (row.default_won || !row.speedup) return RowTone::kNeutral;
  switch (row.speedup->verdict) {
    case SpeedVerdict::kFaster: return RowTone::kGood;
    case SpeedVerdict::kSlower: return RowTone::kBad;
    case SpeedVerdict::kInconclusive: return RowTone::kWarn;
    default: return RowTone::kNeutral;
  }
}

std::string sentence(const ProblemRow& row) {
  if (!row.winner) return row.no_winner_reason + ".";
  const Timing& timing = *row.winner->timing;
  std::string out = fmt::format("{} takes {}", row.winner->family, time(timing.p50_us));
  const bool over_default = row.speedup && row.baseline && row.speedup->against == row.baseline->candidate();
  if (row.default_won) {
    out +=
        row.funnel.proposed > 1 ? ", with its default config: nothing tried was faster" : ", with its default config";
  } else if (row.speedup) {
    out += fmt::format(", {} as fast as {} (95% interval {} to {})", ratio(row.speedup->speedup),
                       over_default ? "the default" : row.speedup->against, ratio(row.speedup->ci95_low),
                       ratio(row.speedup->ci95_high));
  }
  if (const auto changed = changed_parts(row); !changed.empty())
    out += fmt::format(", by {}", fmt::join(changed, ", "));
  if (const auto fraction = floor_fraction(timing)) out += fmt::format("; {} the floor", ratio(1 / *fraction));
  if (row.ties > 0) out += fmt::format("; {} cannot be told apart from it", plural(row.ties, "other candidate"));
  if (row.basis == Basis::kDiscovery) out += "; found by the search but not yet re-measured on held-out data";
  out += ".";
  if (row.stale) out += " Stale: the kernel source has changed since this was measured.";
  return out;
}

}  // namespace flashcore::report
