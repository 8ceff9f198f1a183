#pragma once
// Fuzzing: random problems that a family claims to support, under random configs that it claims are valid, and the
// shrinking of one that fails. Pure: nothing here runs a kernel.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/data.h"
#include "core/words.h"
#include "kernels/family.h"

namespace flashcore {

// What a run may be restricted to, and is counted by. A problem is of several kinds, or of none: dense and plain.
enum class FuzzKind { k8Bit, kQuantisedCache, kPaged, kRagged, kMasked, kScored };
template <>
struct WordsOf<FuzzKind> {
  static constexpr std::string_view what = "kind of problems";
  static constexpr std::pair<FuzzKind, std::string_view> table[] = {
      {FuzzKind::k8Bit, "8bit"},  // q, k and v
      {FuzzKind::kQuantisedCache, "quantised_cache"},
      {FuzzKind::kPaged, "paged"},
      {FuzzKind::kRagged, "ragged"},
      {FuzzKind::kMasked, "masked"},  // by more than causality: a window, or a mask function
      {FuzzKind::kScored, "scored"},  // softcap, ALiBi, a sink, or a score function
  };
};
std::vector<FuzzKind> kinds_of(const Problem& problem);

struct FuzzCase {
  PlacedProblem problem;
  Candidate candidate;
  Pattern pattern = Pattern::kNormal;
  std::uint64_t seed = 1;  // of the data
  bool operator==(const FuzzCase&) const = default;
};

// Whether the family supports the problem and takes the config for it.
bool valid(const FuzzCase& fuzz_case, const DeviceLimits& device);

inline constexpr std::int64_t kMostFuzzCases = 10'000'000;  // of a run

struct FuzzLimits {
  double max_flops = 1.5e8;               // full (unmasked) pairs: sets the time of the fp64 reference
  std::int64_t max_elements = 4'000'000;  // q, k, v and o together: sets the time to fill and copy
  std::vector<FuzzKind> kinds = {};       // problems of one of these; empty: all
};

// What a case may cost on that device: an emulated GPU takes seconds for what a GPU does in microseconds, and the
// largest problems under a cluster of eight CTAs took more than a worker's three minutes.
FuzzLimits fuzz_limits(const DeviceLimits& device, std::vector<FuzzKind> kinds);

// Of that kind of device, in order; only the one named, where a name is given.
std::vector<const Family*> families_to_fuzz(const DeviceLimits& device, std::string_view name);

// The case that (seed, index) names: the same on every machine and whatever ran before, so that one case of a run can
// be had again alone. The family is drawn first, then a problem it supports, then a config. None if `families` holds no
// family that supports anything drawn (20 families, 200 problems of each).
std::optional<FuzzCase> random_case(std::uint64_t seed, std::uint64_t index, const std::vector<const Family*>& families,
                                    const DeviceLimits& device, const FuzzLimits& limits = {});

// A config that why_invalid accepts, drawn by rejection; the default if 1000 draws find none. One that is to be judged
// keeps the bounds, too.
ConfigValues random_judged_config(const Family& family, const Problem& problem, const DeviceLimits& device,
                                  std::uint64_t seed);
ConfigValues random_config(const Family& family, const Problem& problem, const DeviceLimits& device,
                           std::uint64_t seed);

// Every case one step simpler than `from` that its family still claims to support: a size halved or one less, a feature
// dropped, a config field at its default. Boldest first. Each step lowers complexity(), so shrinking ends.
std::vector<FuzzCase> simpler_cases(const FuzzCase& from, const DeviceLimits& device);
// A strict order for shrinking; smaller is simpler. Unitless.
double complexity(const FuzzCase& fuzz_case, const DeviceLimits& device);

// Greedy descent: while a simpler case still fails, take it. `still_fails` runs it; at most `max_runs` runs.
FuzzCase shrink(const FuzzCase& failing, const DeviceLimits& device,
                const std::function<bool(const FuzzCase&)>& still_fails, int max_runs = 300);

// One line that runs the case again: "flashcore check --device cpu --problem ... --family ... --config ... --patterns
// ... --seed ...".
std::string repro_command(const FuzzCase& fuzz_case, const std::string& device_id);

}  // namespace flashcore
