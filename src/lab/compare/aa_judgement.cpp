// What the races of A against A say, without the races: files of them are judged as well.

#include <cmath>

#include "core/error.h"
#include "lab/compare/aa.h"
#include "lab/statistics/quantiles.h"
#include "lab/statistics/verdict.h"

namespace flashcore {
namespace {

// A planted share counts as measured if the races find between half and one and a half times of it: the 0.5% of a
// self-test is then told from nothing and from 1%.
constexpr double kLeastMeasured = 0.5, kMostMeasured = 1.5;

}  // namespace

double AaResult::measured() const { return effects.empty() ? 0 : 1 / median(effects) - 1; }

std::string AaResult::why_not_planted(double wanted) const {
  if (std::abs(planted - wanted) > 1e-9)
    return fmt::format("{:.2f}% of extra work was to be planted and {:.2f}% was: a sample has {} launches",
                       100 * wanted, 100 * planted, launches_per_sample);
  if (measured() < kLeastMeasured * wanted || measured() > kMostMeasured * wanted)
    return fmt::format("{:.2f}% of extra work was planted, and the races found {:.2f}%", 100 * wanted,
                       100 * measured());
  return "";
}

void count_race(const Interval& speedup, double margin, AaResult& r) {
  const SpeedVerdict verdict = verdict_of(speedup, margin);
  ++r.repeats;
  r.alarms += speedup.low > 1 || speedup.high < 1;
  r.faster += verdict == SpeedVerdict::kFaster;
  r.slower += verdict == SpeedVerdict::kSlower;
  r.same += verdict == SpeedVerdict::kSame;
  r.inconclusive += verdict == SpeedVerdict::kInconclusive;
  r.effects.push_back(speedup.estimate);
  r.lows.push_back(speedup.low), r.highs.push_back(speedup.high);
}

AaJudgement judge_aa(const AaOptions& options, const AaResult& r, int least_races) {
  if (r.repeats != options.repeats)
    return {false, false,
            fmt::format("broke off after {} of {} races{}", r.repeats, options.repeats,
                        r.failure.empty() ? "" : ": " + r.failure)};
  const std::string counts =
      fmt::format("{} SLOWER, {} FASTER, {} SAME, {} INCONCLUSIVE", r.slower, r.faster, r.same, r.inconclusive);
  if (r.repeats < least_races)
    return {false, false,
            fmt::format("{} races are too few to judge by, {} are needed; {} found a difference; {}", r.repeats,
                        least_races, r.alarms, counts)};
  if (options.planted_permille == 0)
    return {true, r.alarms <= 2 * options.alpha * r.repeats,
            fmt::format("{} of {} races found a difference ({:.1f}%, at most {:.0f}% allowed); {}", r.alarms, r.repeats,
                        100 * r.alarm_rate(), 200 * options.alpha, counts)};
  AaJudgement judged;
  judged.judged = true;
  if (options.planted_permille >= 1000 * options.margin) {
    judged.passed = r.slower >= 0.95 * r.repeats;
    judged.sentence = fmt::format("called SLOWER in {} of {} races ({:.1f}%, at least 95% wanted); {}", r.slower,
                                  r.repeats, 100.0 * r.slower / r.repeats, counts);
  } else {
    judged.passed = r.slower == 0 && r.faster == 0;
    judged.sentence = fmt::format("called SLOWER in {} of {} races (none wanted); {}", r.slower, r.repeats, counts);
  }
  const std::string lacking = r.why_not_planted(options.planted_permille / 1000.0);
  judged.passed = judged.passed && lacking.empty();
  judged.sentence += lacking.empty()
                         ? fmt::format("; {:.2f}% planted, {:.2f}% measured", 100 * r.planted, 100 * r.measured())
                         : "; " + lacking;
  return judged;
}

}  // namespace flashcore
