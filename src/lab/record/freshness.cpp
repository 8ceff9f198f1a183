#include "lab/record/freshness.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/foreign_text.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::optional<std::string> why_chosen_otherwise(const json& row, const std::string& candidate,
                                                const PlacedProblem& problem, const DeviceInfo& device) {
  if (parse_word<ChosenBy>(row.value("chosen_by", to_string(ChosenBy::kCaller))) != ChosenBy::kDispatch)
    return std::nullopt;
  try {
    const std::string now = dispatch_as_built(problem, device).candidate.print();
    if (now == parse_candidate(candidate, problem, device.limits).print()) return std::nullopt;
    return fmt::format("dispatch now chooses {}, not {}", now, candidate);
  } catch (const Error& e) {
    return fmt::format("{} is not what dispatch would choose now: {}", candidate, e.what());
  }
}

}  // namespace

std::string candidate_of_row(const json& row) {
  std::string text = row.at("family").get<std::string>();
  const json config = row.value("config", json::object());
  if (config.is_string())
    return config.get_ref<const std::string&>().empty() ? text : text + ":" + config.get<std::string>();
  char separator = ':';
  for (const auto& [name, value] : config.items()) {
    if (!value.is_number_integer()) throw_bad_input("config {} is no whole number", excerpt(name));
    text += fmt::format("{}{}={}", separator, name, value.dump());
    separator = ',';
  }
  return text;
}

std::string source_hash_of(std::string_view candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  try {
    return source_hash(parse_candidate(candidate, problem, limits), problem, limits);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    return source_hash();
  }
}

bool is_current(const Trial& trial) {
  return trial.source_hash == source_hash_of(trial.candidate(), trial.problem, trial.device.limits);
}

std::optional<std::string> why_stale(const json& row) {
  const std::string hash = row.at("source_hash").get<std::string>();
  if (!row.contains("family") || row.at("family").is_null() || row.at("family") == "") {
    if (hash == source_hash()) return std::nullopt;
    return "no family ran it on the source that it was measured on, which has changed";
  }
  const json& device = row.at("device");
  if (!device.contains("limits"))
    return "it does not say what its device can hold (an older flashcore wrote it): measure it again";
  const DeviceInfo info = device.get<DeviceInfo>();
  const auto problem = PlacedProblem::parse(row.at("problem").get<std::string>());
  const std::string candidate = candidate_of_row(row);
  if (auto reason = why_chosen_otherwise(row, candidate, problem, info)) return reason;
  if (hash == source_hash_of(candidate, problem, info.limits)) return std::nullopt;
  return fmt::format("what {} is compiled from, or how it is launched, has changed",
                     row.at("family").get<std::string>());
}

}  // namespace flashcore
