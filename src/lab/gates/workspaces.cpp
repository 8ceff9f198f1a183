// What a launch finds in its workspaces, and what it leaves there.

#include <fmt/format.h>

#include <algorithm>

#include "kernels/embedded.h"
#include "lab/gates/calls.h"

namespace flashcore {
namespace {

// Beside the NaN that they are bound with: zero, what a count of many launches looks like, and large numbers of fp32.
constexpr unsigned char kFillings[] = {0x01, 0x00, 0x7e};

bool is_scratch(const Workspace& workspace) { return workspace.contents == Workspace::Contents::kScratch; }

// Number of the workspace that is to be zero after each launch and is not.
std::optional<std::size_t> find_left_behind(const JudgedCall& call) {
  for (std::size_t i = 0; i < call.workspaces.buffers.size(); ++i) {
    if (is_scratch(call.workspaces.kinds[i])) continue;
    std::vector<std::byte> bytes(call.workspaces.kinds[i].bytes);
    call.device.download(bytes.data(), call.workspaces.buffers[i]->data(), bytes.size());
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) return i;
  }
  return std::nullopt;
}

void fill_scratch(const JudgedCall& call, unsigned char byte) {
  for (std::size_t i = 0; i < call.workspaces.buffers.size(); ++i)
    if (is_scratch(call.workspaces.kinds[i]))
      call.device.fill(call.workspaces.buffers[i]->data(), byte, call.workspaces.kinds[i].bytes);
}

}  // namespace

std::optional<CallFault> check_workspaces(const JudgedCall& call) {
  const BoundWorkspaces& all = call.workspaces;
  if (!is_on(Check::kWorkspaces) || all.buffers.empty()) return std::nullopt;
  const auto left_behind = [&call]() -> std::optional<CallFault> {
    const auto found = find_left_behind(call);
    if (!found) return std::nullopt;
    return CallFault{Check::kWorkspaces,
                     fmt::format("it left something in workspace {}, which is to be zero after each launch (a state "
                                 "that it keeps?)",
                                 *found)};
  };
  if (auto found = left_behind()) return found;
  if (!std::any_of(all.kinds.begin(), all.kinds.end(), is_scratch)) return std::nullopt;
  const bool is_own = call.loaded.candidate().family->source_overlay() == nullptr && sources_are_built_in();
  for (const unsigned char byte : kFillings) {
    fill_scratch(call, byte);
    if (!bitwise_equal(call.outputs, launch_once(call.device, call.operands, call.launch)))
      return CallFault{Check::kWorkspaces,
                       fmt::format("with bytes of {:#04x} in its workspaces, whose contents are to make no difference, "
                                   "it gave other bits",
                                   byte)};
    if (call.device.info().limits.emulated && is_own) break;
  }
  return left_behind();
}

}  // namespace flashcore
