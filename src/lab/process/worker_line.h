#pragma once
// What a worker process writes to its parent, read as what it is: text of a process that may have run others' code.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "device/device.h"

namespace flashcore {

// The first line, {"device": ...}. Error as the worker's, if it says why it has none; none if it is something else.
std::optional<DeviceInfo> parse_worker_hello(std::string_view line);

struct WorkerLine {
  enum class Kind {
    kNonsense,  // no JSON object, or one of the wrong shape
    kUnasked,   // without the request's number: a library's output, or that of code which found the descriptor
    kStage,     // `text` has begun
    kMessage,   // an answer: "trial", "pair" or "fault"
  };
  Kind kind = Kind::kNonsense;
  std::string text;
  nlohmann::json message;
};
// Throws nothing but for want of memory.
WorkerLine parse_worker_line(std::string_view line, std::string_view nonce);

}  // namespace flashcore
