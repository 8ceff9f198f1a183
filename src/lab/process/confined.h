#pragma once
// A program of somebody's that may compute and talk on its standard streams: no network, files written in one folder
// alone, memory and time limited. For proposers (tune --confine-proposer); docs/security.md says what is left open.

#include <string>
#include <vector>

namespace flashcore {

// The command line that runs `command` by /bin/sh so, with `work` as the folder that it may write. `executable`: this
// program, whose hidden verb `confine` does it.
std::vector<std::string> confined_command(const std::string& command, const std::string& work,
                                          const std::string& executable = "/proc/self/exe");

// For people: what this machine confines, and what it does not.
struct ConfinementReport {
  std::string confined, left_open;
};
ConfinementReport describe_confinement(const std::string& work, int landlock_version);

// In the process that becomes the program: confines itself for good, then runs argv[0], found on PATH. Error
// kEnvironment if the kernel refuses what network and limits need; does not return otherwise.
[[noreturn]] void become_confined(const std::string& work, const std::vector<std::string>& argv);

}  // namespace flashcore
