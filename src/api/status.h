#pragma once
// Between exceptions inside and status codes outside: every function of the C API runs its body through guarded().

#include <string>
#include <string_view>

#include "api/fork_gate.h"
#include "core/error.h"
#include "device/compiler.h"
#include "device/device.h"
#include "flashcore/flashcore.h"

namespace flashcore::api {

// The calling thread's message. Never throws: without memory the message is lost, the status is not.
void set_last_error(std::string_view message) noexcept;
const char* last_error() noexcept;

// The status of what is being thrown; call in a catch block. Sets the thread's message.
fc_status status_of_current_exception() noexcept;

// For launches and what waits for them, which a fork does not wait for.
template <class Body>
fc_status guarded_launch(Body&& body) noexcept {
  try {
    body();
    return FC_OK;
  } catch (...) {
    return status_of_current_exception();
  }
}

// For everything else.
template <class Body>
fc_status guarded(Body&& body) noexcept {
  const InsideLibrary inside;
  return guarded_launch(body);
}

// What the JSON functions hand out: as snprintf.
void copy_text(const std::string& text, char* buffer, std::size_t size, std::size_t* needed);

}  // namespace flashcore::api
