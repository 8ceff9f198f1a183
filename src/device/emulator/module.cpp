#include "device/emulator/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "core/child_process.h"
#include "core/error.h"
#include "core/files.h"
#include "device/emulator/service_table.h"

namespace flashcore::emulator {
namespace {

std::filesystem::path unique_file() {
  std::string name = (std::filesystem::temp_directory_path() / "flashcore-kernel-XXXXXX").string();
  const int fd = mkstemp(name.data());
  if (fd < 0)
    throw_environment("cannot create a file in {}: set TMPDIR to a folder that can be written",
                      std::filesystem::temp_directory_path().string());
  close(fd);
  return name;
}

// "flashcore::sm80_fwd::Forward<...>::load_k(int)" -> "load_k"
std::string short_name(const std::string& name) {
  std::string plain;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '<' || c == '(' || c == '{') ++depth;
    if (depth == 0) plain += c;
    if ((c == '>' && i > 0 && name[i - 1] != '-') || c == ')' || c == '}') --depth;
    if (c == '{' && name.compare(i, 7, "{lambda") == 0) plain += "lambda";
  }
  const std::size_t constness = plain.find(" const");
  if (constness != std::string::npos) plain.resize(constness);
  const std::size_t colon = plain.rfind("::");
  if (colon != std::string::npos) plain = plain.substr(colon + 2);
  const std::size_t space = plain.rfind(' ');
  return space == std::string::npos ? plain : plain.substr(space + 1);
}

// "/tmp/x/./kernels/a.cuh:12 (discriminator 3)" -> "kernels/a.cuh:12"
std::string short_place(std::string place) {
  const std::size_t kernels = place.rfind("kernels/");
  if (kernels != std::string::npos) place = place.substr(kernels);
  const std::size_t blank = place.find(' ');
  return place.substr(0, blank);
}

}  // namespace

EmulatorModule::EmulatorModule(const Artifact& artifact) : threads_per_block_(artifact.threads_per_block) {
  const std::filesystem::path file = unique_file();
  write_file_atomically(file, artifact.cubin);
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string why = handle_ ? "" : dlerror();
  // Without its name from here on: a worker that ends at a fault leaves nothing behind. addr2line reads it through fd_.
  fd_ = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  std::filesystem::remove(file);
  if (!handle_) {
    close(fd_);
    throw_internal("the emulated kernel {} cannot be loaded: {}", artifact.symbol, why);
  }
  entry_ = reinterpret_cast<void (*)(const void*)>(dlsym(handle_, "flashcore_entry"));
  const auto* bytes = static_cast<const unsigned long*>(dlsym(handle_, "flashcore_param_bytes"));
  auto* services = static_cast<const Services**>(dlsym(handle_, "flashcore_services"));
  FC_CHECK(entry_ && bytes && services);
  param_bytes_ = *bytes;
  *services = &service_table();
}

EmulatorModule::~EmulatorModule() {
  dlclose(handle_);
  close(fd_);
}

std::vector<std::string> EmulatorModule::lines_of(const void* address) const {
  const std::lock_guard lock(mutex_);
  auto found = lines_.find(address);
  if (found == lines_.end()) found = lines_.emplace(address, look_up(address)).first;
  return found->second;
}

std::vector<std::string> EmulatorModule::look_up(const void* address) const {
  Dl_info info{};
  if (!address || !dladdr(address, &info)) return {"(outside the kernel)"};
  // The call lies before its return address.
  const auto offset = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase) - 1;
  const ProgramResult tool = run_program(
      {"addr2line", "-f", "-C", "-i", "-e", fmt::format("/proc/{}/fd/{}", getpid(), fd_), fmt::format("{:#x}", offset)},
      {.seconds = 30});
  std::vector<std::pair<std::string, std::string>> frames;
  std::istringstream text(tool.output);
  for (std::string name, place; std::getline(text, name) && std::getline(text, place);)
    frames.emplace_back(short_name(name), short_place(place));
  if (tool.exit_code != 0 || frames.empty())
    return {fmt::format("kernel code at {:#x} (install binutils, whose addr2line names the line)", offset)};
  std::vector<std::string> lines;
  std::string called;
  for (const auto& [name, place] : frames) {
    if (place.starts_with("kernels/ptx/")) {
      called = ": " + name;
      continue;
    }
    if (!place.starts_with("kernels/")) continue;
    lines.push_back(fmt::format("{} {}{}", place, name, called));
    called.clear();
  }
  if (lines.empty()) lines.push_back(frames.front().second + " " + frames.front().first);
  return lines;
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
