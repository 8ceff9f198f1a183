#pragma once
// What the process that judges and the executor, which runs others' kernels, say to each other: messages of a kind and
// a length, over a socket. The judge takes every byte of an answer for data that a hostile kernel may have written.

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "device/device.h"
#include "device/emulator/counters.h"

namespace flashcore::emulator {

enum class MessageKind : std::uint32_t {
  kLoad = 1,     // judge: threads per block, the image
  kLoaded,       // executor: nothing
  kLaunch,       // judge: LaunchMessage; the buffers' bytes follow, bare
  kLines,        // executor, while a launch runs: offsets
  kLinesAnswer,  // judge: what addr2line printed
  kDone,         // executor: counters; the buffers' bytes follow, bare
  kFault,        // executor: the report
};

// The other side sent what it must not, or is gone.
class BrokenChannel : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Channel {
 public:
  // `patience` is called every 20 ms while the other side keeps this one waiting; it may throw.
  explicit Channel(int fd, std::function<void()> patience = {});
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void send(MessageKind kind, std::string_view payload);
  void send_bytes(const void* data, std::size_t size);
  // BrokenChannel for a message longer than `limit`.
  MessageKind receive(std::string& payload, std::size_t limit);
  void receive_bytes(void* data, std::size_t size);
  // False if something is there to read, though nothing was asked.
  bool quiet() const;

 private:
  void wait(short events);

  int fd_;
  std::function<void()> patience_;
  std::uint32_t sent_ = 0, received_ = 0;
};

// Plain values one after the other.
class Packer {
 public:
  template <class T>
  Packer& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& put_text(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view get_text() { return take(get<std::uint64_t>()); }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) throw BrokenChannel("a message that is cut short");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

// One buffer of a launch. `place`: where it lies in both processes, red zones included.
struct SharedBuffer {
  std::uint64_t place = 0, size = 0, red_zone = 0;
  BufferLabel label;
};
struct LaunchMessage {
  LaunchSpec spec;  // tensor maps encoded
  std::uint32_t number = 0;
  std::uint64_t seed = 0;
  std::vector<SharedBuffer> buffers;
};
std::string pack(const LaunchMessage& message);
LaunchMessage unpack_launch(std::string_view bytes);

// Sites are offsets in the image. Unpacking checks every value that somebody computes with.
std::string pack(const Counters& counters, const std::function<std::uint64_t(const void*)>& offset_of);
Counters unpack_counters(std::string_view bytes);

}  // namespace flashcore::emulator
