#include "api/context.h"

#include <nlohmann/json.hpp>

#include "api/allocations.h"
#include "core/error.h"
#include "kernels/embedded.h"

namespace flashcore::api {

Context::Context(std::unique_ptr<Device> device) : device_(std::move(device)) {
  if (info().limits.kind == DeviceKind::kCpu) return;
  slots_ = device_->allocate(kSlotBytes * kSlots);
  device_->fill(slots_->data(), 0, kSlotBytes * kSlots);
  // Launches come on other streams than this one.
  device_->synchronize();
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

std::shared_ptr<Module> Context::load(const Artifact& artifact) {
  const std::string key = artifact.arch + " " + artifact.symbol + " " + artifact.code_hash;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Module>& module = modules_[key];
  if (!module) module = device_->load(artifact);
  return module;
}

void* Context::next_slot() const {
  const std::uint32_t slot = next_slot_.fetch_add(1, std::memory_order_relaxed) % kSlots;
  return static_cast<std::byte*>(slots_->data()) + slot * kSlotBytes;
}

void* Context::allocate(std::size_t bytes) {
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
