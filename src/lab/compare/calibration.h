#pragma once
// What an A/A run leaves behind: how often this machine calls a candidate different from itself.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "lab/record/machine.h"

namespace flashcore {

struct Calibration {
  std::string device_key, problem, candidate, created_at;
  Regime regime = Regime::kGraph;
  Condition condition = Condition::kBurst;
  int repeats = 0, alarms = 0;
  double alpha = 0.05;
  MachineReading machine;  // while it raced
  // kLeastRaces races (lab/compare/aa.h) or more, at or below twice alpha: what a verdict may rest on.
  bool trusted() const;
  // One sentence for who wants a verdict nevertheless; empty if trusted.
  std::string why_not_trusted() const;
};
void to_json(nlohmann::json& json, const Calibration& calibration);
void from_json(const nlohmann::json& json, Calibration& calibration);
// Those of one file. Error kBadInput, naming `origin`, if the text is none.
std::vector<Calibration> parse_calibrations(std::string_view text, const std::string& origin);

// Beside the store: one file for all devices, the latest calibration of each device, regime and condition.
std::filesystem::path calibration_file(const std::filesystem::path& store);
// In words why it was not kept; empty if it was. One of fewer than kLeastRaces races never is, and one that is refused
// gives way only to as many races: the fewer there are, the likelier do they find nothing.
std::string save_calibration(const std::filesystem::path& file, const Calibration& calibration);
// None if there is none. Error kBadInput if the file is not one.
std::optional<Calibration> find_calibration(const std::filesystem::path& file, const std::string& device_key,
                                            Regime regime, Condition condition);

}  // namespace flashcore
