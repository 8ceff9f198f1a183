#include "kernels/batch_invariant.h"

#include <algorithm>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr std::int64_t kManyRows = 4096, kKeys = 4096;

// Packed sequences are what the families' preferences know most of: of dense ones with few rows dispatch has measured
// configs instead, whose order of keys goes by the batch.
Problem packed(Problem problem) {
  if (!problem.ragged()) problem.lengths = Lengths::kFull;
  return problem;
}

}  // namespace

Problem any_batch_of(const Problem& problem) {
  Problem any = problem;
  any.batch = 1;
  any.seqlen_q = problem.seqlen_q <= kFewInvariantRows ? kFewInvariantRows : kManyRows;
  // A window is one, however short the sequences of this batch are.
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const auto side = [&](const std::optional<std::int64_t>& keys) { return std::min(keys.value_or(0), kMost / 4); };
  any.seqlen_kv = std::max(kKeys, side(problem.mask.left) + side(problem.mask.right) + any.seqlen_q + 2);
  if (any.ragged()) any.lengths = Lengths::kFull;
  if (any.paged()) any.page_size = 1;
  return any;
}

Choice batch_invariant_choice(const Problem& problem, const DeviceInfo& device) {
  problem.validate();
  if (problem.has_expression())
    throw_bad_input(
        "equal bits in every batch are asked for, and {} has a score or mask function; leave one out: kernels with "
        "functions are not known to keep bits",
        problem.id());
  const Problem any = any_batch_of(problem);
  // What the emulator has no patience for is no matter of what a kernel can.
  DeviceLimits whole = device.limits;
  whole.emulated = false;
  const Family* best = nullptr;
  ConfigValues config;
  int best_preference = 0;
  std::string names;
  for (const Family* family : supporting_families(any, whole)) {
    auto own = family->batch_invariant_config(problem, device.limits);
    if (!own) continue;
    const int preference = family->preference(packed(any), device.limits);
    if (best && preference <= best_preference) continue;
    best = family, best_preference = preference, config = std::move(*own);
  }
  if (!best)
    throw_bad_input(
        "equal bits in every batch are asked for, and no family that runs {} on {} promises them; leave it out",
        problem.id(), device.id);
  auto reason = best->why_unsupported(problem, device.limits);
  if (!reason) reason = best->why_invalid(config, problem, device.limits);
  if (reason)
    throw_bad_input(
        "equal bits in every batch are asked for, and {}, which gives them for these heads, does not run {}: {}",
        best->name(), problem.id(), *reason);
  return {{best, std::move(config)},
          fmt::format("equal bits in every batch: {} has one order of keys for {} rows of a sequence", best->name(),
                      any.seqlen_q == kFewInvariantRows ? fmt::format("up to {}", kFewInvariantRows)
                                                        : fmt::format("more than {}", kFewInvariantRows))};
}

}  // namespace flashcore
