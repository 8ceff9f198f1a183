#include "lab/verify/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "core/foreign_text.h"
#include "core/operands.h"
#include "lab/compare/peer_rows.h"
#include "lab/measure/floor.h"
#include "lab/record/checks.h"
#include "lab/record/trial.h"
#include "lab/verify/evidence.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kRounding = 0.0051;  // TFLOP/s are written with two decimals at least
constexpr double kTolerance = 0.01;
constexpr double kFloorTolerance = 0.97;
constexpr double kSampleTolerance = 2e-4;    // samples and figures are rounded
constexpr double kIntervalTolerance = 2e-3;  // other compilers resample in other last digits
constexpr double kMargin = 0.03;             // of `flashcore peers`
constexpr double kSmallest = 1e-4;           // figures are rounded to so many digits

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

std::string letters_of(std::string_view text) {
  std::string letters;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)))
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
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

std::string id_of(const json& result) {
  const json named = result.value("problem", json());
  return named.is_string() ? named.get<std::string>() : "?";
}

json at_path(const json& object, const char* path) { return object.value(json::json_pointer(path), json()); }

bool agree(const json& claimed, const json& honest, double tolerance) {
  if (!claimed.is_number() || !honest.is_number()) return claimed == honest;
  const double a = claimed.get<double>(), b = honest.get<double>();
  return std::abs(a - b) <= tolerance * std::max(std::abs(b), kSmallest);
}

// What follows from the problem, the time and the device's ceilings, with or without samples.
void audit_rates(const json& result, std::vector<std::string>& complaints) {
  const std::string id = id_of(result);
  const double p50 = number(result.at("time_us"), "p50"), p10 = number(result.at("time_us"), "p10"),
               p90 = number(result.at("time_us"), "p90");
  if (p50 <= 0) return complaints.push_back(fmt::format("{}: its time is {}", id, p50));
  const PlacedProblem problem = PlacedProblem::parse(id);
  if ((p10 > 0 && p10 > p50) || (p90 > 0 && p90 < p50))
    complaints.push_back(fmt::format("{}: its time of {:.3f} us is not between its p10 and its p90", id, p50));
  const double gbps = number(result, "gbps"), honest = problem.bytes() / p50 * 1e-3;
  if (gbps > 0 && std::abs(gbps - honest) > kTolerance * honest + kRounding)
    complaints.push_back(fmt::format("{}: {:.2f} GB/s is not what its bytes and its time of {:.3f} us give: {:.2f}", id,
                                     gbps, p50, honest));
  if (result.contains("decode") && result["decode"] != json(problem.is_decode()))
    complaints.push_back(fmt::format("{}: \"decode\" is {}, and the problem is {}decoding", id, result["decode"].dump(),
                                     problem.is_decode() ? "" : "not "));
  const json device = result.value("device", json());
  if (!device.is_object() || !device.contains("limits")) return;
  const DeviceInfo info = device.get<DeviceInfo>();
  if (info.limits.kind == DeviceKind::kCuda && letters_of(info.name).find(letters_of(info.key)) == std::string::npos)
    complaints.push_back(
        fmt::format("{}: the device '{}' is not named like its key '{}'", id, excerpt(info.name), excerpt(info.key)));
  if (!device.contains("ceilings") || !result.contains("floor_us")) return;
  const double floor = floor_us(problem, info, device["ceilings"].get<Ceilings>());
  if (!agree(result["floor_us"], json(floor), kTolerance))
    complaints.push_back(fmt::format("{}: a floor of {} us is not what the device's ceilings give: {:.3f}", id,
                                     result["floor_us"].dump(), floor));
}

// What a peer run prints follows from the samples that it kept: each field that derive_figures writes.
void audit_samples(const json& result, std::vector<std::string>& complaints) {
  const std::string id = id_of(result);
  json again = result;
  derive_figures(again, kMargin);
  const auto check = [&](const std::string& what, const char* path, const json& claimed, const json& honest,
                         double tolerance) {
    const json a = at_path(claimed, path), b = at_path(honest, path);
    if (!agree(a, b, tolerance))
      complaints.push_back(
          fmt::format("{}: {}{} is {}, and its raw samples give {}", id, what, path, a.dump(), b.dump()));
  };
  for (const char* path :
       {"/time_us/p10", "/time_us/p50", "/time_us/p90", "/tflops", "/gbps", "/kcycles", "/samples", "/sessions"})
    check("", path, result, again, kSampleTolerance);
  for (std::size_t i = 0; i < again.at("peers").size(); ++i) {
    const json &claimed = result.at("peers").at(i), &honest = again["peers"][i];
    const std::string what = "of the peer " + honest.value("name", "?") + ", ";
    for (const char* path :
         {"/time_us/p10", "/time_us/p50", "/time_us/p90", "/speedup", "/sessions", "/verdict", "/no_interval"})
      check(what, path, claimed, honest, kSampleTolerance);
    for (const char* path : {"/ci95/0", "/ci95/1"}) check(what, path, claimed, honest, kIntervalTolerance);
    for (const char* path : {"/p_value", "/detectable"}) check(what, path, claimed, honest, kTolerance);
  }
}

void audit_row(const json& result, Audit& found) {
  const auto time = result.find("time_us");
  if (time == result.end() || !time->is_object()) return;
  const std::string id = id_of(result);
  try {
    audit(result, found.wrong);
    for (std::string& what : audit_evidence(result)) found.wrong.push_back(std::move(what));
    audit_rates(result, found.wrong);
    const json peers = result.value("peers", json::array());
    if (result.contains("measured")) audit_samples(result, found.wrong);
    else if (!peers.empty()) found.without_samples.push_back(id);
  } catch (const std::exception& e) {
    found.wrong.push_back(fmt::format("{}: its figures or raw samples cannot be read: {}", id, e.what()));
  }
}

}  // namespace

Audit audit_document(const json& document) {
  Audit found;
  const auto results = document.find("results");
  if (results == document.end() || !results->is_array()) return found;
  std::set<std::pair<std::string, std::string>> seen;
  for (const json& result : *results) {
    if (!result.is_object()) continue;
    const std::string id = id_of(result), name = result.value("name", json()).dump();
    if (!seen.insert({id, name}).second)
      found.wrong.push_back(fmt::format("{}: it is in the file twice, and would count twice in a mean", id));
    audit_row(result, found);
  }
  return found;
}

std::vector<std::string> audit_results(const json& document) { return audit_document(document).wrong; }

}  // namespace flashcore
