#pragma once
// A kernel of somebody else's, seen from the process that judges it: its code is loaded and run by an executor
// (executor.h) and never here. What comes back is the contents of the launch's buffers and counters, which are judged
// as if the kernel had written every byte of them.

#include <memory>
#include <string>

#include "device/device.h"
#include "device/emulator/executor_channel.h"
#include "device/emulator/global_memory.h"
#include "device/emulator/source_lines.h"

namespace flashcore::emulator {

struct ForeignLimits {
  double seconds = 3600;     // of one launch; a worker's parent is less patient
  double load_seconds = 60;  // of starting the executor and loading the kernel, which takes milliseconds
  std::size_t memory_bytes = std::size_t{8} << 30;  // beyond the launch's buffers
  int threads = 1024;
};

class ForeignModule final : public Module {
 public:
  // Error kEnvironment if this machine lets no sandbox be made.
  explicit ForeignModule(const Artifact& artifact, const ForeignLimits& limits = {});
  ~ForeignModule() override;

  // Throws DeviceFault: a fault of the kernel, or its executor ended, hung, took too much or said what it must not.
  // Of `memory` only those buffers are sent that the parameters point into. `spec` with its tensor maps encoded.
  Counters launch(const LaunchSpec& spec, const GlobalMemory& memory, std::uint32_t number, std::uint64_t seed) const;
  // The executor's process, for tests. None before the first launch, and after a fault.
  int executor_pid() const;
  // Names the places of counters (offsets) in one go.
  CallLines lines_of(const void* offset) const;
  void prepare_lines(const Counters& counters) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The program that has the verb `execute-kernel`: this one, unless a test says otherwise.
void use_executor_program(std::string path);

}  // namespace flashcore::emulator
