#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kernels/embedded.h"
#include "kernels/family.h"

namespace flashcore {
namespace {

// An entry is trusted for a neighbour while every size is within this factor of its own, summed over the sizes in log2.
constexpr double kNearLog2 = 2.0;

// {"<device key>": {"<problem id>": "<candidate>"}}
const nlohmann::json& tuned_table() {
  static const nlohmann::json table = nlohmann::json::parse(embedded_device_sources().at("tuned.json"));
  return table;
}

double log2_ratio(std::int64_t a, std::int64_t b) {
  return std::abs(
      std::log2(static_cast<double>(std::max<std::int64_t>(a, 1)) / static_cast<double>(std::max<std::int64_t>(b, 1))));
}

// Infinite where the kernel itself would be another one: element size, head dims, mask.
double distance(const Problem& a, const Problem& b) {
  if (size_of(a.dtype) != size_of(b.dtype) || a.head_dim != b.head_dim || a.head_dim_v != b.head_dim_v ||
      (a.causal == Causal::kNone) != (b.causal == Causal::kNone)) {
    return std::numeric_limits<double>::infinity();
  }
  return log2_ratio(a.batch * a.heads_q, b.batch * b.heads_q) + log2_ratio(a.seqlen_q, b.seqlen_q) +
         log2_ratio(a.seqlen_kv, b.seqlen_kv) + 0.5 * log2_ratio(a.group_size(), b.group_size());
}

std::optional<Choice> from_table(const Problem& problem, const DeviceInfo& device) {
  const auto entries = tuned_table().find(device.key);
  if (entries == tuned_table().end()) return std::nullopt;
  double best = std::numeric_limits<double>::infinity();
  std::string best_id, best_text;
  for (const auto& [id, text] : entries->items()) {
    const double d = distance(problem, Problem::parse(id));
    if (d < best) best = d, best_id = id, best_text = text.get<std::string>();
  }
  if (best > kNearLog2) return std::nullopt;
  try {
    const std::string how =
        best == 0 ? "tuned table" : fmt::format("nearest entry of the tuned table (distance {:.2f} in log2)", best);
    return Choice{parse_candidate(best_text, problem, device.limits),
                  fmt::format("{}: {} on {}", how, best_id, device.key)};
  } catch (const Error&) {
    return std::nullopt;  // the neighbour's config does not fit this problem: the default does
  }
}

}  // namespace

Choice dispatch(const Problem& problem, const DeviceInfo& device) {
  problem.validate();
  if (auto choice = from_table(problem, device)) return *choice;
  std::vector<std::string> reasons;
  std::vector<const Family*> families = supporting_families(problem, device.limits, &reasons);
  if (families.empty()) {
    std::string all;
    for (const std::string& reason : reasons) all += "\n  " + reason;
    throw_bad_input("no family runs {} on {}:{}", problem.id(), device.id, all);
  }
  const Family* best = *std::max_element(families.begin(), families.end(), [&](const Family* a, const Family* b) {
    return a->preference(problem, device.limits) < b->preference(problem, device.limits);
  });
  return {{best, best->default_config(problem, device.limits)},
          fmt::format("default of {}: no entry of the tuned table is near on {}", best->name(), device.key)};
}

}  // namespace flashcore
