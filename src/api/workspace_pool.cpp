#include "api/workspace_pool.h"

#include <algorithm>

#include "core/error.h"

namespace flashcore::api {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kBufferBytes = std::size_t{256} << 10;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// The old memory stays: launches under way may still use it.
void WorkspacePool::grow(Piece& piece, std::size_t bytes) {
  if (piece.bytes >= bytes) return;
  bytes = std::max(bytes, 2 * piece.bytes);
  if (rest_.bytes < bytes) {
    const std::size_t size = std::max(bytes, kBufferBytes);
    buffers_.push_back(device_.allocate(size));
    device_.fill(buffers_.back()->data(), 0, size);
    // Launches come on other streams than this one.
    device_.synchronize();
    rest_ = {static_cast<std::byte*>(buffers_.back()->data()), size};
  }
  piece = {rest_.begin, bytes};
  rest_ = {rest_.begin + bytes, rest_.bytes - bytes};
}

void WorkspacePool::provide(void* stream, std::span<const Workspace> workspaces, Addresses& addresses) {
  const auto is_needed = [](const Workspace& workspace) { return workspace.bytes > 0; };
  if (std::none_of(workspaces.begin(), workspaces.end(), is_needed)) return;
  std::size_t zero_bytes = 0, scratch_bytes = 0;
  const auto bytes_of = [&](const Workspace& w) -> std::size_t& {
    return w.contents == Workspace::Contents::kLeftZero ? zero_bytes : scratch_bytes;
  };
  for (const Workspace& workspace : workspaces) bytes_of(workspace) += aligned(workspace.bytes);
  const StreamOrder order = device_.order_of(stream);
  const std::lock_guard lock(mutex_);
  Pieces own;
  Pieces& pieces = order.captured ? own : of_stream_[order.id];
  grow(pieces.zero, zero_bytes);
  grow(pieces.scratch, scratch_bytes);
  zero_bytes = scratch_bytes = 0;
  for (std::size_t i = 0; i < workspaces.size(); ++i) {
    const bool zero = workspaces[i].contents == Workspace::Contents::kLeftZero;
    std::size_t& used = bytes_of(workspaces[i]);
    addresses[AddressOf::workspace(i).index()] = (zero ? pieces.zero : pieces.scratch).begin + used;
    used += aligned(workspaces[i].bytes);
  }
}

}  // namespace flashcore::api
