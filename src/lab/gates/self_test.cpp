#include "lab/gates/self_test.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "lab/record/checks.h"

namespace flashcore {
namespace {

constexpr double kFastUs = 100, kSlowUs = 108, kNoise = 0.01;

Sampler made_up(double time_us, std::shared_ptr<SplitMix> random) {
  return [time_us, random] { return Sample{time_us * std::exp(kNoise * random->normal()), 0}; };
}

}  // namespace

std::string comparison_self_test(const CompareFunction& compare) {
  if (!is_on(Check::kSelfTest)) return "";
  const auto random = std::make_shared<SplitMix>(7);
  const Sampler fast = made_up(kFastUs, random), slow = made_up(kSlowUs, random);
  const auto wrong = [](const char* what, const Comparison& c, SpeedVerdict expected) {
    return fmt::format(
        "the comparison failed its self-test: a candidate made 8% {} came out {} with speed-up {:.3f}, not {}; nothing "
        "is judged by it",
        what, c.verdict, c.speedup, expected);
  };
  if (const Comparison c = compare(slow, fast); c.verdict != SpeedVerdict::kSlower || c.speedup >= 1)
    return wrong("slower", c, SpeedVerdict::kSlower);
  if (const Comparison c = compare(fast, slow); c.verdict != SpeedVerdict::kFaster || c.speedup <= 1)
    return wrong("faster", c, SpeedVerdict::kFaster);
  return "";
}

const std::string& race_self_test() {
  static const std::string result = comparison_self_test([](const Sampler& candidate, const Sampler& incumbent) {
    RaceOptions options;
    options.min_blocks = options.max_blocks = 12;
    options.early_drop = false;
    return race(candidate, incumbent, options).comparison;
  });
  return result;
}

}  // namespace flashcore
