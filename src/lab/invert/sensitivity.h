#pragma once
// What variants of a kernel did to its time, or on an emulated GPU to its counters, and what follows for who wants it
// faster. Pure functions of the measurements.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/compare/ab.h"
#include "lab/invert/variant.h"

namespace flashcore {

// A counter of the emulator: of the plain kernel and of the variant.
struct CounterChange {
  std::string counter;
  double plain = 0, variant = 0;
};

struct Sensitivity {
  std::string variant, candidate;
  VariantKind kind = VariantKind::kPathology;
  bool wrong_on_purpose = false;
  std::string why_not;  // not empty: there is no such variant here, or it could not be judged
  // Of times. kNotJudged: there are none.
  SpeedVerdict verdict = SpeedVerdict::kNotJudged;
  double time_ratio = 1, low = 1, high = 1;  // the variant's time over the plain kernel's, with its 95% interval
  std::optional<CounterChange> count;        // on an emulated GPU
  std::string sentence;

  bool judged() const { return verdict != SpeedVerdict::kNotJudged || count; }
};

// A variant that was timed: `result` is of the variant against the plain kernel.
Sensitivity sensitivity_of_times(const Variant& variant, const std::string& candidate, const AbResult& result);
// One whose launch was counted; `plain` and `changed` are Device::counters() of each.
Sensitivity sensitivity_of_counts(const Variant& variant, const std::string& candidate, const nlohmann::json& plain,
                                  const nlohmann::json& changed);
Sensitivity no_sensitivity(const Variant& variant, const std::string& candidate, std::string why_not);

// Those that were judged, the largest effect first: leave-one-outs by what they save, pathologies by what they cost.
// Counters of different things have no common scale: of counts, the order of the variants is kept.
std::vector<Sensitivity> ranking(std::vector<Sensitivity> all);

// What would help most, of a ranking: a sentence or two.
std::string answer(const std::vector<Sensitivity>& ranked);

void to_json(nlohmann::json& json, const Sensitivity& sensitivity);

}  // namespace flashcore
