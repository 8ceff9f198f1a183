#include "device/emulator/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "core/child_process.h"
#include "core/error.h"
#include "core/scratch_folder.h"
#include "device/emulator/service_table.h"

namespace flashcore::emulator {

EmulatorModule::EmulatorModule(const Artifact& artifact) : threads_per_block_(artifact.threads_per_block) {
  FC_CHECK(!artifact.foreign);
  {
    // Without a name from the end of this block on. addr2line reads it through fd_.
    const ScratchFolder folder;
    const std::filesystem::path file = folder.write("kernel.so", artifact.cubin);
    fd_ = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    try {
      open_image(file.string());
    } catch (...) {
      close(fd_);
      throw;
    }
  }
  lines_ = std::make_unique<SourceLines>([fd = fd_](const std::vector<std::uint64_t>& offsets) {
    std::vector<std::string> command = addr2line_command(fmt::format("/proc/{}/fd/{}", getpid(), fd));
    for (const std::uint64_t offset : offsets) command.push_back(fmt::format("{:#x}", offset));
    const ProgramResult tool = run_program(command, {.seconds = 30});
    return tool.exit_code == 0 ? tool.output : std::string();
  });
}

EmulatorModule::EmulatorModule(const std::string& file, int threads_per_block, SourceLines::LookUp look_up)
    : threads_per_block_(threads_per_block), lines_(std::make_unique<SourceLines>(std::move(look_up))) {
  open_image(file);
}

void EmulatorModule::open_image(const std::string& file) {
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) throw_internal("the emulated kernel cannot be loaded: {}", dlerror());
  for (std::string suffix;; suffix = std::to_string(kernels_.size())) {
    const auto entry = reinterpret_cast<void (*)(const void*)>(dlsym(handle_, ("flashcore_entry" + suffix).c_str()));
    if (!entry) break;
    const auto* bytes = static_cast<const unsigned long*>(dlsym(handle_, ("flashcore_param_bytes" + suffix).c_str()));
    FC_CHECK(bytes);
    kernels_.push_back({entry, *bytes});
  }
  auto* services = static_cast<const Services**>(dlsym(handle_, "flashcore_services"));
  FC_CHECK(!kernels_.empty() && services);
  *services = &service_table();
  Dl_info info{};
  FC_CHECK(dladdr(reinterpret_cast<const void*>(kernels_.front().entry), &info));
  base_ = info.dli_fbase;
}

const EmulatorModule::Kernel& EmulatorModule::at(unsigned kernel) const {
  if (kernel >= kernels_.size())
    throw_internal("kernel {} of a module that has {} was launched", kernel, kernels_.size());
  return kernels_[kernel];
}

EmulatorModule::~EmulatorModule() {
  dlclose(handle_);
  if (fd_ >= 0) close(fd_);
}

std::uint64_t EmulatorModule::offset_of(const void* address) const {
  Dl_info info{};
  if (!address || !dladdr(address, &info) || info.dli_fbase != base_) return 0;
  // The call lies before its return address.
  return static_cast<std::uint64_t>(static_cast<const char*>(address) - static_cast<const char*>(base_)) - 1;
}

std::uint16_t SiteTable::insert(const void* address) {
  auto [found, fresh] = known_.try_emplace(address, static_cast<std::uint16_t>(addresses_.size()));
  if (fresh) {
    FC_CHECK(addresses_.size() < kMaxSites);
    addresses_.push_back(address);
  }
  slots_[hash(address)] = {address, found->second};
  return found->second;
}

}  // namespace flashcore::emulator
