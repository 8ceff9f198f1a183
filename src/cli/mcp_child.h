#pragma once
// A verb of this program run as a child process, for a tool call: with a deadline, cancellable, nothing of it on our
// stdout.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore::cli::mcp {

struct ToolAnswer {
  bool is_error = false;  // the call could not be carried out; a kernel that failed its gates is no error
  std::string text;       // for the agent to read
  nlohmann::json structured = nlohmann::json::object();
};

struct CallControl {
  std::function<bool()> cancelled;              // asked 20 times a second
  std::function<void(double seconds)> waiting;  // told now and then
};

// `arguments`: the verb and its flags; --json and --quiet are added. Its document is "result" of the answer, and its
// exit code says what was judged. Error kEnvironment if no process can be started.
ToolAnswer run_verb(const std::vector<std::string>& arguments, double timeout_seconds, const CallControl& control);

// What a verb says of its command line, as an agent gives it: "device" for "--device".
std::string in_arguments(std::string text);

}  // namespace flashcore::cli::mcp
