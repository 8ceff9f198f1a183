#pragma once
// A problem made ready on a device: chosen, compiled, loaded. Immutable once made.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/context.h"
#include "api/overlap.h"
#include "api/problem.h"
#include "kernels/cpu_call.h"

namespace flashcore::api {

class BlockMask;

class Plan {
 public:
  // Takes the best choice that compiles here and suits the tensors' strides; what it passed over is in the notes.
  // Error as the last of them if none is left.
  Plan(std::shared_ptr<Context> context, const Request& request);

  // Error kBadInput for a null or misaligned address, and for an output that lies on another tensor. From any number of
  // threads side by side. Allocates nothing on a GPU but what WorkspacePool says, and on the CPU nothing on addresses
  // that it was lately launched on (CpuCall). `block_mask` may be null.
  void launch(const Addresses& addresses, void* stream, const BlockMask* block_mask = nullptr) const;
  // Of the lists of blocks that each launch makes without a block mask; 0: none.
  std::size_t list_bytes() const { return program_ ? program_->reusable_bytes() : 0; }
  // Equal for plans of one problem and kernel that can read each other's lists, or have none.
  const std::string& list_key() const { return list_key_; }
  // Enqueues what makes them in `memory`. Error kBadInput as launch(), for the operands that this reads.
  void make_lists(const Addresses& addresses, void* stream, void* memory) const;
  const Problem& problem() const { return problem_; }
  std::string candidate() const { return choice_->candidate.print(); }
  // Those of the caller's tensors, in the order that they had when the plan was made, as Problem::tensors are.
  void place_tensors(const void* const* given, AttentionArgs& args) const;
  std::string describe() const;
  // What fc_plan_status says. Waits for the stream, and copies the lengths from the device.
  std::string status(const Addresses& addresses, void* stream) const;
  const Context& context() const { return *context_; }

 private:
  bool make(const Choice& choice, const Request& request);
  void load(const Choice& choice, Program program);
  void add_slow_note(const Request& request);
  void add_empty_notes(const ProblemLayouts& layouts);
  // What is asked of an operand: whether it suits a launch, or a step that makes lists of blocks, which reads few.
  enum class Reader { kLaunch, kLists };
  void check(const Addresses& addresses) const;
  void check_floats(const Addresses& addresses) const;
  void check_int32s(const Addresses& addresses, Reader reader = Reader::kLaunch) const;
  std::vector<std::int32_t> download_int32s(const Addresses& addresses, Operand operand) const;
  void check_tensors(const Addresses& addresses, Reader reader = Reader::kLaunch) const;
  void check_amax(const Addresses& addresses) const;
  void check_apart(const Addresses& addresses, const char* name, const void* values, std::int64_t bytes) const;

  std::shared_ptr<Context> context_;
  Problem problem_;
  std::optional<Choice> choice_;
  std::vector<std::string> notes_;
  int kernel_alignment_ = 0;  // of q, k, v and o, where it is more than their elements need
  bool needs_q_ = false, needs_kv_ = false, needs_o_ = false;
  std::array<Footprint, 5> footprints_;  // q, k, v, o, lse
  Artifact artifact_;

  std::unique_ptr<LoadedProgram> program_;  // none on a CPU, and where there is nothing to launch
  std::unique_ptr<CpuCall> cpu_call_;
  std::string list_key_;
  std::array<bool, kMaxExpressionTensors> is_of_mask_{};
  ProblemLayouts layouts_;
  std::vector<int> tensor_order_;  // as of Request
  std::vector<std::int64_t> tensor_bytes_;
};

// What fc_explain says.
std::string explain(const Context& context, const Request& request);

}  // namespace flashcore::api
