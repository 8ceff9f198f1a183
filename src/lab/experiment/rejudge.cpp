// A stored experiment, read back from what its run wrote, and concluded anew.

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "lab/experiment/run.h"
#include "lab/measure/engine.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxStoredResult = std::size_t{64} << 20;

json stored_document(const std::filesystem::path& file, const char* schema) {
  json document = decode_nonfinite(parse_json(read_file(file, kMaxStoredResult), file.string()));
  if (!document.is_object() || document.value("schema", json()) != schema)
    throw_bad_input(
        "{} is no part of an experiment's result: its schema is not {}; name a folder that `experiment run` "
        "wrote",
        file.string(), schema);
  return document;
}

// An arm as the pages show it: what its patch changes is not stored, beyond its name.
ExperimentArm stored_arm(const std::string& name, const std::string& candidate, const std::vector<Patch>& patches) {
  ExperimentArm arm;
  arm.name = name;
  arm.candidate = candidate;
  const std::string family = candidate.substr(0, candidate.find(':'));
  for (const Patch& patch : patches)
    if (patch.family_name() == family) arm.patch = patch;
  return arm;
}

std::optional<Timing> stored_timing(const json& timing) {
  return timing.is_null() ? std::nullopt : std::optional(timing.get<Timing>());
}

std::vector<PairOutcome> stored_processes(const json& processes, const json& hashes) {
  std::vector<PairOutcome> outcomes;
  for (const json& p : processes) {
    PairOutcome& outcome = outcomes.emplace_back();
    p.at("ended").get_to(outcome.ended);
    p.at("message").get_to(outcome.message);
    p.at("log_ratios").get_to(outcome.log_ratios);
    p.at("candidate_outside").get_to(outcome.candidate_outside);
    outcome.candidate.timing = stored_timing(p.at("candidate"));
    outcome.baseline.timing = stored_timing(p.at("control"));
    if (p.contains("machine")) outcome.candidate.machine = p.at("machine").get<MachineReading>();
    p.at("environment").get_to(outcome.candidate.environment);
    if (hashes.is_object()) {
      hashes.at("candidate").get_to(outcome.candidate.source_hash);
      hashes.at("control").get_to(outcome.baseline.source_hash);
    }
  }
  return outcomes;
}

Occupancy stored_occupancy(const json& j) {
  Occupancy o;
  j.at("ctas_per_sm").get_to(o.ctas_per_sm);
  j.at("limited_by").get_to(o.limited_by);
  j.at("warp_share").get_to(o.warp_share);
  j.at("ctas").get_to(o.ctas);
  j.at("waves").get_to(o.waves);
  j.at("last_wave").get_to(o.last_wave);
  return o;
}

ArmFacts stored_facts(const json& j, const DeviceInfo& device) {
  ArmFacts facts;
  j.at("arm").get_to(facts.arm);
  j.at("problem").get_to(facts.problem);
  facts.gates.device = device;
  j.at("ended").get_to(facts.gates.ended);
  j.at("message").get_to(facts.gates.message);
  facts.gates.gates = j.at("gates").get<std::vector<Verdict>>();
  if (!j.at("artifact").is_null()) facts.gates.artifact = j.at("artifact").get<Artifact>();
  if (!j.at("occupancy").is_null()) facts.occupancy = stored_occupancy(j.at("occupancy"));
  return facts;
}

AbResult stored_comparison(const json& j, std::vector<PairOutcome> processes, double margin) {
  AbResult r;
  r.processes = std::move(processes);
  j.at("verdict").get_to(r.verdict);
  j.at("sentence").get_to(r.sentence);
  j.at("between_process").get_to(r.between_process);
  j.at("tost_p").get_to(r.tost_p);
  r.ended = r.processes.empty() ? PairEnded::kError : r.processes.front().ended;
  for (const PairOutcome& process : r.processes)
    if (process.ended != PairEnded::kMeasured) r.ended = process.ended;
  r.same_code = r.ended == PairEnded::kSameCode;
  Comparison& c = r.comparison;
  j.at("control").get_to(c.against);
  c.verdict = r.verdict;
  c.margin = margin;
  c.processes = static_cast<int>(r.processes.size());
  j.at("blocks").get_to(c.blocks);
  j.at("p_value").get_to(c.p_value);
  j.at("detectable").get_to(c.detectable);
  if (!j.at("speedup").is_null()) {
    j.at("speedup").get_to(c.speedup);
    c.ci95_low = j.at("ci95").at(0);
    c.ci95_high = j.at("ci95").at(1);
  }
  for (const PairOutcome& process : r.processes)
    for (const Trial* side : {&process.candidate, &process.baseline}) {
      if (!side->timing) continue;
      r.samples += static_cast<int>(side->timing->samples.size());
      r.throttled += count_throttled(side->timing->samples);
    }
  return r;
}

// Other compilers resample in other last digits.
constexpr double kIntervalTolerance = 2e-3, kSameRatio = 1e-9;

void require_blocks_of_samples(const PairOutcome& process) {
  const auto log_time = [](const Trial& side, std::size_t sample) {
    return std::log(side.timing->samples.at(sample).time_us);
  };
  for (std::size_t block = 0; block < process.log_ratios.size(); ++block) {
    double ratio = 0;
    for (const std::size_t sample : {2 * block, 2 * block + 1})
      ratio += 0.5 * (log_time(process.baseline, sample) - log_time(process.candidate, sample));
    if (!(std::abs(process.log_ratios[block] - ratio) <= kSameRatio))
      throw_bad_input("block {} of samples.json has the log ratio {:.6f}, and its samples give {:.6f}", block + 1,
                      process.log_ratios[block], ratio);
  }
}

// What was recorded of a comparison is what its samples give.
void require_of_samples(const AbResult& recorded, double margin) {
  if (recorded.ended != PairEnded::kMeasured) return;
  for (const PairOutcome& process : recorded.processes) require_blocks_of_samples(process);
  AbOptions options;
  options.margin = margin;
  const Comparison again = judge_ab(options, recorded.processes).comparison, &told = recorded.comparison;
  const auto compare = [](const char* what, double stored, double own) {
    if (!(std::abs(stored - own) <= kIntervalTolerance * own))
      throw_bad_input("verdict.json has {} {:.4f}, and samples.json gives {:.4f}", what, stored, own);
  };
  compare("a speed-up of", told.speedup, again.speedup);
  compare("an interval that begins at", told.ci95_low, again.ci95_low);
  compare("an interval that ends at", told.ci95_high, again.ci95_high);
  if (told.verdict != again.verdict)
    throw_bad_input("verdict.json calls a comparison {}, and samples.json gives {}", told.verdict, again.verdict);
}

class StoredResult {
 public:
  StoredResult(const json& verdict, const json& samples) : verdict_(verdict), samples_(samples) {}

  ExperimentResult read() {
    read_experiment();
    verdict_.at("device").get_to(result_.device);
    verdict_.at("created_at").get_to(result_.created_at);
    verdict_.at("source_hash").get_to(result_.source_hash);
    verdict_.at("earlier").get_to(result_.earlier);
    for (const json& facts : verdict_.at("facts")) result_.facts.push_back(stored_facts(facts, result_.device));
    read_pairs();
    read_predicted_errors();
    std::size_t most = 0;
    for (const ExperimentPair& pair : result_.pairs) most = std::max(most, pair.result.processes.size());
    result_.processes = verdict_.value("processes", static_cast<int>(most));
    for (const ArmFacts& facts : result_.facts) result_.failed_gates += facts.gates.ended != Ended::kPassed;
    return std::move(result_);
  }

 private:
  void read_experiment() {
    Experiment& e = result_.experiment;
    verdict_.at("name").get_to(e.name);
    verdict_.at("hypothesis").get_to(e.hypothesis);
    verdict_.at("mechanism").get_to(e.mechanism);
    verdict_.at("refuted_by").get_to(e.refuted_by);
    e.known = verdict_.value("known", "");
    e.every = verdict_.at("confirmed_when") == "every";
    verdict_.at("margin").get_to(e.margin);
    e.regime = parse_regime(verdict_.at("regime").get<std::string>());
    e.condition = parse_condition(verdict_.at("condition").get<std::string>());
    patches_ = verdict_.at("patches").get<std::vector<Patch>>();
    // The control's facts are the first.
    const json& facts = verdict_.at("facts");
    e.control = stored_arm(facts.empty() ? "control" : facts.at(0).at("arm").get<std::string>(),
                           verdict_.at("pairs").at(0).at("control"), patches_);
  }

  // Of files that have them.
  void read_predicted_errors() {
    for (const json& facts : verdict_.at("facts")) {
      if (!facts.contains("predicted_error")) continue;
      const auto range = [&](const char* of) -> std::optional<Prediction> {
        const json& stored = facts.at("predicted_error").at(of);
        if (stored.is_null()) return std::nullopt;
        return Prediction{stored.at(0), stored.at(1)};
      };
      for (ExperimentArm& arm : result_.experiment.candidates)
        if (arm.name == facts.at("arm")) arm.predicted_error = {range("o"), range("lse")};
    }
  }

  void read_pairs() {
    Experiment& e = result_.experiment;
    const json& pairs = verdict_.at("pairs");
    const json& raced = samples_.at("pairs");
    if (pairs.size() != raced.size())
      throw_bad_input("verdict.json has {} comparisons, samples.json {}", pairs.size(), raced.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const json& p = pairs[i];
      if (p.at("arm") != raced[i].at("arm") || p.at("problem") != raced[i].at("problem"))
        throw_bad_input("comparison {} of verdict.json is another one in samples.json", i + 1);
      ExperimentArm arm = stored_arm(p.at("arm"), p.at("candidate"), patches_);
      arm.predicted = {p.at("predicted").at(0), p.at("predicted").at(1)};
      const auto known =
          std::find_if(e.candidates.begin(), e.candidates.end(), [&](const auto& a) { return a.name == arm.name; });
      ExperimentPair pair;
      pair.arm = static_cast<std::size_t>(known - e.candidates.begin());
      if (known == e.candidates.end()) e.candidates.push_back(std::move(arm));
      const std::string id = p.at("problem");
      pair.problem = {id, PlacedProblem::parse(id)};
      const json hashes = p.contains("source_hash") ? p.at("source_hash") : json();
      pair.result = stored_comparison(p, stored_processes(raced[i].at("processes"), hashes), e.margin);
      require_of_samples(pair.result, e.margin);
      // How many processes it lacked is not known of an old file, but that it decided nothing is.
      if (!verdict_.contains("processes") && p.at("outcome") == to_string(HypothesisVerdict::kInconclusive))
        pair.result.verdict = pair.result.comparison.verdict = SpeedVerdict::kInconclusive;
      result_.pairs.push_back(std::move(pair));
    }
  }

  const json& verdict_;
  const json& samples_;
  std::vector<Patch> patches_;
  ExperimentResult result_;
};

}  // namespace

ExperimentResult rejudge_experiment(const std::filesystem::path& folder) {
  const json verdict = stored_document(folder / "verdict.json", kExperimentSchema),
             samples = stored_document(folder / "samples.json", "flashcore.experiment-samples/1");
  try {
    ExperimentResult result = StoredResult(verdict, samples).read();
    conclude(result);
    return result;
  } catch (const std::exception& e) {
    throw_bad_input("{} holds no result of an experiment that could be judged again: {}; run the experiment again",
                    folder.string(), e.what());
  }
}

}  // namespace flashcore
