#pragma once
// What a run of the fuzzer was and found: one row for each case, so that each can be run again alone.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "lab/record/trial.h"
#include "lab/record/trial_seconds.h"
#include "lab/verify/fuzz.h"

namespace flashcore {

struct FuzzRow {
  std::uint64_t index = 0;  // of the case, for random_case()
  FuzzCase drawn;
  Ended ended = Ended::kError;
  std::string message;                   // why it did not pass
  std::optional<double> share_of_bound;  // none: it was not judged
  TrialSeconds seconds;                  // none of a row that an earlier run's file has
};
// What a run keeps of a trial: it may have millions of them.
FuzzRow fuzz_row(std::uint64_t index, const FuzzCase& drawn, const Trial& trial);

inline constexpr const char* kFuzzSchema = "flashcore.fuzz/1";

// One process that tried cases. Those that a later session tried again are not taken off.
struct FuzzSession {
  std::string measured_at;
  std::int64_t cases = 0;
  double wall_seconds = 0;
  TrialSeconds seconds;
};

struct FuzzRun {
  DeviceInfo device;
  std::uint64_t seed = 1;
  std::int64_t asked = 0, not_drawn = 0;  // cases; not drawn: no family supported what was drawn
  std::string family;                     // the only one; empty: all of the device
  std::vector<FuzzKind> kinds;            // the only ones; empty: all
  std::vector<FuzzSession> sessions;      // in their order
  std::vector<FuzzRow> rows;              // of cases that came to an end, in any order
};

// {"schema": kFuzzSchema, ...}: counts by family and by kind, where the time went, and the rows in order.
nlohmann::json fuzz_json(const FuzzRun& run);
// "8bit 210, paged 130": how many of the rows are of each kind; "" where none is of any.
std::string counts_by_kind(const std::vector<FuzzRow>& rows);

// Whether a row of a file is of that case.
bool is_row_of(const nlohmann::json& row, const FuzzCase& drawn);
// A file from before sessions is of one.
std::vector<FuzzSession> sessions_of(const nlohmann::json& document);

}  // namespace flashcore
