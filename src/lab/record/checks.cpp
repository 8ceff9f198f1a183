#include "lab/record/checks.h"

#include <fmt/ranges.h>

#include <array>
#include <string>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr std::pair<Check, std::string_view> kNames[] = {
    {Check::kSpills, "spills"},
    {Check::kStack, "stack"},
    {Check::kPtxasWarnings, "ptxas_warnings"},
    {Check::kSharedMemory, "shared_memory"},
    {Check::kThreads, "threads"},
    {Check::kRegisters, "registers"},
    {Check::kErrorBound, "error_bound"},
    {Check::kDeviceOracle, "device_oracle"},
    {Check::kPoison, "poison"},
    {Check::kUnwritten, "unwritten"},
    {Check::kRedZones, "red_zones"},
    {Check::kInputs, "inputs"},
    {Check::kGaps, "gaps"},
    {Check::kRepeat, "repeat"},
    {Check::kChangedContent, "changed_content"},
    {Check::kFreshPointers, "fresh_pointers"},
    {Check::kSettled, "settled"},
    {Check::kFloor, "floor"},
    {Check::kTimedOutputs, "timed_outputs"},
    {Check::kTimedPoison, "timed_poison"},
    {Check::kContentTiming, "content_timing"},
    {Check::kUnseenContent, "unseen_content"},
    {Check::kIdenticalCode, "identical_code"},
    {Check::kComparison, "comparison"},
    {Check::kSelfTest, "self_test"},
    {Check::kInertParameters, "inert_parameters"},
    {Check::kUnmaskedFlops, "unmasked_flops"},
    {Check::kWatchdog, "watchdog"},
};

std::array<int, std::size(kNames)> off_count{};

}  // namespace

std::string_view to_string(Check check) {
  for (const auto& [known, name] : kNames)
    if (known == check) return name;
  throw_internal("no such check: {}", static_cast<int>(check));
}

Check parse_check(std::string_view name) {
  std::vector<std::string_view> names;
  for (const auto& [check, known] : kNames) {
    if (known == name) return check;
    names.push_back(known);
  }
  throw_bad_input("'{}' is no check; they are {}", name, fmt::join(names, ", "));
}

const std::vector<Check>& all_checks() {
  static const std::vector<Check> checks = [] {
    std::vector<Check> all;
    for (const auto& [check, name] : kNames) all.push_back(check);
    return all;
  }();
  return checks;
}

bool is_on(Check check) { return off_count[static_cast<std::size_t>(check)] == 0; }

CheckOff::CheckOff(Check check) : check_(check) { ++off_count[static_cast<std::size_t>(check_)]; }
CheckOff::~CheckOff() { --off_count[static_cast<std::size_t>(check_)]; }

}  // namespace flashcore
