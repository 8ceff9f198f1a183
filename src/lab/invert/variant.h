#pragma once
// Variants of a kernel, made to learn what its time depends on. A pathology makes one thing worse and computes the
// same; a leave-one-out omits one thing, and mostly computes something else.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/words.h"
#include "kernels/family.h"
#include "lab/harness/patch.h"

namespace flashcore {

enum class VariantKind { kPathology, kLeaveOneOut };
template <>
struct WordsOf<VariantKind> {
  static constexpr std::string_view what = "kind of variant";
  static constexpr std::pair<VariantKind, std::string_view> table[] = {{VariantKind::kPathology, "pathology"},
                                                                       {VariantKind::kLeaveOneOut, "leave_one_out"}};
};

struct Variant {
  std::string_view name;
  VariantKind kind = VariantKind::kPathology;
  std::string_view with;  // "without exponentials": how a sentence on it begins
  std::string_view help;  // "exponentials": what would help, if less of it did. Of leave-one-outs
  std::string_view then;  // "stores cost nothing": what its time bounds the gain of. Of leave-one-outs
  // What the emulator counts of it, as in counters_json() ("global_load.excess"); sums have "+". "": nothing.
  std::string_view counter;
  bool wrong_on_purpose = false;
  bool past_resources = false;  // it is meant to fail the resource gate, and is timed if it computes the right thing
  // In the place of `with` where the family is the CPU's.
  std::string_view with_on_cpu = "";
};

const std::vector<Variant>& variants();
// Error kBadInput listing the names.
const Variant& variant_by_name(std::string_view name);

// A variant of a candidate.
struct PlantedVariant {
  std::string candidate;       // text
  std::optional<Patch> patch;  // that it is made from; none: another config does it
  std::string why_not;         // not empty: this candidate has no such variant
};
PlantedVariant plant(const Variant& variant, const Candidate& plain, const Problem& problem,
                     const DeviceLimits& limits);

}  // namespace flashcore
