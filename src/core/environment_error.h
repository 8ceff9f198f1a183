#pragma once
// Whether an exception is the machine's doing: no memory, no disk, no folder, no compiler. Such a failure says nothing
// of what was being judged.

#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "core/error.h"

namespace flashcore {

inline bool is_environment_error(const std::exception& e) {
  if (const auto* ours = dynamic_cast<const Error*>(&e)) return ours->kind() == ErrorKind::kEnvironment;
  return dynamic_cast<const std::bad_alloc*>(&e) != nullptr || dynamic_cast<const std::system_error*>(&e) != nullptr;
}

inline std::string environment_message(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr)
    return "not enough memory; free some, raise the limit (ulimit -v), or try a smaller problem";
  return e.what();
}

}  // namespace flashcore
