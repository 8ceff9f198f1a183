#include "api/constant_pool.h"

#include "core/error.h"

namespace flashcore::api {

// Null where the device has no room: launches run all steps then, and the kernel stays the one that was chosen.
std::unique_ptr<Buffer> ConstantPool::allocate(std::size_t bytes) {
  try {
    return device_.allocate(bytes);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kEnvironment) throw;
    return nullptr;
  }
}

void ConstantPool::provide(LoadedProgram& program, const std::string& code) {
  const std::size_t bytes = program.constant_bytes();
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const std::string key = code + " " + program.constant_key();
  auto found = made_.find(key);
  if (found == made_.end()) {
    if (bytes > kMostBytes - bytes_) return;
    std::unique_ptr<Buffer> buffer = allocate(bytes);
    if (!buffer) return;
    program.make_constants(buffer->data());
    // Launches come on other streams than this one.
    device_.synchronize();
    found = made_.emplace(key, std::move(buffer)).first;
    bytes_ += bytes;
  }
  program.keep_constants(found->second->data());
}

}  // namespace flashcore::api
