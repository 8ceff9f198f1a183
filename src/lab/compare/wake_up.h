#pragma once
// Where this machine's scheduler puts a helper thread that is woken after a pause, and what that costs. Some virtual
// machines pack threads on few cores (Linux with sched_vcpu_pack): the helper then shares its waker's core until the
// scheduler moves it, and a short call on several threads takes as long as on one, or longer. Nothing of flashcore's
// pool is in this: it explains times that no kernel does.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace flashcore {

struct WakeUp {
  double late_us = 0;  // from the notification to the helper's first step
  double both_us = 0;  // until both threads have done their work, which is the same for each
  bool on_wakers_core = false;
};

struct WakeUpSummary {
  int rounds = 0, on_wakers_core = 0;
  double late_us = 0, alone_us = 0, both_us = 0;  // medians; alone: the waker's work without a helper
  double others_busy = -1;                        // cores that other programs kept busy; below 0: not known
  bool packed = false;  // helpers start on their waker's core, and that costs time, and no other program does
};

// Error kInternal without rounds. `alone_us`: after the same pause. `others_busy`: as in MachineReading
// (lab/record/machine.h).
WakeUpSummary summarise_wake_ups(const std::vector<WakeUp>& rounds, double alone_us, double others_busy);

// Takes less than a second. None where this process may run on one CPU only.
std::optional<WakeUpSummary> measure_wake_ups();

std::string wake_up_words(const WakeUpSummary& summary);
void to_json(nlohmann::json& json, const WakeUpSummary& summary);

}  // namespace flashcore
