#include "lab/verify/audit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "core/foreign_text.h"
#include "core/operands.h"
#include "core/problem_row.h"
#include "lab/compare/peer_rows.h"
#include "lab/compare/peer_sessions.h"
#include "lab/measure/floor.h"
#include "lab/record/checks.h"
#include "lab/record/machine.h"
#include "lab/record/trial.h"
#include "lab/verify/evidence.h"
#include "lab/verify/runs.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kRounding = 0.0051;  // TFLOP/s are written with two decimals at least
constexpr double kTolerance = 0.01;
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
  const PlacedProblem problem = problem_of(result);
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

// None: nothing in the row gives it.
std::optional<double> derived_floor(const json& result) {
  const json device = result.value("device", json());
  if (!device.is_object() || !device.contains("limits") || !device.contains("ceilings") || !result.contains("floor_us"))
    return std::nullopt;
  return floor_us(PlacedProblem::parse(id_of(result)), device.get<DeviceInfo>(), device["ceilings"].get<Ceilings>());
}

void audit_floor(const json& result, std::vector<std::string>& complaints) {
  const std::optional<double> floor = derived_floor(result);
  if (floor && !agree(result["floor_us"], json(*floor), kTolerance))
    complaints.push_back(fmt::format("{}: a floor of {} us is not what the device's ceilings give: {:.3f}",
                                     id_of(result), result["floor_us"].dump(), *floor));
}

// A CPU's key has words of its name and its threads: "cpu_xeon_16c".
bool is_named_like(const DeviceInfo& cpu) {
  const std::string threads = fmt::format("_{}c", cpu.limits.multiprocessors);
  if (!cpu.key.ends_with(threads)) return false;
  const std::string name = letters_of(cpu.name);
  const std::string_view words = std::string_view(cpu.key).substr(0, cpu.key.size() - threads.size());
  for (std::size_t from = words.find('_'); from != std::string_view::npos;) {
    const std::size_t next = words.find('_', from + 1);
    if (name.find(letters_of(words.substr(from, next - from))) == std::string::npos) return false;
    from = next;
  }
  return true;
}

// What follows from the problem, the time and the device's ceilings, with or without samples.
void audit_rates(const json& result, std::vector<std::string>& complaints) {
  const std::string id = id_of(result);
  const double p50 = number(result.at("time_us"), "p50"), p10 = number(result.at("time_us"), "p10"),
               p90 = number(result.at("time_us"), "p90");
  if (p50 <= 0) return complaints.push_back(fmt::format("{}: its time is {}", id, p50));
  const PlacedProblem problem = problem_of(result);
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
  if (info.limits.kind == DeviceKind::kCpu && info.key.starts_with("cpu_") && !is_named_like(info))
    complaints.push_back(fmt::format("{}: the key '{}' is not of the device '{}' with {} threads", id,
                                     excerpt(info.key), excerpt(info.name), info.limits.multiprocessors));
  audit_floor(result, complaints);
}

// What is printed follows from the samples that the row keeps: each field that derive_figures writes.
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
  if (!result.contains("measured")) return;
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

// "session 2 of mission, stage".
std::string list_sessions(const std::map<std::size_t, std::vector<std::string>>& rows_of_session) {
  std::string text;
  for (const auto& [session, names] : rows_of_session)
    text += fmt::format("{}session {} of {}", text.empty() ? "" : "; ", session, fmt::join(names, ", "));
  return text;
}

std::vector<std::string> remarks_on_sessions(const json& rows) {
  std::map<std::string, std::map<std::size_t, std::vector<std::string>>> slowed;  // by reason
  std::map<std::size_t, std::vector<std::string>> busy;
  for (const json& row : rows) {
    if (!row.is_object() || !row.value("measured", json()).is_array()) continue;
    const json named = row.value("name", json());
    const std::string name = named.is_string() ? named.get<std::string>() : id_of(row);
    std::size_t place = 0;
    for (const json& session : row["measured"]) {
      ++place;
      if (!session.is_object() || !session.contains("samples_us")) continue;
      const json environment = session.value("environment", json());
      const json reasons = environment.is_object() ? environment.value("throttle_reasons", json()) : json();
      if (reasons.is_string() && lowers_clocks(reasons.get<std::string>()))
        slowed[excerpt(reasons.get<std::string>(), 80)][place].push_back(name);
      if (number(session, "others_busy") >= kBusyCores) busy[place].push_back(name);
    }
  }
  std::vector<std::string> remarks;
  for (const auto& [reasons, sessions] : slowed)
    remarks.push_back(fmt::format("clocks were lowered ({}) in {}", reasons, list_sessions(sessions)));
  if (!busy.empty())
    remarks.push_back(fmt::format("other programs kept a quarter of a core or more busy in {}", list_sessions(busy)));
  return remarks;
}

bool has_list(const json& object, const char* key) {
  const json list = object.value(key, json());
  return list.is_array() && !list.empty();
}

// Who keeps samples publishes a time, or says of each session how it ended: a bad time would else be withheld by taking
// it out. A row that was wrong in one session loses those before (append_session), which went well.
void audit_withheld(const json& result, std::vector<std::string>& complaints) {
  const std::string id = id_of(result);
  if (has_list(result, "samples_us")) complaints.push_back(fmt::format("{}: it has samples, and no time", id));
  const json sessions = result.value("measured", json());
  if (!sessions.is_array()) return;
  const json incorrect(Ended::kIncorrect);
  const bool is_withdrawn = result.value("ended", json()) == incorrect &&
                            std::any_of(sessions.begin(), sessions.end(), [&](const json& session) {
                              return session.is_object() && session.value("ended", json()) == incorrect;
                            });
  if (is_withdrawn) return;
  std::size_t number = 0;
  for (const json& session : sessions) {
    ++number;
    if (session.is_object() && has_list(session, "samples_us") && !session.value("ended", json()).is_string())
      complaints.push_back(
          fmt::format("{}: it has no time, and session {} has samples and does not say how it ended", id, number));
  }
}

void audit_row(const json& result, Audit& found) {
  const auto time = result.find("time_us");
  const std::string id = id_of(result);
  if (time == result.end() || !time->is_object()) {
    if (result.value("ended", json()) == "passed")
      found.wrong.push_back(fmt::format("{}: it passed, and has no time", id));
    audit_withheld(result, found.wrong);
    return;
  }
  try {
    audit(result, found.wrong);
    for (std::string& what : audit_evidence(result)) found.wrong.push_back(std::move(what));
    audit_rates(result, found.wrong);
    const json peers = result.value("peers", json::array());
    if (has_samples(result)) audit_samples(result, found.wrong);
    // A bench keeps samples of its own alone, and none of a candidate that it was compared with.
    if (!peers.empty() && !result.contains("measured")) found.without_samples.push_back(id);
    else if (!has_samples(result)) found.times_without_samples.push_back(id);
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
  for (const auto& [row, peer] : silent_absences(*results))
    found.wrong.push_back(
        fmt::format("{}: the peer {} is in other rows and not in this one, and \"refused\" does not say why",
                    id_of((*results)[row]), excerpt(peer)));
  for (std::string& what : audit_runs(*results)) found.wrong.push_back(std::move(what));
  found.remarks = remarks_on_sessions(*results);
  return found;
}

std::vector<std::string> audit_results(const json& document) { return audit_document(document).wrong; }

std::optional<json> with_figures_anew(const json& row) {
  try {
    if (!row.at("time_us").is_object()) return std::nullopt;
    std::vector<std::string> complaints;
    const bool sampled = has_samples(row);
    audit_floor(row, complaints);
    if (sampled) audit_samples(row, complaints);
    if (complaints.empty()) return std::nullopt;
    json again = row;
    if (sampled) derive_figures(again, kMargin);
    if (const std::optional<double> floor = derived_floor(row)) again["floor_us"] = *floor;
    return again;
  } catch (const std::exception&) {  // the audit says what cannot be read
    return std::nullopt;
  }
}

}  // namespace flashcore
