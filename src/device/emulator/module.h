#pragma once
// A kernel compiled for the emulator: a shared object, its entry point, and the source lines of its addresses.

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/emulator/clocks.h"
#include "device/emulator/services.h"

namespace flashcore::emulator {

class EmulatorModule final : public Module {
 public:
  // Error kInternal if the artifact was not made by the emulator's compiler.
  explicit EmulatorModule(const Artifact& artifact);
  ~EmulatorModule() override;
  EmulatorModule(const EmulatorModule&) = delete;
  EmulatorModule& operator=(const EmulatorModule&) = delete;

  void call(const void* params) const { entry_(params); }
  std::size_t param_bytes() const { return param_bytes_; }
  int threads_per_block() const { return threads_per_block_; }

  // The calls that lead to a return address, innermost first: "kernels/sm80_fwd/kernel.cuh:117 scores: ldmatrix_x4".
  std::vector<std::string> lines_of(const void* address) const;
  // The innermost of them.
  std::string line_of(const void* address) const { return lines_of(address).front(); }
  // The line of the kernel itself: the innermost that is not in tile/, whose functions every kernel calls. Empty if
  // that is line_of().
  std::string caller_of(const void* address) const;

 private:
  std::vector<std::string> look_up(const void* address) const;

  int fd_ = -1;  // the shared object's file
  void* handle_ = nullptr;
  void (*entry_)(const void*) = nullptr;
  std::size_t param_bytes_ = 0;
  int threads_per_block_ = 0;
  mutable std::mutex mutex_;
  mutable std::map<const void*, std::vector<std::string>> lines_;
};

// Return addresses in one run, numbered so that the shadow memory can name them in a few bits.
class SiteTable {
 public:
  std::uint16_t of(const void* address) {
    Slot& slot = slots_[hash(address)];
    if (slot.address == address) return slot.site;
    return insert(address);
  }
  const void* address(std::uint16_t site) const { return addresses_[site]; }
  std::size_t size() const { return addresses_.size(); }

 private:
  struct Slot {
    const void* address = nullptr;
    std::uint16_t site = 0;
  };
  static std::size_t hash(const void* address) {
    return (reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15ull) >> 52;
  }
  std::uint16_t insert(const void* address);

  std::vector<Slot> slots_ = std::vector<Slot>(4096);
  std::map<const void*, std::uint16_t> known_;
  std::vector<const void*> addresses_ = {nullptr};
};

}  // namespace flashcore::emulator
