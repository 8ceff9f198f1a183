#pragma once
// A command of a campaign as a child process, and what its end means.

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/campaign/state.h"

namespace flashcore {

inline constexpr const char* kTriedAgain = "--resume tries it again";

// How a command ended. `exit_code` -1: it was ended, or could not be started.
struct CommandEnd {
  int exit_code = -1;
  std::string how = {};   // where it did not exit by itself: "was still running after 20 s and was ended"
  std::string said = {};  // the last line of its stderr, or of its stdout, that is no warning
  bool cancelled = false;
  bool out_of_time = false;  // ended after the seconds that it had
  bool no_program = false;   // there is none of that name to start
};
// `variables`: of its environment, beside those of this process.
using Variables = std::map<std::string, std::string>;
using RunCommand =
    std::function<CommandEnd(const std::vector<std::string>& argv, const Variables& variables,
                             const std::filesystem::path& log, double seconds, const std::function<bool()>& stop)>;
// As a child process, its output in `log`: of more than 4 MiB the head and the tail. Stopped or out of time it gets
// SIGINT, and a few seconds to save what it has.
CommandEnd run_command(const std::vector<std::string>& argv, const Variables& variables,
                       const std::filesystem::path& log, double seconds, const std::function<bool()>& stop);

// What a command's end means, and the reason in words. `document`: what it wrote; null if it wrote none.
void judge_command(CampaignCommand& command, const CommandEnd& end, std::string_view phase,
                   const nlohmann::json& document = nullptr);

}  // namespace flashcore
