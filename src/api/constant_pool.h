#pragma once
// What constant steps of programs write (kernels/program.h): lists of blocks of masks without tensors. Made when a plan
// is, so that launches on any stream, captured or not, find them.

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/device.h"
#include "kernels/program.h"

namespace flashcore::api {

// Plans whose constant steps write the same share it. Kept as long as the pool, for a captured graph may launch the
// kernel of a plan that is gone; so there is a limit, beyond which a plan's launches run all steps.
class ConstantPool {
 public:
  // 3,000 masks of 8192 rows and keys that name neither b nor h, on tiles of 128 by 128.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  explicit ConstantPool(Device& device) : device_(device) {}
  ConstantPool(const ConstantPool&) = delete;
  ConstantPool& operator=(const ConstantPool&) = delete;

  // Once the program is loaded: waits until its constant steps have run, unless those of another had the same to write.
  // `code` names the module. From any number of threads.
  void provide(LoadedProgram& program, const std::string& code);

 private:
  std::unique_ptr<Buffer> allocate(std::size_t bytes);

  Device& device_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Buffer>> made_;
  std::size_t bytes_ = 0;  // of them
};

}  // namespace flashcore::api
