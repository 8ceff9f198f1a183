#include "lab/verify/audit.h"

#include <fmt/format.h>

#include <cmath>

#include "core/operands.h"
#include "lab/compare/peer_rows.h"
#include "lab/record/checks.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kRounding = 0.0051;  // TFLOP/s are written with two decimals at least
constexpr double kTolerance = 0.01;
constexpr double kFloorTolerance = 0.97;
constexpr double kSampleTolerance = 2e-4;  // samples and figures are rounded
constexpr double kAnyMargin = 0.03;        // the verdict is not looked at

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

void audit(const json& result, std::vector<std::string>& complaints) {
  const auto time = result.find("time_us");
  if (time == result.end() || !time->is_object()) return;
  const double p50 = number(*time, "p50"), claimed = number(result, "tflops"), floor = number(result, "floor_us");
  if (p50 <= 0) return;
  const auto named = result.find("problem");
  const std::string id = named != result.end() && named->is_string() ? named->get<std::string>() : "";
  const PlacedProblem problem = PlacedProblem::parse(id);
  const double honest = problem.flops() / p50 * 1e-6;
  if (is_on(Check::kUnmaskedFlops) && claimed > 0 && std::abs(claimed - honest) > kTolerance * honest + kRounding)
    complaints.push_back(
        fmt::format("{}: {:.2f} TFLOP/s is not what its unmasked pairs and its time of {:.3f} us give: {:.2f}", id,
                    claimed, p50, honest));
  if (is_on(Check::kFloor) && p50 < kFloorTolerance * floor)
    complaints.push_back(fmt::format("{}: {:.3f} us is below its own floor of {:.3f} us", id, p50, floor));
}

// What a peer run prints follows from the samples that it kept.
void audit_samples(const json& result, std::vector<std::string>& complaints) {
  if (!result.contains("measured") || !result.value("time_us", json()).is_object()) return;
  const json named = result.value("problem", json());
  const std::string id = named.is_string() ? named.get<std::string>() : "?";
  try {
    json again = result;
    derive_figures(again, kAnyMargin);
    const auto check = [&](const std::string& what, double claimed, double honest) {
      if (!(std::abs(claimed - honest) <= kSampleTolerance * honest))
        complaints.push_back(
            fmt::format("{}: {} is {:.4f}, and its raw samples give {:.4f}", id, what, claimed, honest));
    };
    check("the time", number(result.at("time_us"), "p50"), number(again.at("time_us"), "p50"));
    for (std::size_t i = 0; i < again.at("peers").size(); ++i)
      check("the speed-up over " + again["peers"][i].value("name", "?"), number(result.at("peers").at(i), "speedup"),
            number(again["peers"][i], "speedup"));
  } catch (const std::exception& e) {
    complaints.push_back(fmt::format("{}: its raw samples cannot be read: {}", id, e.what()));
  }
}

}  // namespace

std::vector<std::string> audit_results(const json& document) {
  std::vector<std::string> complaints;
  const auto results = document.find("results");
  if (results != document.end() && results->is_array())
    for (const json& result : *results)
      if (result.is_object()) {
        audit(result, complaints);
        audit_samples(result, complaints);
      }
  return complaints;
}

}  // namespace flashcore
