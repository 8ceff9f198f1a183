#include "lab/compare/crosscheck.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "device/cuda/cuda_ceilings.h"
#include "lab/record/json_io.h"
#include "lab/record/machine.h"

namespace flashcore {
namespace {

using nlohmann::json;

// fp64 rows are sampled beyond this: what is asked is whether the candidate comes to its outputs.
constexpr double kGuardFlops = 2e8;
// A ceiling is itself measured, to about 3%.
constexpr double kCeilingTolerance = 0.03;
// A library's large multiply comes that near to the peak of its machine; far below, it says nothing of the ceiling.
constexpr double kNearCeiling = 0.7;
// Of empty launches: what a launch may cost the host more than an empty one.
constexpr double kLaunchFactor = 3;
// A loop around launches that a device waits for takes a little longer than the launches.
constexpr double kLoopFactor = 1.1;
// A launch that waits for others takes a few turns of the scheduler more, and twice its own time where it has half of
// its cores. One that was timed when the machine was less busy may look faster by that factor.
constexpr double kBusyFactor = 10, kBusyTurnsUs = 20e3;

Interval exponential_of(const Interval& log) { return {std::exp(log.estimate), std::exp(log.low), std::exp(log.high)}; }

std::vector<double> logs_of(const std::vector<double>& values) {
  std::vector<double> logs;
  for (const double v : values) logs.push_back(std::log(v));
  return logs;
}

// Of two runs apart from each other the widths of both add up, in squares.
Interval ratio_of(const MethodReading& method, const std::vector<double>& engine, std::uint64_t seed) {
  if (method.interleaved && method.times_us.size() == engine.size()) {
    std::vector<double> logs;
    for (std::size_t i = 0; i < engine.size(); ++i) logs.push_back(std::log(method.times_us[i] / engine[i]));
    return exponential_of(bootstrap_median(logs, seed));
  }
  const Interval theirs = bootstrap_median(logs_of(method.times_us), seed),
                 ours = bootstrap_median(logs_of(engine), seed + 1);
  const double middle = theirs.estimate - ours.estimate, half = std::hypot(theirs.half_width(), ours.half_width());
  return exponential_of({middle, middle - half, middle + half});
}

bool is_within(double ratio, double limit) { return ratio < 1 + limit && ratio > 1 / (1 + limit); }

std::string likely_cause(const EngineReading& engine, const MethodReading& method, double limit) {
  const auto& same = method.cold ? engine.cold_us : engine.warm_us;
  const auto& other = method.cold ? engine.warm_us : engine.cold_us;
  const double theirs = median(method.times_us), ours = median(same);
  if (!other.empty() && is_within(theirs / median(other), limit))
    return fmt::format("the state of the cache: it agrees with the engine's {} regime ({:.2f} us), not with the {} one",
                       method.cold ? "warm" : "cold", median(other), method.cold ? "cold" : "warm");
  const double more = theirs - ours;
  if (method.launches > 0 && method.around_us > 0 &&
      is_within((theirs - method.around_us / method.launches) / ours, limit))
    return fmt::format(
        "the loop: {:.2f} us pass around its {} launches, found from loops of one and of two, and without them it "
        "agrees",
        method.around_us, method.launches);
  if (more > 0 && method.empty_us > 0 && theirs - method.empty_us < ours * (1 + limit))
    return fmt::format(
        "launch overhead inside: {:.2f} us more a launch, where it times a launch that does nothing at {:.2f} us", more,
        method.empty_us);
  if (method.host_launch && more > 0 && engine.empty_launch_us > 0 && more <= kLaunchFactor * engine.empty_launch_us)
    return fmt::format("launch overhead inside: {:.2f} us more a launch, where an empty launch takes {:.2f} us", more,
                       engine.empty_launch_us);
  if (method.host_launch && method.host_us > ours && theirs <= kLoopFactor * method.host_us)
    return fmt::format("the host: it takes {:.2f} us to start a launch, and the device waits for it", method.host_us);
  if (method.clock_mhz > 0 && engine.clock_mhz > 0 &&
      is_within(theirs / ours * method.clock_mhz / engine.clock_mhz, limit))
    return fmt::format("another clock: it ran at {:.0f} MHz, the engine at {:.0f} MHz, and in cycles they agree",
                       method.clock_mhz, engine.clock_mhz);
  const double span = engine.slowest_mhz > 0 ? engine.fastest_mhz / engine.slowest_mhz : 0;
  const double ratio = std::max(theirs / ours, ours / theirs);
  if (engine.throttled > 0 && ratio <= span)
    return fmt::format(
        "clock changes: {} of the engine's samples ran throttled, at {:.0f} to {:.0f} MHz, and it lies within the "
        "ratio "
        "of these",
        engine.throttled, engine.slowest_mhz, engine.fastest_mhz);
  return "";
}

// Who is made to wait for a core takes that into its time. Of two that took turns it is the one with long samples, for
// the engine's median of short ones leaves waits out; of two that ran one after the other it may be either.
std::string busy_cause(const EngineReading& engine, const MethodReading& method, const Interval& ratio) {
  const double least = method.interleaved || engine.others_busy < kBusyCores ? 1 : 1 / kBusyFactor;
  const double own_us = median(method.cold ? engine.cold_us : engine.warm_us);
  const bool beyond_waiting = median(method.times_us) - own_us > kBusyTurnsUs + own_us;
  const double others = std::max(engine.others_busy, method.others_busy);
  if (others < kBusyCores || beyond_waiting || ratio.low < least) return "";
  return fmt::format(
      "the machine was busy: other programs kept up to {:.1f} cores busy, and waiting for a core lies "
      "inside a time; a quiet machine would tell",
      others);
}

json interval_json(const Interval& i) { return {{"estimate", i.estimate}, {"ci95", {i.low, i.high}}}; }

json times_json(const std::vector<double>& times) {
  if (times.empty()) return nullptr;
  return {{"p10", quantile(times, 0.1)}, {"p50", median(times)}, {"p90", quantile(times, 0.9)}, {"samples", times}};
}

}  // namespace

MethodVerdict judge_method(const EngineReading& engine, const MethodReading& method, double limit) {
  MethodVerdict verdict{.reading = method, .agreement = Agreement::kNotJudged, .ratio = {}, .cause = method.why_not};
  const auto& beside = method.cold ? engine.cold_us : engine.warm_us;
  if (method.times_us.empty()) return verdict;
  if (beside.empty() || static_cast<int>(std::min(beside.size(), method.times_us.size())) < kMinBlocks) {
    verdict.cause = fmt::format("{} times of it and {} of the engine; an interval needs {} of each",
                                method.times_us.size(), beside.size(), kMinBlocks);
    return verdict;
  }
  verdict.ratio = ratio_of(method, beside, 1);
  const double low = 1 / (1 + limit), high = 1 + limit;
  if (verdict.ratio.low > low && verdict.ratio.high < high) {
    verdict.agreement = Agreement::kAgrees;
  } else if (const std::string busy = busy_cause(engine, method, verdict.ratio); !busy.empty()) {
    verdict.cause = busy;
  } else if (verdict.ratio.low > high || verdict.ratio.high < low) {
    verdict.cause = likely_cause(engine, method, limit);
    if (!verdict.cause.empty()) {
      verdict.agreement = Agreement::kExplained;
    } else if (engine.throttled > 0 && engine.slowest_mhz <= 0) {
      verdict.cause = fmt::format(
          "{} of the engine's samples ran throttled, and their clocks are not known: they may account for it or not",
          engine.throttled);
    } else {
      verdict.agreement = Agreement::kDisagrees;
      verdict.cause = "no cause that is known here accounts for it";
    }
  } else {
    verdict.cause =
        "noise: the interval is wider than the limit allows to tell; more rounds or a quieter machine would";
  }
  return verdict;
}

CeilingVerdict judge_ceiling(const MatmulReading& reading, const Ceilings& ceilings) {
  CeilingVerdict verdict{.reading = reading,
                         .ceiling_tflops = reading.is_16bit ? ceilings.matmul_tflops_16bit : ceilings.fma_tflops_fp32,
                         .agreement = Agreement::kNotJudged,
                         .cause = reading.why_not};
  if (reading.tflops <= 0) return verdict;
  if (verdict.ceiling_tflops <= 0) {
    verdict.cause = "this device has no ceiling of that kind";
    return verdict;
  }
  const double share = reading.tflops / verdict.ceiling_tflops;
  if (share > 1 + kCeilingTolerance) {
    verdict.agreement = Agreement::kDisagrees;
    verdict.cause = fmt::format(
        "it reaches {:.0f}% of the ceiling: the ceiling is too low, and floors that rest on it "
        "are none",
        100 * share);
  } else if (!reading.large) {
    verdict.cause = fmt::format("{:.0f}% of the ceiling, which so small a multiply does not refute", 100 * share);
  } else if (share >= kNearCeiling) {
    verdict.agreement = Agreement::kAgrees;
    verdict.cause = fmt::format("{:.0f}% of the ceiling", 100 * share);
  } else {
    verdict.cause =
        fmt::format("it reaches {:.0f}% of the ceiling, which neither confirms nor refutes it", 100 * share);
  }
  return verdict;
}

std::string words_of_ceiling(const DeviceLimits& limits, bool is_16bit, const std::string& candidate) {
  const std::string multiply = limits.kind == DeviceKind::kCuda ? cuda::words_of_matmul(limits)
                               : is_16bit ? "the CPU's bf16 instructions, on operands that lie in registers"
                                          : "multiply-adds of fp32 vectors that lie in registers";
  return fmt::format("our ceiling is of a loop of {}; neither that nor the library's multiply has the tiles of {}",
                     multiply, candidate);
}

Agreement CrosscheckResult::agreement() const {
  if (!wrong.empty() || !failed.empty()) return Agreement::kNotJudged;
  const auto disagrees = [](const auto& verdict) { return verdict.agreement == Agreement::kDisagrees; };
  if (std::any_of(methods.begin(), methods.end(), disagrees) ||
      std::any_of(ceilings.begin(), ceilings.end(), disagrees))
    return Agreement::kDisagrees;
  const bool agrees = std::any_of(methods.begin(), methods.end(), [](const MethodVerdict& m) {
    return !m.reading.in_process && m.agreement == Agreement::kAgrees;
  });
  return agrees ? Agreement::kAgrees : Agreement::kNotJudged;
}

std::string CrosscheckResult::why() const {
  if (!failed.empty()) return failed;
  if (!wrong.empty()) return "the timed outputs are wrong: " + wrong;
  if (agreement() != Agreement::kNotJudged) return "";
  const bool here = std::any_of(methods.begin(), methods.end(), [](const MethodVerdict& m) {
    return !m.reading.in_process && !m.reading.times_us.empty();
  });
  if (here) return "no other tool's time could be held against the engine's";
  if (interrupted) return "it was interrupted before another tool gave a time";
  // Whoever was here and gave no times is told with its reason: another limit, or another setting, may mend it.
  std::map<std::string, std::string> tools_by_reason;
  for (const MethodVerdict& m : methods) {
    if (m.reading.in_process || m.reading.missing) continue;
    std::string& names = tools_by_reason[m.reading.why_not.empty() ? m.cause : m.reading.why_not];
    names += (names.empty() ? "" : ", ") + m.reading.method;
  }
  std::string without_times;
  for (const auto& [reason, names] : tools_by_reason)
    without_times += fmt::format("{}{}: {}", without_times.empty() ? "" : "; ", names, reason);
  return without_times.empty() ? "no other tool is here" : "no other tool gave a time: " + without_times;
}

json crosscheck_json(const CrosscheckResult& r) {
  json methods = json::array(), ceilings = json::array();
  for (const MethodVerdict& m : r.methods)
    methods.push_back({{"method", m.reading.method},
                       {"version", m.reading.version},
                       {"cache", m.reading.cold ? "cold" : "warm"},
                       {"host_launch", m.reading.host_launch},
                       {"host_us", m.reading.host_us > 0 ? json(m.reading.host_us) : json()},
                       {"empty_us", m.reading.empty_us > 0 ? json(m.reading.empty_us) : json()},
                       {"launches", m.reading.launches > 0 ? json(m.reading.launches) : json()},
                       {"around_us", m.reading.launches > 0 ? json(m.reading.around_us) : json()},
                       {"in_process", m.reading.in_process},
                       {"interleaved", m.reading.interleaved},
                       {"clock_mhz", m.reading.clock_mhz},
                       {"others_busy", m.reading.others_busy >= 0 ? json(m.reading.others_busy) : json()},
                       {"time_us", times_json(m.reading.times_us)},
                       {"ratio", m.ratio.estimate > 0 ? interval_json(m.ratio) : json()},
                       {"out_of_time", m.reading.out_of_time},
                       {"agreement", m.agreement},
                       {"cause", m.cause}});
  for (const CeilingVerdict& c : r.ceilings)
    ceilings.push_back({{"matmul", c.reading.what},
                        {"tflops", c.reading.tflops > 0 ? json(c.reading.tflops) : json()},
                        {"ceiling_tflops", c.ceiling_tflops},
                        {"agreement", c.agreement},
                        {"cause", c.cause}});
  return encode_nonfinite({{"verdict", r.agreement()},
                           {"why", r.why()},
                           {"wrong", r.wrong},
                           {"failed", r.failed},
                           {"engine",
                            {{"warm_us", times_json(r.engine.warm_us)},
                             {"cold_us", times_json(r.engine.cold_us)},
                             {"clock_mhz", r.engine.clock_mhz},
                             {"slowest_mhz", r.engine.slowest_mhz},
                             {"fastest_mhz", r.engine.fastest_mhz},
                             {"empty_launch_us", r.engine.empty_launch_us},
                             {"throttled", r.engine.throttled},
                             {"others_busy", r.engine.others_busy}}},
                           {"methods", methods},
                           {"ceilings", ceilings},
                           {"ceiling_is_of", r.ceiling_is_of}});
}

std::string why_not_launched(Worker& worker, const NamedProblem& named, const Candidate& candidate,
                             double timeout_seconds) {
  EvaluateRequest request;
  request.problem = named.problem;
  request.problem_name = named.name;
  request.candidate = candidate.print();
  request.phase = Phase::kCheck;
  request.level = GateLevel::kQuick;
  request.time = false;
  request.max_reference_flops = kGuardFlops;
  const Trial trial = worker.evaluate(request, timeout_seconds);
  return trial.ended == Ended::kCrashed || trial.ended == Ended::kTimeout ? trial.message : "";
}

}  // namespace flashcore
