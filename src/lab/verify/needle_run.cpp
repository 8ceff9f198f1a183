// Candidates of the needle gate, and their runs on a device.

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/source_hash.h"
#include "lab/gates/calls.h"
#include "lab/harness/kernel_failure.h"
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

void add_new(std::vector<NeedleCandidate>& candidates, const NeedleCandidate& added) {
  const auto same = [&](const NeedleCandidate& other) { return other.candidate == added.candidate; };
  if (std::none_of(candidates.begin(), candidates.end(), same)) candidates.push_back(added);
}

void add_family(const Family& family, const Problem& problem, const DeviceLimits& limits,
                std::vector<NeedleCandidate>& candidates) {
  const ConfigValues usual = family.default_config(problem, limits);
  add_new(candidates, {{&family, usual}, true});
  const auto field = promotion_field(family);
  if (!field) return;
  for (const int value : family.space().fields()[*field].values) {
    if (value == usual[*field]) continue;
    if (auto config = nearest_config(family, problem, limits, usual, *field, value))
      add_new(candidates, {{&family, *config}, false});
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
  if (!result.failure.empty())
    return {{"candidate", result.candidate.candidate.print()},
            {"gated", result.candidate.gated},
            {"promotion", promotion},
            {"failure", result.failure},
            {"verdict", result.words()}};
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

  NeedleRun run(std::int64_t seqlen_kv, std::int64_t head_dim) {
    NeedleRun run;
    run.problem = {needle_problem(seqlen_kv, head_dim, DType::kE4M3), Layout::kBhsd};
    const auto candidates = needle_candidates(options_.pinned, run.problem, device_.info(), run.why_none);
    if (candidates.empty()) return run;
    // What the machine lacks ends all of it: memory for the data, a compiler.
    const auto failure = failure_of([&] { judge(candidates, seqlen_kv, head_dim, run); });
    if (!failure) return run;
    (failure->lacking ? run.lacking : run.failure) = failure->what;
    is_over_ = failure->lacking || failure->faulted;
    return run;
  }
  // Nothing more can be run here.
  bool is_over() const { return is_over_; }

 private:
  Device& device_;
  const NeedleOptions& options_;
  std::vector<Artifact> artifacts_;                   // of the candidates
  std::vector<std::optional<KernelFailure>> failed_;  // those that did not compile
  bool is_over_ = false;

  void judge(const std::vector<NeedleCandidate>& candidates, std::int64_t seqlen_kv, std::int64_t head_dim,
             NeedleRun& run) {
    compile(candidates, run.problem);
    const NeedleData data = make_needle_data(seqlen_kv, head_dim, options_.seed);
    run.needles = static_cast<int>(data.needles.size());
    const FlatOutputs bf16 = outputs_of_bf16(data, run.bf16);
    run.bf16_found = count_found(data, bf16.o);
    for (std::size_t i = 0; i < candidates.size() && !options_.stop() && !is_over_; ++i) {
      FlatOutputs outputs;
      std::optional<KernelFailure> failure = failed_[i];
      if (!failure)
        failure = failure_of([&] {
          outputs = run_on(device_, candidates[i].candidate, artifacts_[i], data.quantised, data.quantised_inputs);
        });
      if (!failure) {
        run.results.push_back({candidates[i], judge_needles(data, outputs.o, outputs.lse, bf16.o, bf16.lse)});
        continue;
      }
      if (failure->lacking) run.lacking = failure->what;
      else run.results.push_back({candidates[i], {}, failure->what});
      is_over_ = failure->lacking || failure->faulted;
    }
  }

  // Side by side, for a kernel of Hopper takes seconds to compile.
  void compile(const std::vector<NeedleCandidate>& candidates, const Problem& problem) {
    artifacts_.assign(candidates.size(), {});
    failed_.assign(candidates.size(), {});
    parallel_for(static_cast<std::int64_t>(candidates.size()), 0, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      failed_[at] = failure_of(
          [&] { artifacts_[at] = compile_candidate(candidates[at].candidate, problem, device_.info().limits); });
    });
  }

  FlatOutputs outputs_of_bf16(const NeedleData& data, std::string& by) {
    // The emulator would take minutes for what fp64 has beside it already.
    if (device_.info().limits.emulated) {
      by = "idealised";
      return {data.reference.ideal_o, data.reference.ideal_lse};
    }
    const Candidate candidate = dispatch(data.exact, device_.info()).candidate;
    by = candidate.print();
    return run_on(device_, candidate, compile_candidate(candidate, data.exact, device_.info().limits), data.exact,
                  data.exact_inputs);
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
                                               const DeviceInfo& device, std::string& why_none) {
  std::vector<NeedleCandidate> candidates;
  if (!pinned.empty()) {
    const Family& family = family_by_name(pinned.substr(0, pinned.find(':')));
    if (const auto reason = family.why_unsupported(problem, device.limits))
      why_none = fmt::format("{} cannot: {}", family.name(), *reason);
    else if (pinned.find(':') == std::string::npos) add_family(family, problem, device.limits, candidates);
    else candidates.push_back({parse_candidate(pinned, problem, device.limits), true});
    return candidates;
  }
  std::vector<std::string> reasons;
  const std::vector<const Family*> families = supporting_families(problem, device.limits, &reasons);
  why_none = families.empty() ? fmt::format("no family supports it: {}", fmt::join(reasons, "; ")) : "";
  if (families.empty()) return candidates;
  candidates.push_back({dispatch(problem, device).candidate, true});
  for (const Family* family : families)
    if (promotion_field(*family)) add_family(*family, problem, device.limits, candidates);
  return candidates;
}

std::vector<NeedleRun> run_needles(Device& device, const NeedleOptions& options) {
  NeedleRunner runner(device, options);
  const int total = static_cast<int>(options.head_dims.size() * options.seqlens_kv.size());
  std::vector<NeedleRun> runs;
  for (const std::int64_t head_dim : options.head_dims)
    for (const std::int64_t seqlen_kv : options.seqlens_kv) {
      if (options.stop() || runner.is_over()) return runs;
      if (options.progress)
        options.progress(static_cast<int>(runs.size()), total,
                         fmt::format("{} keys of head dim {}", seqlen_kv, head_dim));
      runs.push_back(runner.run(seqlen_kv, head_dim));
    }
  return runs;
}

json needles_json(const std::vector<NeedleRun>& runs, const NeedleOptions& options, const DeviceInfo& device) {
  json results = json::array();
  for (const NeedleRun& run : runs) {
    json candidates = json::array();
    for (const NeedleResult& result : run.results) candidates.push_back(result_json(result));
    json bf16;
    if (!run.bf16_found.by_place.empty()) bf16 = {{"by", run.bf16}, {"needles", count_json(run.bf16_found)}};
    results.push_back({{"problem", run.problem.id()},
                       {"seqlen_kv", run.problem.seqlen_kv},
                       {"head_dim", run.problem.head_dim},
                       {"why_none", run.why_none},
                       {"failure", run.failure},
                       {"lacking", run.lacking},
                       {"needles", run.needles},
                       {"bf16", bf16},
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
