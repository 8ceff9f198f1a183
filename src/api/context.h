#pragma once
// One device as the API's user sees it: what its plans share.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/constant_pool.h"
#include "api/workspace_pool.h"
#include "device/device.h"
#include "kernels/family.h"

namespace flashcore::api {

class Context {
 public:
  explicit Context(std::unique_ptr<Device> device);
  ~Context();

  Device& device() const { return *device_; }
  const DeviceInfo& info() const { return device_->info(); }
  std::string describe() const;

  // Loaded once per code and kept as long as the context: a captured graph may still launch the kernel of a plan that
  // is gone.
  std::shared_ptr<Module> load(const Artifact& artifact);
  static std::string module_key(const Artifact& artifact);
  // One compilation at a time; the second to ask finds the first one's result in the cache.
  std::mutex& planning() const { return planning_; }

  // Of all launches of its plans.
  WorkspacePool& workspaces() const { return *workspaces_; }
  // What is the same in all launches of a plan.
  ConstantPool& constants() const { return *constants_; }
  // Keeps what captured graphs may read for as long as the context.
  void keep_for_graphs(std::unique_ptr<Buffer> buffer) const;
  // Memory of the device that addresses can point at.
  const void* somewhere() const { return somewhere_ ? somewhere_->data() : nullptr; }

  // A GPU, whose calls make its context current on the thread.
  bool on_gpu() const { return info().limits.kind == DeviceKind::kCuda && !info().limits.emulated; }

  bool on_cpu() const { return info().limits.kind == DeviceKind::kCpu; }

  // Devices that run a launch within the call run one at a time.
  std::mutex* turn() const { return device_->info().limits.emulated ? &turn_ : nullptr; }

  void* allocate(std::size_t bytes);
  void free(void* address);

 private:
  std::unique_ptr<Device> device_;
  mutable std::mutex planning_, turn_;
  std::unique_ptr<Buffer> somewhere_;
  std::unique_ptr<WorkspacePool> workspaces_;
  std::unique_ptr<ConstantPool> constants_;
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::shared_ptr<Module>> modules_;
  std::map<void*, std::unique_ptr<Buffer>> buffers_;
  mutable std::vector<std::unique_ptr<Buffer>> of_graphs_;
};

}  // namespace flashcore::api
