#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "lab/gates/gates.h"
#include "lab/gates/occupancy.h"
#include "lab/record/checks.h"

namespace flashcore {
namespace {

constexpr int kMaxRegistersPerThread = 255;

int registers_per_block(const KernelFacts& artifact) {
  const int warps = (artifact.threads_per_block + kWarp - 1) / kWarp;
  const int per_warp = (artifact.registers * kWarp + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit;
  return warps * per_warp;
}

// C7508, C7510 and their kin: ptxas gave up on what the source asked for (wgmma serialised, setmaxnreg ignored, ...).
// The code still runs, at a fraction of its speed.
bool is_performance_warning(const std::string& warning) {
  const std::size_t at = warning.find("C75");
  return at != std::string::npos && at + 4 < warning.size() &&
         std::isdigit(static_cast<unsigned char>(warning[at + 3])) &&
         std::isdigit(static_cast<unsigned char>(warning[at + 4]));
}

struct Complaint {
  Check check;
  std::string text;
};

// `name` of the kernel, for those that are not the artifact's first.
void add_complaints(const KernelFacts& a, const std::string& name, const DeviceLimits& limits,
                    std::vector<Complaint>& found) {
  const auto complain = [&](Check check, bool wrong, const std::string& text) {
    if (wrong && is_on(check)) found.push_back({check, name + text});
  };
  complain(
      Check::kSpills, a.spill_store_bytes > 0 || a.spill_load_bytes > 0,
      fmt::format("spills {} bytes of stores and {} of loads; allowed 0", a.spill_store_bytes, a.spill_load_bytes));
  // A kernel that spills has the spilled bytes in its frame.
  const int frame = a.stack_bytes - (is_on(Check::kSpills) ? 0 : std::max(a.spill_store_bytes, a.spill_load_bytes));
  complain(Check::kStack, frame > 0,
           fmt::format("stack frame of {} bytes; allowed 0 (a register array indexed at run time lands there)",
                       a.stack_bytes));
  const int shared = a.static_shared_bytes + a.dynamic_shared_bytes;
  complain(Check::kSharedMemory, shared > limits.shared_bytes_per_block,
           fmt::format("{} bytes of shared memory a block; allowed {}", shared, limits.shared_bytes_per_block));
  complain(Check::kThreads, a.threads_per_block < 1 || a.threads_per_block > limits.max_threads_per_block,
           fmt::format("{} threads a block; allowed 1 to {}", a.threads_per_block, limits.max_threads_per_block));
  complain(Check::kRegisters, a.registers > kMaxRegistersPerThread,
           fmt::format("{} registers a thread; allowed {}", a.registers, kMaxRegistersPerThread));
  complain(Check::kRegisters, registers_per_block(a) > limits.registers_per_multiprocessor,
           fmt::format("{} registers a block ({} threads of {}); allowed {}", registers_per_block(a),
                       a.threads_per_block, a.registers, limits.registers_per_multiprocessor));
}

std::vector<Complaint> complaints(const Artifact& artifact, const DeviceLimits& limits) {
  std::vector<Complaint> found;
  add_complaints(artifact, "", limits, found);
  for (const KernelFacts& more : artifact.more_kernels)
    add_complaints(more, fmt::format("kernel {}: ", more.symbol), limits, found);
  for (const std::string& warning : artifact.warnings)
    if (is_performance_warning(warning) && is_on(Check::kPtxasWarnings))
      found.push_back({Check::kPtxasWarnings, "ptxas: " + warning});
  if (!artifact.kept_variables.empty() && is_on(Check::kKeptState))
    found.push_back({Check::kKeptState,
                     fmt::format("the variable {} lives in global memory, and the code does more with its address than "
                                 "load from it: it keeps its value from launch to launch, and a launch must compute "
                                 "from its inputs alone; keep the value in a register or in shared memory",
                                 fmt::join(artifact.kept_variables, ", "))});
  return found;
}

}  // namespace

Verdict judge_resources(const Artifact& artifact, const DeviceLimits& limits) {
  Verdict verdict;
  verdict.gate = Gate::kResource;
  if (limits.kind == DeviceKind::kCpu) {
    verdict.status = GateStatus::kSkipped;
    verdict.reason = "a CPU candidate has no register file or shared memory to judge";
    return verdict;
  }
  verdict.evidence = {{"registers", artifact.registers},
                      {"registers_per_block", registers_per_block(artifact)},
                      {"threads_per_block", artifact.threads_per_block},
                      {"spill_store_bytes", artifact.spill_store_bytes},
                      {"spill_load_bytes", artifact.spill_load_bytes},
                      {"stack_bytes", artifact.stack_bytes},
                      {"shared_bytes", artifact.static_shared_bytes + artifact.dynamic_shared_bytes},
                      {"shared_bytes_allowed", limits.shared_bytes_per_block},
                      {"barriers", artifact.barriers},
                      {"warnings", artifact.warnings}};
  const auto found = complaints(artifact, limits);
  verdict.status = found.empty() ? GateStatus::kPassed : GateStatus::kFailed;
  for (const Complaint& complaint : found) verdict.reason += (verdict.reason.empty() ? "" : "; ") + complaint.text;
  if (!found.empty()) verdict.evidence["check"] = to_string(found.front().check);
  return verdict;
}

}  // namespace flashcore
