#include "api/constant_pool.h"

namespace flashcore::api {

void ConstantPool::provide(LoadedProgram& program, const std::string& code) {
  const std::size_t bytes = program.constant_bytes();
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const std::string key = code + " " + program.constant_key();
  auto found = made_.find(key);
  if (found == made_.end()) {
    if (bytes > kMostBytes - bytes_) return;
    std::unique_ptr<Buffer> buffer = device_.allocate(bytes);
    program.make_constants(buffer->data());
    // Launches come on other streams than this one.
    device_.synchronize();
    found = made_.emplace(key, std::move(buffer)).first;
    bytes_ += bytes;
  }
  program.keep_constants(found->second->data());
}

}  // namespace flashcore::api
