#include "lab/verify/audit.h"

#include <fmt/format.h>

#include <cmath>

#include "core/operands.h"
#include "lab/record/checks.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kRounding = 0.0051;  // TFLOP/s are written with two decimals at least
constexpr double kTolerance = 0.01;
constexpr double kFloorTolerance = 0.97;

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

}  // namespace

std::vector<std::string> audit_results(const json& document) {
  std::vector<std::string> complaints;
  const auto results = document.find("results");
  if (results != document.end() && results->is_array())
    for (const json& result : *results)
      if (result.is_object()) audit(result, complaints);
  return complaints;
}

}  // namespace flashcore
