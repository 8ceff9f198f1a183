#pragma once
// The machine around a trial: how busy it was, and which variables of the environment what happened depends on.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

struct MachineReading {
  // Load average of the last minute when timing began and when it ended, this program's own threads included. Below 0:
  // not known.
  double load_before = -1, load_after = -1;
  // Cores of this process's that other programs kept busy while it timed, on average; its own children, such as a peer
  // that it times, are none of them. Below 0: not known.
  double others_busy = -1;
  int cores = 0;                                 // that the load is to be held against; 0: not known
  std::map<std::string, std::string> variables;  // repro_variables() of the process that ran it
};
void to_json(nlohmann::json& json, const MachineReading& reading);
void from_json(const nlohmann::json& json, MachineReading& reading);

// "load average 0.4 to 7.3 on 2 cores (this run included), other programs kept up to 1.3 cores busy", of all of them
// together; "" where nothing is known.
std::string load_words(const std::vector<MachineReading>& readings);
// Why times of these readings are less certain: other programs kept a quarter of a core busy, or more. "" otherwise.
// A candidate on all cores then waits for one of them, and two searches crown different winners.
inline constexpr double kBusyCores = 0.25;
std::string busy_words(const std::vector<MachineReading>& readings);

// Whether a GPU's throttle reasons lower clocks ("sw_power_cap", "hw_thermal", ...).
bool lowers_clocks(std::string_view throttle_reasons);

double read_load_average();  // below 0 where the system does not say

// Of /proc/stat: seconds that these CPUs have spent on anything, in all processes. None if the text lacks one of them.
std::optional<double> busy_seconds(std::string_view proc_stat, const std::vector<int>& cpus, long ticks_per_second);

// Of lines of /proc/PID/stat: seconds that the descendants of `root` have spent, with those of their children that have
// ended. A line that is none is passed over.
double descendant_seconds(const std::vector<std::string>& stat_lines, int root, long ticks_per_second);
// Of this process and of all that it has started.
double own_seconds();

// How busy the machine was from the meter's making to its reading.
class LoadMeter {
 public:
  LoadMeter();
  // Fills loads and others_busy. A time of less than a tenth of a second says nothing of others.
  void read(MachineReading& reading) const;

 private:
  double load_;
  std::optional<double> busy_;  // seconds of all processes
  double own_, at_;             // own_seconds(), and those of the clock
};

// FLASHCORE_SOURCE, FLASHCORE_EMULATOR_SEED, FLASHCORE_CXX: those that are set, of what a command needs to repeat what
// happened here.
std::map<std::string, std::string> repro_variables();
// "FLASHCORE_SOURCE=/a/b FLASHCORE_EMULATOR_SEED=7 ", for the front of a command; "" without variables. Quoted for a
// shell. The emulator's are left out where `device_id` is another device.
std::string repro_prefix(const std::map<std::string, std::string>& variables, std::string_view device_id);
// As one word of a shell's command line; text that needs no quotes is left alone.
std::string shell_quote(std::string_view text);

}  // namespace flashcore
