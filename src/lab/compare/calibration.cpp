#include "lab/compare/calibration.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "lab/compare/aa.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr const char* kCalibrationSchema = "flashcore.calibration/1";

}  // namespace

void to_json(json& j, const Calibration& c) {
  j = {{"device", c.device_key},
       {"problem", c.problem},
       {"candidate", c.candidate},
       {"created_at", c.created_at},
       {"regime", to_string(c.regime)},
       {"condition", to_string(c.condition)},
       {"repeats", c.repeats},
       {"alarms", c.alarms},
       {"alpha", c.alpha},
       {"machine", c.machine}};
}

void from_json(const json& j, Calibration& c) {
  j.at("device").get_to(c.device_key);
  j.at("problem").get_to(c.problem);
  j.at("candidate").get_to(c.candidate);
  j.at("created_at").get_to(c.created_at);
  c.regime = parse_regime(j.at("regime").get<std::string>());
  c.condition = parse_condition(j.at("condition").get<std::string>());
  j.at("repeats").get_to(c.repeats);
  j.at("alarms").get_to(c.alarms);
  j.at("alpha").get_to(c.alpha);
  if (j.contains("machine")) j.at("machine").get_to(c.machine);
  // What it says decides whether verdicts are believed.
  if (c.repeats < 0 || c.alarms < 0 || c.alarms > c.repeats || !(c.alpha > 0 && c.alpha < 1))
    throw_bad_input("{} alarms of {} repeats at alpha {:g} are no calibration", c.alarms, c.repeats, c.alpha);
}

std::vector<Calibration> parse_calibrations(std::string_view text, const std::string& origin) {
  try {
    const json document = parse_json(text, origin);
    if (document.at("schema") != kCalibrationSchema) throw_bad_input("another schema");
    return document.at("calibrations").get<std::vector<Calibration>>();
  } catch (const std::exception& e) {
    throw_bad_input("'{}' is not a calibration file ({}): remove it and run `flashcore ab --calibrate` again", origin,
                    excerpt(e.what(), 1000));
  }
}

namespace {

std::vector<Calibration> read_calibrations(const std::filesystem::path& file) {
  std::error_code none;
  if (!std::filesystem::exists(file, none)) return {};
  return parse_calibrations(read_file(file), file.string());
}

bool same_place(const Calibration& c, const std::string& device_key, Regime regime, Condition condition) {
  return c.device_key == device_key && c.regime == regime && c.condition == condition;
}

}  // namespace

bool Calibration::trusted() const { return repeats >= kLeastRaces && alarms <= 2 * alpha * repeats; }

std::string Calibration::why_not_trusted() const {
  if (trusted()) return "";
  if (repeats < kLeastRaces)
    return fmt::format(
        "on {} ({}, {}) this measurement is not known to be right: {} against itself on {} had {} races, and {} are "
        "needed. Run `flashcore ab --calibrate` again",
        device_key, to_string(regime), to_string(condition), candidate, problem, repeats, kLeastRaces);
  return fmt::format(
      "on {} ({}, {}) this measurement cannot be trusted: of {} races of {} against itself on {}, {} found a "
      "difference "
      "({:.1f}%, at most {:.0f}% is allowed). Quieten the machine and run `flashcore ab --calibrate` again",
      device_key, to_string(regime), to_string(condition), repeats, candidate, problem, alarms,
      repeats > 0 ? 100.0 * alarms / repeats : 0.0, 200 * alpha);
}

std::filesystem::path calibration_file(const std::filesystem::path& store) {
  return store.parent_path() / "calibration.json";
}

std::string save_calibration(const std::filesystem::path& file, const Calibration& calibration) {
  if (calibration.repeats < kLeastRaces)
    return fmt::format("{} races are too few to know by: use --repeats {} or more", calibration.repeats, kLeastRaces);
  std::vector<Calibration> all = read_calibrations(file);
  const auto here = [&](const Calibration& c) {
    return same_place(c, calibration.device_key, calibration.regime, calibration.condition);
  };
  for (const Calibration& c : all)
    if (here(c) && !c.trusted() && c.repeats > calibration.repeats)
      return fmt::format(
          "the earlier one of {} races, {} of which found a difference, is refused, and fewer races do "
          "not lift that: use --repeats {} or more",
          c.repeats, c.alarms, c.repeats);
  std::erase_if(all, here);
  all.push_back(calibration);
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  write_file_atomically(file, json{{"schema", kCalibrationSchema}, {"calibrations", all}}.dump(2) + "\n");
  return "";
}

std::optional<Calibration> find_calibration(const std::filesystem::path& file, const std::string& device_key,
                                            Regime regime, Condition condition) {
  for (Calibration& c : read_calibrations(file))
    if (same_place(c, device_key, regime, condition)) return std::move(c);
  return std::nullopt;
}

}  // namespace flashcore
