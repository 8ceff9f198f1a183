#include "device/emulator/executor.h"

#include <dlfcn.h>

#include <string_view>

#include "core/error.h"
#include "core/parallel.h"
#include "device/emulator/executor_channel.h"
#include "device/emulator/instructions.h"
#include "device/sandbox/sandbox.h"

namespace flashcore::emulator {
namespace {

constexpr std::size_t kNoLimit = ~std::size_t{0};  // the judge is believed

class Executor {
 public:
  explicit Executor(const char* means) : channel_(sandbox::kChannel) {
    std::string message;
    if (channel_.receive(message, kNoLimit) != MessageKind::kLoad) throw BrokenChannel("no kernel to load");
    Unpacker unpacker(message);
    const int threads_per_block = unpacker.get<int>();
    // What a kernel may need is loaded while there still are files.
    for (const char* library : {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1"}) dlopen(library, RTLD_NOW);
    const std::string file = sandbox::enter_executor(unpacker.get_text(), std::string_view(means) == "landlock"
                                                                              ? sandbox::Means::kLandlock
                                                                              : sandbox::Means::kNamespaces);
    module_ = std::make_unique<EmulatorModule>(
        file, threads_per_block, [this](const std::vector<std::uint64_t>& offsets) { return ask_for_lines(offsets); });
    channel_.send(MessageKind::kLoaded, {});
  }

  // Until the judge closes its end.
  void serve() {
    for (std::string message;;) {
      if (channel_.receive(message, kNoLimit) != MessageKind::kLaunch) throw BrokenChannel("no launch");
      launch(unpack_launch(message));
    }
  }

 private:
  void launch(const LaunchMessage& message) {
    // Anew for each launch: what is not of it is not here.
    buffers_.clear();
    GlobalMemory memory;
    for (const SharedBuffer& b : message.buffers) {
      auto buffer = std::make_shared<Allocation>(b.size, b.red_zone, reinterpret_cast<char*>(b.place));
      buffer->label = b.label;
      channel_.receive_bytes(buffer->place(), buffer->placed_bytes());
      memory.adopt(buffer);
      buffers_.push_back(std::move(buffer));
    }
    LaunchState state{.module = *module_,
                      .spec = message.spec,
                      .allocations = buffers_,
                      .memory = memory,
                      .number = message.number,
                      .seed = message.seed};
    try {
      run_launch(state, hardware_threads());
    } catch (const std::exception& e) {
      channel_.send(MessageKind::kFault, e.what());
      return;
    }
    channel_.send(MessageKind::kDone,
                  pack(state.counters, [&](const void* address) { return module_->offset_of(address); }));
    for (const auto& buffer : buffers_) channel_.send_bytes(buffer->place(), buffer->placed_bytes());
  }

  // addr2line needs a process and the image's file; the judge has both. One caller at a time (SourceLines).
  std::string ask_for_lines(const std::vector<std::uint64_t>& offsets) {
    Packer packer;
    for (const std::uint64_t offset : offsets) packer.put(offset);
    channel_.send(MessageKind::kLines, packer.bytes());
    std::string answer;
    if (channel_.receive(answer, kNoLimit) != MessageKind::kLinesAnswer) throw BrokenChannel("no lines");
    return answer;
  }

  Channel channel_;
  std::unique_ptr<EmulatorModule> module_;
  std::vector<std::shared_ptr<Allocation>> buffers_;
};

}  // namespace

int executor_main(const char* means) {
  try {
    Executor(means).serve();
  } catch (const BrokenChannel&) {
    return 0;  // the judge has gone
  } catch (const std::exception& e) {
    // Before the kernel was loaded: what is missing on this machine.
    try {
      Channel(sandbox::kChannel).send(MessageKind::kFault, e.what());
    } catch (const BrokenChannel&) {
    }
    return 4;
  }
  return 0;
}

}  // namespace flashcore::emulator
