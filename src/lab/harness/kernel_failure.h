#pragma once
// A kernel that did not come to its outputs, for whoever compiles and launches in this process. (Worker does it for the
// others: there a crash or a hang ends a child.)

#include <fmt/format.h>

#include <optional>
#include <string>

#include "core/environment_error.h"
#include "device/compiler.h"
#include "device/device.h"

namespace flashcore {

struct KernelFailure {
  std::string what;      // "it did not compile: ...", and the compiler's log in further lines
  bool faulted = false;  // the device: nothing more can be launched on it
  bool lacking = false;  // no memory, no compiler: the kernel is not judged
  std::string first_line() const { return what.substr(0, what.find('\n')); }
};

// Of `work`. What neither a compiler nor the device nor the machine says passes through.
template <class Work>
std::optional<KernelFailure> failure_of(const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const CompileError& e) {
    return KernelFailure{fmt::format("it did not compile: {}{}{}", e.what(), e.log().empty() ? "" : "\n", e.log())};
  } catch (const DeviceFault& e) {
    return KernelFailure{fmt::format("the device reported a fault: {}", e.what()), true};
  } catch (const std::exception& e) {
    if (!is_environment_error(e)) throw;
    return KernelFailure{environment_message(e), false, true};
  }
}

}  // namespace flashcore
