#pragma once
// Does the measurement tell the truth here? The same candidate against itself, many times over, must hardly ever
// differ; against itself with a planted slowdown of known size it must.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/suite.h"
#include "lab/gates/pair.h"

namespace flashcore {

struct AaOptions : MeasurementSpec {  // max_seconds: of each repeat
  AaOptions() { max_seconds = 0.5; }

  std::string device;  // as open_device
  NamedProblem problem;
  std::string candidate;  // text
  int repeats = 100;
  int planted_permille = 0;  // 30: the one side does 3% more work
  double alpha = 0.05;       // of the 95% interval
  int per_process = 50;      // repeats in one worker process before the next
  double gap_ms = 1;         // idle before each sample: repeats by the hundred cannot each wait as long as `ab` does
  std::string worker_executable;
};

struct AaResult {
  std::string device_key;
  int repeats = 0;  // done
  int alarms = 0;   // intervals that exclude 1: of A against A, `alpha` of them should
  int faster = 0, slower = 0, same = 0, inconclusive = 0;  // verdicts at the margin
  int launches_per_sample = 0;
  double seconds = 0;           // all of it
  std::vector<double> effects;  // speed-up of each repeat
  std::vector<double> half_widths;
  std::string failure;  // why it ended early; empty if it did not
  double alarm_rate() const { return repeats > 0 ? static_cast<double>(alarms) / repeats : 1; }
};

// Same code on both sides on purpose. `stop` is polled. Errors as Worker.
AaResult repeat_aa(const AaOptions& options, const std::function<void(int done, int total)>& progress = {},
                   const std::function<bool()>& stop = {});
nlohmann::json aa_json(const AaOptions& options, const AaResult& result);

// --- what an A/A run leaves behind ----------------------------------------------------------------------------------
struct Calibration {
  std::string device_key, problem, candidate, created_at;
  Regime regime = Regime::kGraph;
  Condition condition = Condition::kBurst;
  int repeats = 0, alarms = 0;
  double alpha = 0.05;
  // At or below twice alpha: what a verdict may rest on.
  bool trusted() const { return repeats > 0 && alarms <= 2 * alpha * repeats; }
  // One sentence for who wants a verdict nevertheless; empty if trusted.
  std::string why_not_trusted() const;
};
void to_json(nlohmann::json& json, const Calibration& calibration);
void from_json(const nlohmann::json& json, Calibration& calibration);

// Beside the store: one file for all devices, the latest calibration of each device, regime and condition.
std::filesystem::path calibration_file(const std::filesystem::path& store);
void save_calibration(const std::filesystem::path& file, const Calibration& calibration);
// None if there is none. Error kBadInput if the file is not one.
std::optional<Calibration> find_calibration(const std::filesystem::path& file, const std::string& device_key,
                                            Regime regime, Condition condition);

}  // namespace flashcore
