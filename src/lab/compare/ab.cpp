#include "lab/compare/ab.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"
#include "lab/process/worker.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Stopping on a narrow interval favours those that are narrow by luck, the more so the fewer blocks there are.
constexpr int kMinBlocksPerProcess = 16, kMaxBlocksPerProcess = 2000;
// Below this a process could not finish its first blocks.
constexpr double kMinProcessSeconds = 0.2;

PairRequest request_for(const AbOptions& options, int process) {
  PairRequest request;
  request.problem = options.problem.problem;
  request.problem_name = options.problem.name;
  request.suite = options.suite;
  request.candidate = options.candidate;
  request.baseline = options.baseline;
  request.gates = true;  // what is published has passed all gates in the process that timed it
  request.same_code = options.same_code;
  request.time = options.refusal.empty();
  MeasureOptions& measure = request.measure;
  measure.spec() = options.spec();
  measure.seed = seed_of_process(options.seed, process);
  measure.min_blocks = kMinBlocksPerProcess;
  measure.max_blocks = kMaxBlocksPerProcess;
  measure.max_seconds = std::max(options.max_seconds / options.processes, kMinProcessSeconds);
  measure.target_half_width = kTargetHalfWidth;
  return request;
}

std::string percent(double fraction) { return fmt::format("{:.{}f}%", 100 * fraction, fraction < 0.0995 ? 1 : 0); }

std::string effect_words(const AbResult& r) {
  const Comparison& c = r.comparison;
  const std::size_t processes = r.processes.size();
  return fmt::format("speed-up {:.4f}, 95% interval {:.4f} to {:.4f}, from {} blocks in {} process{}", c.speedup,
                     c.ci95_low, c.ci95_high, c.blocks, processes, processes == 1 ? "" : "es");
}

std::string sentence_of(const AbOptions& options, const AbResult& r) {
  const Comparison& c = r.comparison;
  const std::string detectable =
      std::isfinite(c.detectable)
          ? fmt::format("this run could have detected a change of {}", percent(c.detectable))
          : fmt::format("with fewer than {} blocks this run could have detected nothing", kMinBlocks);
  const std::string margin = percent(options.margin);
  if (c.verdict == SpeedVerdict::kFaster || c.verdict == SpeedVerdict::kSlower)
    return fmt::format("{} is {} than {}: {}; {}", options.candidate,
                       c.verdict == SpeedVerdict::kFaster ? "faster" : "slower", options.baseline, effect_words(r),
                       detectable);
  if (c.verdict == SpeedVerdict::kSame)
    return fmt::format("{} is the same as {} within {}: {}; {}", options.candidate, options.baseline, margin,
                       effect_words(r), detectable);
  return fmt::format("{} may or may not differ from {} by {}: {}; {}; more time or a quieter machine would tell",
                     options.candidate, options.baseline, margin, effect_words(r), detectable);
}

std::vector<std::string> differing_fields(const Trial& a, const Trial& b) {
  if (a.family != b.family || a.config == b.config) return {};
  const ConfigSpace& space = family_by_name(a.family).space();
  const ConfigValues one = space.parse(a.config, space.at(0), a.family),
                     other = space.parse(b.config, space.at(0), b.family);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < one.size(); ++i)
    if (one[i] != other[i]) names.push_back(space.fields()[i].name);
  return names;
}

void conclude_same_code(const AbOptions& options, AbResult& r) {
  const PairOutcome& outcome = r.processes.front();
  r.same_code = true;
  r.verdict = SpeedVerdict::kSame;
  r.comparison = Comparison{options.baseline, 1, 1, 1, SpeedVerdict::kSame, 0, options.margin, 1, 0};
  r.inert_fields = differing_fields(outcome.candidate, outcome.baseline);
  r.sentence =
      fmt::format("{} is the same as {} by construction: identical machine code ({}) and launch; nothing was timed",
                  options.candidate, options.baseline, outcome.candidate.artifact->code_hash.substr(0, 12));
  if (!r.inert_fields.empty())
    r.sentence += fmt::format("; BUG of family {}: its configs differ in {}, which changes nothing: an inert parameter",
                              outcome.candidate.family, fmt::join(r.inert_fields, ", "));
}

void conclude_unjudged(const AbOptions& options, const PairOutcome& failed, AbResult& r) {
  if (failed.ended == PairEnded::kBaselineFailed)
    r.sentence = fmt::format("the baseline {} is red ({}), so nothing is judged against it: {}", options.baseline,
                             failed.baseline.ended, failed.message);
  else if (failed.ended == PairEnded::kCandidateFailed)
    r.sentence = fmt::format("{} did not pass its gates ({}), and what is not correct gets no time: {}",
                             options.candidate, failed.candidate.ended, failed.message);
  else if (failed.ended == PairEnded::kNotTimed) r.sentence = options.refusal;
  else r.sentence = fmt::format("the measurement ended in '{}': {}", failed.ended, failed.message);
}

void describe_samples(AbResult& r) {
  std::vector<double> candidate, baseline;
  for (const PairOutcome& process : r.processes) {
    for (const Sample& s : process.candidate.timing->samples) candidate.push_back(s.time_us);
    for (const Sample& s : process.baseline.timing->samples) baseline.push_back(s.time_us);
    r.throttled +=
        count_throttled(process.candidate.timing->samples) + count_throttled(process.baseline.timing->samples);
  }
  r.samples = static_cast<int>(candidate.size() + baseline.size());
  r.mann_whitney_p = mann_whitney(candidate, baseline).p_value;
  r.cliffs_delta = cliffs_delta(candidate, baseline);
}

}  // namespace

AbResult judge_ab(const AbOptions& options, std::vector<PairOutcome> processes) {
  FC_CHECK(!processes.empty());
  AbResult r;
  r.processes = std::move(processes);
  r.ended = r.processes.front().ended;
  if (r.ended == PairEnded::kSameCode) {
    conclude_same_code(options, r);
    return r;
  }
  std::vector<std::vector<double>> blocks;
  for (const PairOutcome& process : r.processes) {
    if (process.ended == PairEnded::kMeasured) {
      blocks.push_back(process.log_ratios);
      continue;
    }
    // One process that fails is not outvoted by those that did not.
    r.ended = process.ended;
    conclude_unjudged(options, process, r);
    return r;
  }
  const HierarchicalInterval all = hierarchical_bootstrap_median(blocks, options.seed);
  r.comparison = compare_processes(blocks, all, options.margin);
  r.comparison.against = options.baseline;
  r.between_process = all.between;
  std::vector<double> pooled;
  for (const auto& b : blocks) pooled.insert(pooled.end(), b.begin(), b.end());
  r.wilcoxon_p = wilcoxon_signed_rank(pooled);
  r.tost_p = tost_signed_rank(pooled, std::log1p(options.margin));
  describe_samples(r);
  r.verdict = r.comparison.verdict;
  r.sentence = sentence_of(options, r);
  return r;
}

AbResult ab(const AbOptions& options, const std::function<void(int, int)>& progress,
            const std::function<bool()>& stop) {
  FC_CHECK(options.processes > 0 && options.margin > 0);
  std::vector<PairOutcome> outcomes;
  for (int process = 0; process < options.processes; ++process) {
    if (progress) progress(process, options.processes);
    Worker worker(options.device, options.worker_executable);
    worker.cancel_when(stop);
    outcomes.push_back(worker.measure_pair(request_for(options, process)));
    if (outcomes.back().ended != PairEnded::kMeasured) break;
  }
  return judge_ab(options, std::move(outcomes));
}

json ab_json(const AbOptions& options, const AbResult& r) {
  json processes = json::array();
  for (const PairOutcome& p : r.processes)
    processes.push_back({{"ended", p.ended},
                         {"message", p.message},
                         {"log_ratios", p.log_ratios},
                         {"candidate_outside", p.candidate_outside},
                         {"candidate", p.candidate.timing ? json(*p.candidate.timing) : json()},
                         {"baseline", p.baseline.timing ? json(*p.baseline.timing) : json()},
                         {"environment", p.candidate.environment},
                         {"machine", p.candidate.machine}});
  const PairOutcome& first = r.processes.front();
  const auto hash = [](const Trial& t) { return t.artifact ? json(t.artifact->code_hash) : json(); };
  const Comparison& c = r.comparison;
  const bool timed = r.ended == PairEnded::kMeasured;
  return encode_nonfinite({{"problem", options.problem.problem.id()},
                           {"name", options.problem.name},
                           {"suite", options.suite},
                           {"device",
                            {{"key", first.candidate.device.key},
                             {"name", first.candidate.device.name},
                             {"id", first.candidate.device.id}}},
                           {"candidate", options.candidate},
                           {"baseline", options.baseline},
                           {"code_hash", {{"candidate", hash(first.candidate)}, {"baseline", hash(first.baseline)}}},
                           {"source_hash", source_hash()},
                           {"verdict", r.verdict},
                           {"sentence", r.sentence},
                           {"ended", r.ended},
                           {"same_code", r.same_code},
                           {"inert_fields", r.inert_fields},
                           {"margin", options.margin},
                           {"speedup", timed || r.same_code ? json(c.speedup) : json()},
                           {"ci95", timed || r.same_code ? json{c.ci95_low, c.ci95_high} : json()},
                           {"detectable", timed ? json(c.detectable) : json()},
                           {"blocks", c.blocks},
                           {"between_process", r.between_process},
                           {"p_value",
                            {{"wilcoxon", r.wilcoxon_p},
                             {"processes", c.processes > 1 ? json(c.p_value) : json()},
                             {"tost", r.tost_p},
                             {"mann_whitney", r.mann_whitney_p}}},
                           {"cliffs_delta", r.cliffs_delta},
                           {"throttled_samples", r.throttled},
                           {"samples", r.samples},
                           {"regime", to_string(options.regime)},
                           {"condition", to_string(options.condition)},
                           {"seed", options.seed},
                           {"processes", processes}});
}

int ab_exit_code(const AbResult& r) {
  if (!r.inert_fields.empty() || r.verdict == SpeedVerdict::kSlower || r.ended == PairEnded::kCandidateFailed) return 1;
  if (r.ended == PairEnded::kEnvironment) return 4;
  return r.verdict == SpeedVerdict::kFaster || r.verdict == SpeedVerdict::kSame ? 0 : 2;
}

}  // namespace flashcore
