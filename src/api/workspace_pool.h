#pragma once
// The device memory that launches need besides their tensors (kernels/program.h).

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/program.h"

namespace flashcore::api {

// Launches of one stream run one after the other, so they share a piece of memory; other streams have others. A launch
// that a graph records may run beside anything later on, so it has a piece of its own for as long as the pool lives:
// 256 bytes for each captured launch of a kernel that needs them.
class WorkspacePool {
 public:
  explicit WorkspacePool(Device& device) : device_(device) {}
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  // Writes the addresses of a launch's workspaces into `addresses`; those of 0 bytes need none. Allocates for the first
  // launch on a stream, for one that needs more than those before it, and for one that is captured, where the last
  // allocation is used up. From any number of threads.
  void provide(void* stream, std::span<const Workspace> workspaces, Addresses& addresses);

 private:
  struct Piece {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };
  // Apart, for what one launch left in its scratch memory must not be where another expects zeros.
  struct Pieces {
    Piece zero, scratch;
  };
  void grow(Piece& piece, std::size_t bytes);

  Device& device_;
  std::mutex mutex_;
  std::map<std::uint64_t, Pieces> of_stream_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // all zeroed
  Piece rest_;                                    // of the last of them
};

}  // namespace flashcore::api
