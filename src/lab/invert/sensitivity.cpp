#include "lab/invert/sensitivity.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "lab/record/json_io.h"

namespace flashcore {
namespace {

using nlohmann::json;

// "global_load.excess" of counters_json(); of "a+b" the sum.
double value_of(const json& counters, std::string_view name) {
  const std::size_t plus = name.find('+');
  if (plus != std::string_view::npos)
    return value_of(counters, name.substr(0, plus)) + value_of(counters, name.substr(plus + 1));
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return counters.at(std::string(name)).get<double>();
  return value_of(counters.at(std::string(name.substr(0, dot))), name.substr(dot + 1));
}

std::string times_words(const Variant& variant, const Sensitivity& s) {
  std::string words =
      fmt::format("{} it takes {:.2f} of the time ({:.2f} to {:.2f})", variant.with, s.time_ratio, s.low, s.high);
  if (s.verdict == SpeedVerdict::kInconclusive)
    return words + ", which may be noise: more time or a quieter machine would tell";
  if (variant.kind == VariantKind::kLeaveOneOut) {
    if (s.verdict == SpeedVerdict::kFaster)
      return words + fmt::format(": at most {:.2f} times as fast if {}", 1 / s.low, variant.then);
    if (s.verdict == SpeedVerdict::kSlower) return words + ": what is in their place costs more, so it bounds nothing";
    return words + fmt::format(": no gain beyond the margin if {}", variant.then);
  }
  if (s.verdict == SpeedVerdict::kSlower) return words + ": it depends on that";
  if (s.verdict == SpeedVerdict::kFaster) return words + ": the plain kernel is the worse one";
  return words + ": it does not depend on that";
}

Sensitivity blank_sensitivity(const Variant& variant, const std::string& candidate) {
  Sensitivity s;
  s.variant = variant.name;
  s.candidate = candidate;
  s.kind = variant.kind;
  s.wrong_on_purpose = variant.wrong_on_purpose;
  return s;
}

double effect(const Sensitivity& s) {
  return s.kind == VariantKind::kLeaveOneOut ? -std::log(s.time_ratio) : std::log(s.time_ratio);
}

}  // namespace

Sensitivity no_sensitivity(const Variant& variant, const std::string& candidate, std::string why_not) {
  Sensitivity s = blank_sensitivity(variant, candidate);
  s.why_not = std::move(why_not);
  s.sentence = fmt::format("{}: {}", variant.name, s.why_not);
  return s;
}

Sensitivity sensitivity_of_times(const Variant& variant, const std::string& candidate, const AbResult& result) {
  if (result.same_code)
    return no_sensitivity(variant, candidate, "the compiler makes the same machine code of it, so it changes nothing");
  if (result.ended != PairEnded::kMeasured) return no_sensitivity(variant, candidate, result.sentence);
  Sensitivity s = blank_sensitivity(variant, candidate);
  s.verdict = result.verdict;
  s.time_ratio = 1 / result.comparison.speedup;
  s.low = 1 / result.comparison.ci95_high;
  s.high = 1 / result.comparison.ci95_low;
  s.sentence = times_words(variant, s);
  return s;
}

Sensitivity sensitivity_of_counts(const Variant& variant, const std::string& candidate, const json& plain,
                                  const json& changed) {
  if (variant.counter.empty())
    return no_sensitivity(variant, candidate, "no counter of the emulator shows it; a GPU's time does");
  const CounterChange c = {std::string(variant.counter), value_of(plain, variant.counter),
                           value_of(changed, variant.counter)};
  if (c.plain == c.variant)
    return no_sensitivity(
        variant, candidate,
        fmt::format("its counter {} stays {:g}: what is changed here is not counted", c.counter, c.plain));
  Sensitivity s = blank_sensitivity(variant, candidate);
  s.count = c;
  s.sentence =
      fmt::format("{} its {} goes from {:g} to {:g}{}", variant.with, c.counter, c.plain, c.variant,
                  c.plain > 0 && c.variant > 0 ? fmt::format(", {:.2f} times", c.variant / c.plain) : std::string());
  return s;
}

std::vector<Sensitivity> ranking(std::vector<Sensitivity> all) {
  std::erase_if(all, [](const Sensitivity& s) { return !s.judged(); });
  std::stable_sort(all.begin(), all.end(), [](const Sensitivity& a, const Sensitivity& b) {
    if (a.count || b.count) return false;
    return effect(a) > effect(b);
  });
  return all;
}

std::string answer(const std::vector<Sensitivity>& ranked) {
  if (ranked.empty()) return "no variant could be judged, so nothing is known";
  if (ranked.front().count)
    return "an emulated GPU has no time: these are counts of what a launch does, and say nothing of what would help";
  const auto best = [&](VariantKind kind, SpeedVerdict verdict) {
    return std::find_if(ranked.begin(), ranked.end(),
                        [&](const Sensitivity& s) { return s.kind == kind && s.verdict == verdict; });
  };
  const auto omitted = best(VariantKind::kLeaveOneOut, SpeedVerdict::kFaster);
  const bool any = std::any_of(ranked.begin(), ranked.end(),
                               [](const Sensitivity& s) { return s.kind == VariantKind::kLeaveOneOut; });
  std::string words;
  if (omitted != ranked.end())
    words = fmt::format("fewer or cheaper {} would help most: {}", variant_by_name(omitted->variant).help,
                        omitted->sentence);
  else if (any) words = "no leave-one-out is faster beyond the margin: time goes into what none of them omits";
  const auto worst = best(VariantKind::kPathology, SpeedVerdict::kSlower);
  if (worst != ranked.end())
    words +=
        fmt::format("{}it is most sensitive to {}: {}", words.empty() ? "" : "; ", worst->variant, worst->sentence);
  return words.empty() ? "no variant differs from the plain kernel beyond the margin" : words;
}

void to_json(json& j, const Sensitivity& s) {
  j = {{"variant", s.variant},     {"kind", s.kind},
       {"candidate", s.candidate}, {"wrong_on_purpose", s.wrong_on_purpose},
       {"verdict", s.verdict},     {"sentence", s.sentence}};
  if (s.verdict != SpeedVerdict::kNotJudged) {
    j["time_ratio"] = s.time_ratio;
    j["ci95"] = {s.low, s.high};
  }
  if (s.count) j["count"] = {{"counter", s.count->counter}, {"plain", s.count->plain}, {"variant", s.count->variant}};
  if (!s.why_not.empty()) j["why_not"] = s.why_not;
  j = encode_nonfinite(j);
}

}  // namespace flashcore
