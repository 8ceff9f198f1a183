// Candidates of the needle gate, and their runs on a device.

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/source_hash.h"
#include "lab/gates/calls.h"
#include "lab/record/json_io.h"
#include "lab/record/trial.h"
#include "lab/verify/needles.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::optional<std::size_t> field_named(const Family& family, std::string_view beginning) {
  const std::vector<Field>& fields = family.space().fields();
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (fields[i].name.starts_with(beginning)) return i;
  return std::nullopt;
}
std::optional<std::size_t> promotion_field(const Family& family) { return field_named(family, "promote_"); }

int steps_between(const Field& field, int a, int b) {
  const auto place = [&](int value) { return std::find(field.values.begin(), field.values.end(), value); };
  return std::abs(static_cast<int>(place(a) - place(b)));
}

// The valid config with that value that has the fewest fields, and then steps of them, unlike `base`'s.
std::optional<ConfigValues> nearest_config(const Family& family, const Problem& problem, const DeviceLimits& limits,
                                           const ConfigValues& base, std::size_t field, int value) {
  constexpr int kField = 100;
  const std::vector<Field>& fields = family.space().fields();
  std::optional<ConfigValues> nearest;
  int least = std::numeric_limits<int>::max();
  for (std::uint64_t i = 0; i < family.space().size(); ++i) {
    ConfigValues config = family.space().at(i);
    if (config[field] != value) continue;
    int distance = 0;
    for (std::size_t f = 0; f < fields.size(); ++f)
      if (f != field && config[f] != base[f]) distance += kField + steps_between(fields[f], config[f], base[f]);
    if (distance >= least || family.why_invalid(config, problem, limits)) continue;
    least = distance;
    nearest = std::move(config);
  }
  return nearest;
}

void add_family(const Family& family, const Problem& problem, const DeviceLimits& limits,
                std::vector<NeedleCandidate>& candidates) {
  const ConfigValues usual = family.default_config(problem, limits);
  candidates.push_back({{&family, usual}, true});
  const auto field = promotion_field(family);
  if (!field) return;
  for (const int value : family.space().fields()[*field].values) {
    if (value == usual[*field]) continue;
    if (auto config = nearest_config(family, problem, limits, usual, *field, value))
      candidates.push_back({{&family, *config}, false});
  }
}

struct FlatOutputs {
  std::vector<float> o, lse;
};

FlatOutputs run_on(Device& device, const Candidate& candidate, const Artifact& artifact, const PlacedProblem& problem,
                   const AttentionInputs& inputs) {
  const LoadedCandidate loaded(device, candidate, problem, artifact);
  Operands operands(device, problem);
  operands.upload(inputs);
  const AttentionOutputs outputs = launch_once(device, operands, loaded.bind(operands.args()));
  return {gather_rows(outputs.o, RowSample{}), outputs.lse};
}

json count_json(const NeedleCount& count) {
  json weights = json::array(), places = json::object();
  for (std::size_t i = 0; i < kNeedleWeights.size(); ++i)
    weights.push_back({{"weight", kNeedleWeights[i]}, {"found", count.by_weight[i]}});
  for (const NeedlePlace place : kNeedlePlaces)
    places[std::string(to_string(place))] = count.by_place[static_cast<std::size_t>(place)];
  return {{"found", count.all}, {"by_weight", weights}, {"by_place", places}};
}

json result_json(const NeedleResult& result) {
  const NeedleVerdict& v = result.verdict;
  json promotion;
  if (const auto p = promotion_of(result.candidate.candidate))
    promotion = {{"field", p->field}, {"value", p->value}, {"keys", p->keys}};
  return {{"candidate", result.candidate.candidate.print()},
          {"gated", result.candidate.gated},
          {"promotion", promotion},
          {"needles", count_json(v.found)},
          {"lost", v.lost},
          {"drift",
           {{"o_rms", v.drift.o_rms},
            {"o_max", v.drift.o_max},
            {"lse_rms", v.drift.lse_rms},
            {"lse_max", v.drift.lse_max}}},
          {"limit", {{"o_rms", v.limit.o_rms}, {"lse_max", v.limit.lse_max}}},
          {"finds", v.finds},
          {"stays", v.stays},
          {"verdict", v.words()}};
}

class NeedleRunner {
 public:
  NeedleRunner(Device& device, const NeedleOptions& options) : device_(device), options_(options) {}

  // In parallel, for a kernel of Hopper takes seconds to compile.
  void compile(std::int64_t seqlen_kv, std::int64_t head_dim) {
    Problem problem = needle_problem(seqlen_kv, head_dim, DType::kE4M3);
    std::vector<std::pair<Problem, Candidate>> jobs;
    for (const NeedleCandidate& each : needle_candidates(options_.pinned, problem, device_.info()))
      jobs.emplace_back(problem, each.candidate);
    problem = needle_problem(seqlen_kv, head_dim, DType::kBF16);
    if (!is_emulated()) jobs.emplace_back(problem, dispatch(problem, device_.info()).candidate);
    std::vector<Artifact> artifacts(jobs.size());
    parallel_for(static_cast<std::int64_t>(jobs.size()), 0, [&](std::int64_t i) {
      const auto& [of, candidate] = jobs[static_cast<std::size_t>(i)];
      artifacts[static_cast<std::size_t>(i)] = compile_candidate(candidate, of, device_.info().limits);
    });
    artifacts_.clear();
    for (std::size_t i = 0; i < jobs.size(); ++i)
      artifacts_[key_of(jobs[i].first, jobs[i].second)] = std::move(artifacts[i]);
  }

  NeedleRun run(std::int64_t seqlen_kv, std::int64_t head_dim) {
    const NeedleData data = make_needle_data(seqlen_kv, head_dim, options_.seed);
    NeedleRun run;
    run.problem = data.quantised;
    run.needles = static_cast<int>(data.needles.size());
    FlatOutputs bf16{data.reference.ideal_o, data.reference.ideal_lse};
    run.bf16 = "idealised";
    if (!is_emulated()) {
      const Candidate candidate = dispatch(data.exact, device_.info()).candidate;
      run.bf16 = candidate.print();
      bf16 = outputs_of(candidate, data.exact, data.exact_inputs);
    }
    run.bf16_found = count_found(data, bf16.o);
    for (const NeedleCandidate& each : needle_candidates(options_.pinned, data.quantised, device_.info())) {
      if (options_.stop()) break;
      options_.progress(data.quantised.id() + "  " + each.candidate.print());
      const FlatOutputs outputs = outputs_of(each.candidate, data.quantised, data.quantised_inputs);
      run.results.push_back({each, judge_needles(data, outputs.o, outputs.lse, bf16.o, bf16.lse)});
    }
    return run;
  }

 private:
  Device& device_;
  const NeedleOptions& options_;
  std::map<std::string, Artifact> artifacts_;

  // The emulator would take minutes for what core/reference.h has already.
  bool is_emulated() const { return device_.info().limits.emulated; }
  static std::string key_of(const Problem& problem, const Candidate& candidate) {
    return problem.id() + " " + candidate.print();
  }
  FlatOutputs outputs_of(const Candidate& candidate, const PlacedProblem& problem, const AttentionInputs& inputs) {
    return run_on(device_, candidate, artifacts_.at(key_of(problem.problem(), candidate)), problem, inputs);
  }
};

}  // namespace

std::optional<Promotion> promotion_of(const Candidate& candidate) {
  const auto field = promotion_field(*candidate.family);
  if (!field) return std::nullopt;
  const std::string& name = candidate.family->space().fields()[*field].name;
  const int value = candidate.config[*field];
  const auto block = field_named(*candidate.family, "block_n");
  const std::int64_t keys = name == "promote_every" && block ? std::int64_t{value} * candidate.config[*block] : value;
  return Promotion{name, value, keys};
}

std::vector<NeedleCandidate> needle_candidates(const std::string& pinned, const Problem& problem,
                                               const DeviceInfo& device) {
  std::vector<NeedleCandidate> candidates;
  if (pinned.find(':') != std::string::npos) {
    candidates.push_back({parse_candidate(pinned, problem, device.limits), true});
    return candidates;
  }
  if (!pinned.empty()) {
    add_family(*parse_candidate(pinned, problem, device.limits).family, problem, device.limits, candidates);
    return candidates;
  }
  for (const Family* family : supporting_families(problem, device.limits))
    if (promotion_field(*family)) add_family(*family, problem, device.limits, candidates);
  if (candidates.empty()) candidates.push_back({dispatch(problem, device).candidate, true});
  return candidates;
}

std::vector<NeedleRun> run_needles(Device& device, const NeedleOptions& options) {
  NeedleRunner runner(device, options);
  std::vector<NeedleRun> runs;
  for (const std::int64_t head_dim : options.head_dims)
    for (const std::int64_t seqlen_kv : options.seqlens_kv) {
      if (options.stop()) return runs;
      options.progress(fmt::format("{} keys of head dim {}: compiling, and fp64", seqlen_kv, head_dim));
      runner.compile(seqlen_kv, head_dim);
      NeedleRun run = runner.run(seqlen_kv, head_dim);
      if (!run.results.empty()) runs.push_back(std::move(run));
    }
  return runs;
}

json needles_json(const std::vector<NeedleRun>& runs, const NeedleOptions& options, const DeviceInfo& device) {
  json results = json::array();
  for (const NeedleRun& run : runs) {
    json candidates = json::array();
    for (const NeedleResult& result : run.results) candidates.push_back(result_json(result));
    results.push_back({{"problem", run.problem.id()},
                       {"seqlen_kv", run.problem.seqlen_kv},
                       {"head_dim", run.problem.head_dim},
                       {"needles", run.needles},
                       {"bf16", {{"by", run.bf16}, {"needles", count_json(run.bf16_found)}}},
                       {"candidates", candidates}});
  }
  return encode_nonfinite({{"schema", "flashcore.needles/1"},
                           {"device", device},
                           {"source_hash", source_hash()},
                           {"measured_at", now_iso8601()},
                           {"seed", options.seed},
                           {"allowed_loss", kNeedleLoss},
                           {"results", results}});
}

}  // namespace flashcore
