#pragma once
// How flashcore fails: exceptions that carry values and say what to do. The core never prints, aborts or exits.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace flashcore {

// Who has to act. The command line turns it into the exit code (docs: exit codes).
enum class ErrorKind {
  kBadInput,     // the caller: a value that is not allowed            -> exit 3
  kEnvironment,  // the machine: a library, device or disk is missing  -> exit 4
  kInternal,     // us: a broken invariant                             -> exit 4, with a request to report it
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// A message names three things: what was given, what is allowed, what to do next.
template <class... Args>
[[noreturn]] void throw_bad_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kBadInput, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void throw_environment(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kEnvironment, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void throw_internal(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::kInternal, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flashcore

// An invariant of our own. Never for input: input gets throw_bad_input with a sentence for its giver.
#define FC_CHECK(condition)                                                                                       \
  do {                                                                                                            \
    if (!(condition)) ::flashcore::throw_internal("{}:{}: broken invariant: {}", __FILE__, __LINE__, #condition); \
  } while (false)
