// Candidates of the needle gate, and their runs on a device.

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>

#include "core/error.h"
#include "core/parallel.h"
#include "kernels/source_hash.h"
#include "lab/gates/calls.h"
#include "lab/harness/kernel_failure.h"
#include "lab/record/digest.h"
#include "lab/record/json_io.h"
#include "lab/record/trial.h"
#include "lab/verify/judged_file.h"
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

json verdict_json(const NeedleVerdict& v) {
  return {{"needles", count_json(v.found)},
          {"lost", v.lost},
          {"drift",
           {{"o_rms", v.drift.o_rms},
            {"o_max", v.drift.o_max},
            {"lse_rms", v.drift.lse_rms},
            {"lse_max", v.drift.lse_max}}},
          {"limit", {{"o_rms", v.limit.o_rms}, {"lse_max", v.limit.lse_max}}},
          {"finds", v.finds},
          {"stays", v.stays}};
}

json result_json(const NeedleResult& result, const PlacedProblem& problem, const DeviceLimits& limits) {
  json promotion;
  if (const auto p = promotion_of(result.candidate.candidate))
    promotion = {{"field", p->field}, {"value", p->value}, {"keys", p->keys}};
  json row = result.failure.empty() ? verdict_json(result.verdict) : json{{"failure", result.failure}};
  row["candidate"] = result.candidate.candidate.print();
  row[kCandidateHash] = candidate_hash_of(result.candidate.candidate.print(), problem, limits);
  row["gated"] = result.candidate.gated;
  row["promotion"] = std::move(promotion);
  row["verdict"] = result.words();
  return row;
}

// The reverse of count_json and verdict_json, of a child's answer.
NeedleCount needle_count_of(const json& j) {
  NeedleCount count{j.at("found").get<int>(), {}, {}};
  for (const json& weight : j.at("by_weight")) count.by_weight.push_back(weight.at("found").get<int>());
  for (const NeedlePlace place : kNeedlePlaces)
    count.by_place.push_back(j.at("by_place").at(std::string(to_string(place))).get<int>());
  return count;
}

NeedleVerdict needle_verdict_of(const json& j) {
  NeedleVerdict v;
  v.found = needle_count_of(j.at("needles"));
  j.at("lost").get_to(v.lost);
  const json drift = decode_nonfinite(j.at("drift")), limit = decode_nonfinite(j.at("limit"));
  drift.at("o_rms").get_to(v.drift.o_rms), drift.at("o_max").get_to(v.drift.o_max);
  drift.at("lse_rms").get_to(v.drift.lse_rms), drift.at("lse_max").get_to(v.drift.lse_max);
  limit.at("o_rms").get_to(v.limit.o_rms), limit.at("lse_max").get_to(v.limit.lse_max);
  j.at("finds").get_to(v.finds), j.at("stays").get_to(v.stays);
  return v;
}

// What the child is asked for beside a candidate by its text.
constexpr const char *kCompileAll = "compile all", *kBf16 = "bf16";

// The child's: the data of a run, and what bf16 gives of it, kept while candidates of the same run are asked for.
class NeedleChild {
 public:
  using Stage = std::function<void(Gate)>;

  json answer(Device& device, const json& request, const Stage& stage) {
    device_ = &device;
    stage_ = stage;
    try {
      return answer(request);
    } catch (...) {
      data_.reset();  // what has failed half way is no state to go on with
      throw;
    }
  }

 private:
  Device* device_ = nullptr;
  Stage stage_;
  json run_;  // whose data these are
  std::optional<NeedleData> data_;
  std::optional<FlatOutputs> bf16_;
  std::string bf16_by_;
  std::map<std::string, Artifact> artifacts_;

  json answer(const json& request) {
    const auto what = request.at("what").get<std::string>();
    json told = {{"failure", ""}, {"lacking", ""}, {"faulted", false}};
    const auto failure = failure_of([&] {
      use_run(request.at("run"));
      if (what == kCompileAll) return compile_all(request.at("candidates").get<std::vector<std::string>>());
      if (!bf16_) bf16_ = outputs_of_bf16();
      if (what == kBf16) {
        told["needles"] = data_->needles.size();
        told["by"] = bf16_by_;
        told["found"] = count_json(count_found(*data_, bf16_->o));
        return;
      }
      const FlatOutputs outputs = run(what, data_->quantised, data_->quantised_inputs);
      told["verdict"] =
          encode_nonfinite(verdict_json(judge_needles(*data_, outputs.o, outputs.lse, bf16_->o, bf16_->lse)));
    });
    if (failure) told[failure->lacking ? "lacking" : "failure"] = failure->what, told["faulted"] = failure->faulted;
    return told;
  }

  void use_run(const json& run) {
    if (data_ && run_ == run) return;
    bf16_.reset();
    artifacts_.clear();
    data_ = make_needle_data(run.at("seqlen_kv").get<std::int64_t>(), run.at("head_dim").get<std::int64_t>(),
                             run.at("seed").get<std::uint64_t>());
    run_ = run;
  }

  // Side by side, for a kernel of Hopper takes seconds to compile. Who does not compile says so when its turn comes.
  void compile_all(const std::vector<std::string>& candidates) {
    if (stage_) stage_(Gate::kCompile);
    std::vector<std::optional<Artifact>> compiled(candidates.size());
    parallel_for(static_cast<std::int64_t>(candidates.size()), 0, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      (void)failure_of([&] { compiled[at] = compile(candidates[at], data_->quantised); });
    });
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (compiled[i]) artifacts_[candidates[i]] = std::move(*compiled[i]);
  }

  Artifact compile(const std::string& candidate, const PlacedProblem& problem) const {
    const DeviceLimits& limits = device_->info().limits;
    return compile_candidate(parse_candidate(candidate, problem, limits), problem, limits);
  }

  FlatOutputs run(const std::string& text, const PlacedProblem& problem, const AttentionInputs& inputs) {
    if (stage_) stage_(Gate::kCompile);
    const auto known = artifacts_.find(text);
    const Artifact artifact = known == artifacts_.end() ? compile(text, problem) : known->second;
    if (stage_) stage_(Gate::kCorrectness);
    return run_on(*device_, parse_candidate(text, problem, device_->info().limits), artifact, problem, inputs);
  }

  FlatOutputs outputs_of_bf16() {
    // The emulator would take minutes for what fp64 has beside it already.
    if (device_->info().limits.emulated) {
      bf16_by_ = "idealised";
      return {data_->reference.ideal_o, data_->reference.ideal_lse};
    }
    bf16_by_ = dispatch(data_->exact, device_->info()).candidate.print();
    return run(bf16_by_, data_->exact, data_->exact_inputs);
  }
};

// The parent's.
class NeedleRunner {
 public:
  NeedleRunner(Worker& worker, const NeedleOptions& options) : worker_(worker), options_(options) {}

  // Into `run`, so that who stops it in the middle has what was done.
  void run(std::int64_t seqlen_kv, std::int64_t head_dim, NeedleRun& run) {
    run.problem = {needle_problem(seqlen_kv, head_dim, DType::kE4M3), Layout::kBhsd};
    const auto candidates = needle_candidates(options_.pinned, run.problem, worker_.device(), run.why_none);
    if (candidates.empty()) return;
    request_ = {{"run", {{"seqlen_kv", seqlen_kv}, {"head_dim", head_dim}, {"seed", options_.seed}}}};
    for (const NeedleCandidate& each : candidates) request_["candidates"].push_back(each.candidate.print());
    (void)ask(run, kCompileAll);  // a compiler that crashes does it again for the candidate that is to blame
    const json bf16 = ask(run, kBf16);
    bf16.at("failure").get_to(run.failure);
    bf16.at("lacking").get_to(run.lacking);
    if (!run.failure.empty() || !run.lacking.empty()) return;
    bf16.at("needles").get_to(run.needles);
    bf16.at("by").get_to(run.bf16);
    run.bf16_found = needle_count_of(bf16.at("found"));
    for (const NeedleCandidate& each : candidates) {
      if (options_.stop()) return;
      const json told = ask(run, each.candidate.print());
      told.at("lacking").get_to(run.lacking);
      if (!run.lacking.empty()) return;
      const auto failure = told.at("failure").get<std::string>();
      run.results.push_back({each, failure.empty() ? needle_verdict_of(told.at("verdict")) : NeedleVerdict{}, failure});
    }
  }

 private:
  Worker& worker_;
  const NeedleOptions& options_;
  json request_;

  json ask(const NeedleRun& run, const std::string& what) {
    request_["what"] = what;
    const double seconds = options_.timeout_seconds > 0 ? options_.timeout_seconds
                                                        : launch_timeout_seconds(run.problem, worker_.device().limits);
    const TaskOutcome outcome = worker_.run_task(kNeedleTask, request_, seconds);
    if (outcome.answer.is_null()) return {{"failure", outcome.failure}, {"lacking", ""}};
    return outcome.answer;
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

std::vector<NeedleRun> run_needles(Worker& worker, const NeedleOptions& options) {
  NeedleRunner runner(worker, options);
  const int total = static_cast<int>(options.head_dims.size() * options.seqlens_kv.size());
  std::vector<NeedleRun> runs;
  for (const std::int64_t head_dim : options.head_dims)
    for (const std::int64_t seqlen_kv : options.seqlens_kv) {
      // What the machine lacks ends all of it: memory for the data, a compiler.
      if (options.stop() || (!runs.empty() && !runs.back().lacking.empty())) return runs;
      if (options.progress)
        options.progress(static_cast<int>(runs.size()), total,
                         fmt::format("{} keys of head dim {}", seqlen_kv, head_dim));
      runs.emplace_back();
      try {
        runner.run(seqlen_kv, head_dim, runs.back());
      } catch (const Cancelled&) {
        // The candidate in hand has neither passed nor failed.
        if (runs.back().results.empty()) runs.pop_back();
        return runs;
      }
    }
  return runs;
}

WorkerTask needle_task() {
  return
      [child = std::make_shared<NeedleChild>()](Device& device, const json& request, const NeedleChild::Stage& stage) {
        return child->answer(device, request, stage);
      };
}

json needles_json(const std::vector<NeedleRun>& runs, const NeedleOptions& options, const DeviceInfo& device) {
  json results = json::array();
  for (const NeedleRun& run : runs) {
    json candidates = json::array();
    for (const NeedleResult& result : run.results)
      candidates.push_back(result_json(result, run.problem, device.limits));
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
                           {kDigest, ""},
                           {"device", device},
                           {"source_hash", source_hash()},
                           {"measured_at", now_iso8601()},
                           {"seed", options.seed},
                           {"pinned", options.pinned},
                           {"head_dims", options.head_dims},
                           {"seqlens_kv", options.seqlens_kv},
                           {"allowed_loss", kNeedleLoss},
                           {"results", results}});
}

}  // namespace flashcore
