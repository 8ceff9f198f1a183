#include "lab/gates/memoisation.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "lab/statistics/statistics.h"

namespace flashcore {
namespace {

constexpr int kFewest = 3, kMost = 8;  // launches of each kind in a round
constexpr int kRounds = 4;
constexpr double kRoundSeconds = 1;
// What else runs on the machine only adds to a time. So the fastest launch on new content is held against the lower
// quartile of the others: that of an honest kernel is longer by chance once in ten rounds on the busiest of machines,
// and 10% longer four times in a row next to never.
constexpr double kQuartile = 0.25, kRatio = 1.1;
// What the events of a GPU and the clock of a CPU, with its threads that wake up, resolve.
constexpr double kJitterUsCuda = 0.5, kJitterUsCpu = 5;
// A single launch: the timer would otherwise repeat short ones, and only the first would meet new content.
constexpr double kOneLaunchUs = 1e-3;
// A result of other inputs is wrong in every row: a few of them show it.
constexpr double kReferenceFlops = 5e7;

struct Times {
  std::vector<double> same, other;
};

class Audit {
 public:
  Audit(Device& device, const PlacedProblem& problem, const Oracle& oracle, PreparedCandidate& prepared, int set)
      : device_(device),
        problem_(problem),
        oracle_(oracle),
        prepared_(prepared),
        set_(set),
        operands_(prepared.buffers(set).copy(0)),
        samples_timed_(prepared.samples_taken()),
        timer_(device.make_timer(std::span(&prepared.launch(set, 0), 1), Regime::kWarm, kOneLaunchUs)) {
    timer_->use_launches(1);
    jitter_us_ = device.info().limits.kind == DeviceKind::kCuda ? kJitterUsCuda : kJitterUsCpu;
  }

  ContentAudit run() {
    ContentAudit result;
    const int count = count_per_round();
    // Nothing but the timed content was met so far: whoever waits for it to repeat has seen enough of it.
    std::vector<double> after_timing;
    for (int i = 0; i < count; ++i) after_timing.push_back(time_launch(0));
    Times times = time_both(count, static_cast<int>(random_() % static_cast<unsigned>(count)));
    const bool by_repeats = !kept(times.same, times.other);
    if (by_repeats) times.same = std::move(after_timing);
    for (int round = 1; round < kRounds && kept(times.same, times.other); ++round)
      times = by_repeats ? time_after_repeats(count) : time_both(count, -1);
    operands_.upload(oracle_.inputs);
    result.same_us = quantile(times.same, kQuartile);
    result.other_us = quantile(times.other, 0);
    if (is_on(Check::kUnseenContent) && !wrong_.empty()) {
      result.check = Check::kUnseenContent;
      result.wrong = "on inputs that it had not met before it was wrong (a result of others?): " + wrong_;
    } else if (is_on(Check::kContentTiming) && kept(times.same, times.other)) {
      result.wrong = fmt::format(
          "a launch takes {:.2f} us on inputs it has met before{} and {:.2f} us on others: it keeps results by content",
          result.same_us, by_repeats ? " often enough" : "", result.other_us);
    }
    return result;
  }

 private:
  bool kept(const std::vector<double>& same, const std::vector<double>& other) const {
    return quantile(other, 0) > kRatio * quantile(same, kQuartile) + jitter_us_;
  }

  int count_per_round() {
    const double start = device_.now_seconds();
    time_launch(0);
    const double each = device_.now_seconds() - start;
    return static_cast<int>(std::clamp(kRoundSeconds / (4 * std::max(each, 1e-6)), double{kFewest}, double{kMost}));
  }

  // One launch on content `variant`, every byte of which was just written. The outputs hold an earlier result, as those
  // of the timed launches do: poison would show who returns where there is one, or who keeps it there, that this is no
  // timed launch.
  double time_launch(std::uint64_t variant) {
    operands_.upload(oracle_.inputs, variant);
    return timer_->sample().time_us;
  }

  // As time_launch, and the last launches before it were of the old content: a memory of one result holds that.
  double time_after_sample(std::uint64_t variant) {
    operands_.upload(oracle_.inputs);
    prepared_.sample(set_);
    return time_launch(variant);
  }

  // The outputs of the launch on other content number `judged` are judged.
  Times time_both(int count, int judged) {
    Times times;
    for (int i = 0; i < count; ++i) {
      const bool other_first = random_() % 2 == 0;
      for (const bool other : {other_first, !other_first}) {
        const std::uint64_t variant = other ? new_variant() : 0;
        (other ? times.other : times.same).push_back(time_after_sample(variant));
        if (other && i == judged && is_on(Check::kUnseenContent)) wrong_ = judge(variant);
      }
    }
    return times;
  }

  Times time_after_repeats(int count) {
    operands_.upload(oracle_.inputs);
    for (std::int64_t i = 0; i < samples_timed_; ++i) prepared_.sample(set_);
    Times times;
    for (int i = 0; i < count; ++i) times.same.push_back(time_launch(0));
    for (int i = 0; i < count; ++i) times.other.push_back(time_launch(new_variant()));
    return times;
  }

  std::string judge(std::uint64_t variant) const {
    device_.synchronize();
    const AttentionOutputs outputs = operands_.download_outputs();
    const AttentionInputs inputs = varied_inputs(oracle_.inputs, variant);
    const RowSample rows = choose_rows(problem_, kReferenceFlops, variant);
    const Reference reference = reference_forward(problem_, inputs, rows);
    const ErrorBound bound = error_bound(problem_, reference);
    const OutputError error =
        compare(problem_, reference, gather_rows(outputs.o, rows), gather_lse(problem_, outputs.lse, rows));
    return exceeded(error, bound) ? describe_error(error, bound) : "";
  }

  std::uint64_t new_variant() { return (std::uint64_t{random_()} << 32 | random_()) | 1; }

  Device& device_;
  const PlacedProblem& problem_;
  const Oracle& oracle_;
  PreparedCandidate& prepared_;
  int set_;
  Operands& operands_;
  std::int64_t samples_timed_;
  std::unique_ptr<Timer> timer_;
  double jitter_us_;
  std::string wrong_;
  std::random_device random_;  // a seed that somebody can read is one that he can prepare for
};

}  // namespace

ContentAudit detect_memoisation(Device& device, const PlacedProblem& problem, const Oracle& oracle,
                                PreparedCandidate& prepared, int set) {
  if (!is_on(Check::kContentTiming) && !is_on(Check::kUnseenContent)) return {};
  return Audit(device, problem, oracle, prepared, set).run();
}

}  // namespace flashcore
