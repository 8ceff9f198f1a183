#pragma once
// The machine around a trial: how busy it was, and which variables of the environment what happened depends on.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

struct MachineReading {
  // Load average of the last minute when timing began and when it ended, this program's own threads included. Below 0:
  // not known.
  double load_before = -1, load_after = -1;
  int cores = 0;                                 // that the load is to be held against; 0: not known
  std::map<std::string, std::string> variables;  // repro_variables() of the process that ran it
};
void to_json(nlohmann::json& json, const MachineReading& reading);
void from_json(const nlohmann::json& json, MachineReading& reading);

// "load average 0.4 to 7.3 on 2 cores", of all of them together; "" where nothing is known.
std::string load_words(const std::vector<MachineReading>& readings);

double read_load_average();  // below 0 where the system does not say

// FLASHCORE_SOURCE, FLASHCORE_EMULATOR_SEED, FLASHCORE_CXX: those that are set, of what a command needs to repeat what
// happened here.
std::map<std::string, std::string> repro_variables();
// "FLASHCORE_SOURCE=/a/b FLASHCORE_EMULATOR_SEED=7 ", for the front of a command; "" without variables. Quoted for a
// shell. The emulator's are left out where `device_id` is another device.
std::string repro_prefix(const std::map<std::string, std::string>& variables, std::string_view device_id);
// As one word of a shell's command line; text that needs no quotes is left alone.
std::string shell_quote(std::string_view text);

}  // namespace flashcore
