#include "lab/gates/pair.h"

#include "core/environment_error.h"
#include "core/error.h"
#include "core/problem_row.h"
#include "lab/gates/evaluate.h"
#include "lab/gates/gates.h"
#include "lab/gates/memoisation.h"
#include "lab/gates/self_test.h"
#include "lab/record/checks.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {
namespace {

using nlohmann::json;

class Pair {
 public:
  Pair(Device& device, const PairRequest& request, const std::function<void(const std::string&)>& stage,
       PairOutcome& out)
      : device_(device), limits_(device.info().limits), request_(request), stage_(stage), out_(out) {}

  void run() {
    out_.candidate = blank_trial(device_.info(), gate_request(request_.candidate));
    out_.baseline = blank_trial(device_.info(), gate_request(request_.baseline));
    for (const std::string& text : {request_.baseline, request_.candidate})
      if (is_wrong_on_purpose(text) && !(request_.wrong_on_purpose && text == request_.candidate))
        return end(PairEnded::kError, fmt::format("{} {}", text, kWrongIsNoCandidate));
    if (!pass_gates("baseline", request_.baseline, out_.baseline, request_.gates && request_.baseline_gates))
      return end_at(out_.baseline, PairEnded::kBaselineFailed);
    if (request_.wrong_on_purpose) {
      out_.candidate.ended = Ended::kIncorrect;
      out_.candidate.message = fmt::format("{} {}", request_.candidate, kWrongIsNoCandidate);
    } else if (request_.candidate == request_.baseline && request_.gates && request_.baseline_gates) {
      // A against A: the same launches on the same inputs once more would say nothing.
      out_.candidate = out_.baseline;
      out_.candidate.seconds.emplace();
    } else if (!pass_gates("candidate", request_.candidate, out_.candidate, request_.gates)) {
      return end_at(out_.candidate, PairEnded::kCandidateFailed);
    }
    const CompiledCandidate candidate = prepare(request_.candidate, out_.candidate),
                            baseline = prepare(request_.baseline, out_.baseline);
    if (!request_.same_code && execution_identity(candidate, request_.problem, limits_) ==
                                   execution_identity(baseline, request_.problem, limits_))
      return end(PairEnded::kSameCode, "identical code and launch: nothing to time");
    if (request_.count && limits_.emulated) count(baseline, out_.baseline), count(candidate, out_.candidate);
    if (!request_.time || request_.count) return end(PairEnded::kNotTimed, "");
    GateClock clock;
    clock.enter(Gate::kPerformance);
    time(candidate, baseline);
    const TrialSeconds half{.device = clock.read().device / 2};
    for (Trial* trial : {&out_.candidate, &out_.baseline}) {
      if (!trial->seconds) trial->seconds.emplace();
      *trial->seconds += half;
    }
  }

 private:
  void end(PairEnded ended, std::string message) {
    out_.ended = ended;
    out_.message = std::move(message);
  }

  // What the machine lacks is nobody's failure.
  void end_at(const Trial& trial, PairEnded failed) {
    end(trial.ended == Ended::kEnvironment ? PairEnded::kEnvironment : failed, trial.message);
  }

  EvaluateRequest gate_request(const std::string& text) const {
    EvaluateRequest request;
    request.problem = request_.problem;
    request.problem_name = request_.problem_name;
    request.suite = request_.suite;
    request.candidate = text;
    request.patches = request_.patches;
    request.phase = Phase::kBench;
    request.seed = request_.measure.seed;
    request.patterns = request_.patterns;
    request.level = request_.level;
    request.time = false;
    request.max_reference_flops = request_.max_reference_flops;
    request.use_cache = request_.use_cache;
    return request;
  }

  bool pass_gates(const char* side, const std::string& text, Trial& trial, bool asked) {
    EvaluateRequest request = gate_request(text);
    if (!asked) {
      trial.ended = Ended::kPassed;
      return true;
    }
    request.past_resources = request_.past_resources && text == request_.candidate;
    trial = evaluate(device_, request, [&](Gate gate) {
      if (stage_) stage_(fmt::format("{} of the {}", gate, side));
    });
    if (!request.past_resources || trial.ended != Ended::kResource) return trial.ended == Ended::kPassed;
    const Verdict* correct = find_gate(trial, Gate::kCorrectness);
    return correct && correct->status == GateStatus::kPassed;
  }

  CompiledCandidate prepare(const std::string& text, Trial& trial) {
    CompiledCandidate compiled = compiled_candidate(parse_candidate(text, request_.problem, limits_), request_.problem,
                                                    limits_, request_.use_cache);
    trial.family = compiled.candidate.family->name();
    trial.config = compiled.candidate.family->space().print(compiled.candidate.config);
    trial.artifact = compiled.artifact;
    trial.artifact->cubin.clear();
    return compiled;
  }

  void count(const CompiledCandidate& compiled, Trial& trial) {
    if (stage_) stage_(word_of(Gate::kCounters));
    const auto oracle = shared_oracles().get(request_.problem, Pattern::kNormal, timing_seed(request_.measure.seed),
                                             std::min(request_.max_reference_flops, kTimedReferenceFlops));
    Operands operands(device_, request_.problem);
    operands.upload(oracle->inputs);
    const LoadedCandidate loaded(device_, compiled.candidate, request_.problem, compiled.artifact);
    const Launch launch = loaded.bind(operands.args());
    // Every other launch of an emulated GPU is a plain one, which counts.
    for (int i = 0; i < 2; ++i) launch();
    device_.synchronize();
    trial.gates.push_back({Gate::kCounters, GateStatus::kPassed, "counted over one launch", device_.counters()});
  }

  void time(const CompiledCandidate& candidate, const CompiledCandidate& baseline) {
    if (stage_) stage_(word_of(Gate::kPerformance));
    const PlacedProblem& problem = request_.problem;
    if (limits_.emulated) return end(PairEnded::kError, "an emulated GPU has no time; use --device cuda or cpu");
    if (problem.total_lengths().q == 0)
      return end(PairEnded::kError, "there is nothing to compute, so nothing to time");
    const auto oracle = shared_oracles().get(problem, Pattern::kNormal, timing_seed(request_.measure.seed),
                                             std::min(request_.max_reference_flops, kTimedReferenceFlops));
    if (!race_self_test().empty()) throw_internal("{}", race_self_test());
    ContentAudit content;
    MeasureOptions options = request_.measure;
    // Once per pair is enough, and so it goes with the gates.
    if (request_.gates)
      options.audit = [&](PreparedCandidate& prepared, int set) {
        content = detect_memoisation(device_, problem, *oracle, prepared, set);
      };
    const LoadMeter load;
    Measurement measured = measure(device_, problem, *oracle, candidate, &baseline, options);
    load.read(out_.candidate.machine);
    load.read(out_.baseline.machine);
    if (!content.wrong.empty()) measured.candidate_wrong = content.wrong;
    out_.candidate.environment = out_.baseline.environment = measured.environment;
    if (reject(out_.baseline, measured.baseline_wrong, *measured.baseline))
      return end(PairEnded::kBaselineFailed, out_.baseline.message);
    if (!request_.wrong_on_purpose && reject(out_.candidate, measured.candidate_wrong, measured.candidate))
      return end(PairEnded::kCandidateFailed, out_.candidate.message);
    out_.baseline.timing = std::move(measured.baseline);
    out_.candidate.timing = std::move(measured.candidate);
    out_.log_ratios = std::move(measured.race.log_ratios);
    out_.candidate_outside = std::move(measured.race.candidate_outside);
    end(PairEnded::kMeasured, "");
  }

  // A time belongs only to who left the right outputs, and not below the floor.
  static bool reject(Trial& trial, const std::string& wrong, const Timing& timing) {
    const auto impossible = why_below_floor(timing);
    if (wrong.empty() && !impossible) return false;
    trial.ended = wrong.empty() ? Ended::kError : Ended::kIncorrect;
    trial.message = wrong.empty() ? *impossible : "the timed launches: " + wrong;
    trial.gates.push_back(
        {Gate::kPerformance, wrong.empty() ? GateStatus::kError : GateStatus::kFailed, trial.message, nullptr});
    return true;
  }

  Device& device_;
  const DeviceLimits& limits_;
  const PairRequest& request_;
  const std::function<void(const std::string&)>& stage_;
  PairOutcome& out_;
};

}  // namespace

PairOutcome measure_pair(Device& device, const PairRequest& request,
                         const std::function<void(const std::string&)>& stage) {
  PairOutcome out;
  try {
    const PatchScope patches(request.patches);
    Pair(device, request, stage, out).run();
  } catch (const DeviceFault&) {
    throw;
  } catch (const std::exception& e) {
    // Not the candidate's verdict: no compiler, no memory, a broken invariant of ours.
    out.ended = is_environment_error(e) ? PairEnded::kEnvironment : PairEnded::kError;
    out.message = is_environment_error(e) ? environment_message(e) : e.what();
    out.log_ratios.clear();
  }
  return out;
}

TrialSeconds seconds_of(const PairOutcome& outcome) {
  TrialSeconds both;
  for (const Trial* trial : {&outcome.candidate, &outcome.baseline})
    if (trial->seconds) both += *trial->seconds;
  return both;
}

void to_json(json& j, const PairRequest& r) {
  const MeasureOptions& m = r.measure;
  j = {{"problem_name", r.problem_name},
       {"suite", r.suite},
       {"candidate", r.candidate},
       {"baseline", r.baseline},
       {"patches", r.patches},
       {"patterns", r.patterns},
       {"level", r.level},
       {"max_reference_flops", r.max_reference_flops},
       {"gates", r.gates},
       {"baseline_gates", r.baseline_gates},
       {"past_resources", r.past_resources},
       {"same_code", r.same_code},
       {"time", r.time},
       {"use_cache", r.use_cache},
       {"wrong_on_purpose", r.wrong_on_purpose},
       {"count", r.count},
       {"measure",
        {{"spec", m.spec()},
         {"order_seed", m.order_seed},
         {"min_blocks", m.min_blocks},
         {"max_blocks", m.max_blocks},
         {"target_half_width", m.target_half_width},
         {"early_drop", m.early_drop},
         {"gap_ms", m.gap_ms},
         {"sample_us", m.sample_us},
         {"launches_multiple", m.launches_multiple}}}};
  put_problem(j, r.problem);
}

void from_json(const json& j, PairRequest& r) {
  r.problem = problem_of(j);
  j.at("problem_name").get_to(r.problem_name);
  j.at("suite").get_to(r.suite);
  j.at("candidate").get_to(r.candidate);
  j.at("baseline").get_to(r.baseline);
  r.patches = j.at("patches").get<std::vector<Patch>>();
  j.at("patterns").get_to(r.patterns);
  r.level = parse_word<GateLevel>(j.at("level").get<std::string>());
  j.at("max_reference_flops").get_to(r.max_reference_flops);
  j.at("gates").get_to(r.gates);
  j.at("baseline_gates").get_to(r.baseline_gates);
  j.at("past_resources").get_to(r.past_resources);
  j.at("same_code").get_to(r.same_code);
  j.at("time").get_to(r.time);
  j.at("use_cache").get_to(r.use_cache);
  j.at("wrong_on_purpose").get_to(r.wrong_on_purpose);
  j.at("count").get_to(r.count);
  const json& m = j.at("measure");
  m.at("spec").get_to(r.measure.spec());
  m.at("order_seed").get_to(r.measure.order_seed);
  m.at("min_blocks").get_to(r.measure.min_blocks);
  m.at("max_blocks").get_to(r.measure.max_blocks);
  m.at("target_half_width").get_to(r.measure.target_half_width);
  m.at("early_drop").get_to(r.measure.early_drop);
  m.at("gap_ms").get_to(r.measure.gap_ms);
  m.at("sample_us").get_to(r.measure.sample_us);
  m.at("launches_multiple").get_to(r.measure.launches_multiple);
}

void to_json(json& j, const PairOutcome& o) {
  j = {{"ended", o.ended},       {"message", o.message},       {"candidate", o.candidate},
       {"baseline", o.baseline}, {"log_ratios", o.log_ratios}, {"candidate_outside", o.candidate_outside}};
}

void from_json(const json& j, PairOutcome& o) {
  j.at("ended").get_to(o.ended);
  j.at("message").get_to(o.message);
  o.candidate = j.at("candidate").get<Trial>();
  o.baseline = j.at("baseline").get<Trial>();
  j.at("log_ratios").get_to(o.log_ratios);
  j.at("candidate_outside").get_to(o.candidate_outside);
}

}  // namespace flashcore
