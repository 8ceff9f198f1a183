#include "api/context.h"

#include <nlohmann/json.hpp>

#include "api/allocations.h"
#include "core/error.h"
#include "kernels/source_hash.h"

namespace flashcore::api {
namespace {

constexpr std::size_t kSomewhereBytes = 256;
constexpr std::size_t kMostBytes = std::size_t{1} << 48;  // of an address space; red zones are added below it

}  // namespace

Context::Context(std::unique_ptr<Device> device) : device_(std::move(device)) {
  if (info().limits.kind == DeviceKind::kCpu) return;
  somewhere_ = device_->allocate(kSomewhereBytes);
  workspaces_ = std::make_unique<WorkspacePool>(*device_);
  constants_ = std::make_unique<ConstantPool>(*device_);
}

Context::~Context() {
  for (const auto& [address, buffer] : buffers_) allocations().remove(address);
}

std::string Context::describe() const {
  const DeviceInfo& device = info();
  return nlohmann::json{{"id", device.id},
                        {"name", device.name},
                        {"key", device.key},
                        {"kind", device.limits.kind == DeviceKind::kCpu ? "cpu" : "cuda"},
                        {"emulated", device.limits.emulated},
                        {"arch", device.limits.arch},
                        {"multiprocessors", device.limits.multiprocessors},
                        {"driver", device.driver},
                        {"memory_bytes", device.memory_bytes},
                        {"source_hash", source_hash()}}
      .dump();
}

std::string Context::module_key(const Artifact& artifact) {
  return artifact.arch + " " + artifact.symbol + " " + artifact.code_hash;
}

std::shared_ptr<Module> Context::load(const Artifact& artifact) {
  const std::string key = module_key(artifact);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Module>& module = modules_[key];
  if (!module) module = device_->load(artifact);
  return module;
}

void Context::keep_for_graphs(std::unique_ptr<Buffer> buffer) const {
  const std::lock_guard lock(mutex_);
  of_graphs_.push_back(std::move(buffer));
}

void* Context::allocate(std::size_t bytes) {
  if (bytes > kMostBytes) throw_environment("{} bytes are more than any memory has; at most {}", bytes, kMostBytes);
  std::unique_ptr<Buffer> buffer = device_->allocate(bytes);
  void* address = buffer->data();
  const std::lock_guard lock(mutex_);
  buffers_[address] = std::move(buffer);
  allocations().add(address, bytes);
  return address;
}

void Context::free(void* address) {
  std::unique_ptr<Buffer> buffer;
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(address);
  if (found == buffers_.end())
    throw_bad_input("{} was not allocated with fc_memory_allocate on {}, or is freed already", address, info().id);
  buffer = std::move(found->second);
  buffers_.erase(found);
  allocations().remove(address);
}

}  // namespace flashcore::api
