#pragma once
// A kernel compiled for the emulator: a shared object, its entry point, and the source lines of its addresses.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/emulator/clocks.h"
#include "device/emulator/services.h"
#include "device/emulator/source_lines.h"

namespace flashcore::emulator {

class EmulatorModule final : public Module {
 public:
  // Error kInternal if the artifact was not made by the emulator's compiler. Loading runs the code's constructors: only
  // for code that may do all that this process may. Others' goes through foreign_module.h.
  explicit EmulatorModule(const Artifact& artifact);
  // An image that is there already, whose lines somebody else looks up.
  EmulatorModule(const std::string& file, int threads_per_block, SourceLines::LookUp look_up);
  ~EmulatorModule() override;
  EmulatorModule(const EmulatorModule&) = delete;
  EmulatorModule& operator=(const EmulatorModule&) = delete;

  // Error kInternal for a kernel that the module has not (LaunchSpec::kernel).
  void call(unsigned kernel, const void* params) const { at(kernel).entry(params); }
  std::size_t param_bytes(unsigned kernel) const { return at(kernel).param_bytes; }
  int threads_per_block() const { return threads_per_block_; }

  // Of a return address, the place of the call within the image; 0: it is not of this kernel.
  std::uint64_t offset_of(const void* address) const;
  CallLines lines_of(const void* address) const { return lines_->of(offset_of(address)); }
  // The innermost of them.
  std::string line_of(const void* address) const { return lines_of(address).front(); }
  SourceLines& lines() const { return *lines_; }

 private:
  void open_image(const std::string& file);

  int fd_ = -1;  // the shared object's file, for addr2line
  void* handle_ = nullptr;
  struct Kernel {
    void (*entry)(const void*);
    std::size_t param_bytes;
  };
  const Kernel& at(unsigned kernel) const;
  std::vector<Kernel> kernels_;
  int threads_per_block_ = 0;
  const void* base_ = nullptr;
  std::unique_ptr<SourceLines> lines_;
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
