#include "api/status.h"

#include <algorithm>
#include <cstring>

namespace flashcore::api {
namespace {

// A plain array: it must be there when memory is not, and when a thread ends.
constexpr std::size_t kMessageBytes = 4096;
thread_local char t_message[kMessageBytes] = "";

}  // namespace

void set_last_error(std::string_view message) noexcept {
  const std::size_t bytes = std::min(message.size(), kMessageBytes - 1);
  std::memcpy(t_message, message.data(), bytes);
  t_message[bytes] = '\0';
}

const char* last_error() noexcept { return t_message; }

fc_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    switch (error.kind()) {
      case ErrorKind::kBadInput: return FC_ERROR_BAD_INPUT;
      case ErrorKind::kEnvironment: return FC_ERROR_ENVIRONMENT;
      case ErrorKind::kInternal: return FC_ERROR_INTERNAL;
    }
    return FC_ERROR_INTERNAL;
  } catch (const CompileError& error) {
    set_last_error(error.what());
    return FC_ERROR_INTERNAL;
  } catch (const DeviceFault& error) {
    set_last_error(error.what());
    return FC_ERROR_DEVICE_LOST;
  } catch (const std::bad_alloc&) {
    set_last_error("no memory left for this call: free some, or choose a smaller problem");
    return FC_ERROR_ENVIRONMENT;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return FC_ERROR_INTERNAL;
  } catch (...) {
    set_last_error("an exception of no known type: please report it");
    return FC_ERROR_INTERNAL;
  }
}

void copy_text(const std::string& text, char* buffer, std::size_t size, std::size_t* needed) {
  if (!buffer && size > 0)
    throw_bad_input("a null buffer of {} bytes was given; give a buffer, or size 0 to ask how long the text is", size);
  if (needed) *needed = text.size() + 1;
  if (size == 0) return;
  const std::size_t bytes = std::min(text.size(), size - 1);
  std::memcpy(buffer, text.data(), bytes);
  buffer[bytes] = '\0';
}

}  // namespace flashcore::api
