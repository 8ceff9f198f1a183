#pragma once
// What the gates check, one name each. A failed gate says in its evidence which check tripped ("check": "red_zones").
// Tests switch single checks off, to show that each catches a fault that nothing else does: a check that cannot fail is
// a defect. Nothing in the program switches one off.

#include <vector>

#include "core/words.h"

namespace flashcore {

enum class Check {
  // before any compiler
  kDeviceCode,  // a patch brings device code that keeps nothing from launch to launch
  // resource gate
  kSpills,
  kStack,
  kPtxasWarnings,
  kSharedMemory,
  kThreads,
  kRegisters,
  kKeptState,  // of a patched kernel: the PTX names no variable that outlives a launch, but to load from it
  // correctness gate
  kErrorBound,      // against the fp64 reference, in every gate that has outputs
  kScale,           // <o, ref> / <ref, ref> is 1, as far as rounding so many values allows
  kBias,            // the mean of o - ref is 0, as far as rounding allows
  kLse,             // the mean and the rms of lse - ref are 0, of all heads and of each, as far as rounding allows
  kAmax,            // largest magnitudes are those of the scores, as far as rounding allows, and of o, exactly
  kEveryRow,        // where fp64 covers a sample of rows: every element against ref_fwd, on a CPU against fp32
  kPoison,          // outputs hold NaN before a launch, so that an old result is none
  kUnwritten,       // no element still holds the poison
  kRedZones,        // bytes before and after every buffer are what they were
  kInputs,          // the inputs are what they were before the launch
  kGaps,            // bytes between the rows of a strided output are what they were
  kRepeat,          // the same launch, a hundred times and more, gives the same bits
  kWorkspaces,      // what a launch finds in scratch makes no difference, and counters are zero after it
  kNoLse,           // a launch without lse gives the same o
  kAlignment,       // a launch at addresses that are multiples of no more than was promised gives the same o
  kLengths,         // sequences of a ragged batch that are shorter, with the launch that was bound before
  kUsedLengths,     // sequences of which the first rows and keys count, by seqused_q and seqused_kv
  kNanOfV,          // V of NaN in one head or sequence shows in each row that sees it, and in no other head or sequence
  kChangedContent,  // other inputs at the same addresses give the outputs of those
  kEarlierResult,   // buffers that hold the result of other inputs, and no poison, get the result of these
  kFreshPointers,   // the same inputs at other addresses give the same bits
  kSettled,         // nobody writes once the launch is said to be complete
  // performance gate
  kFloor,          // no time below what the hardware can do
  kTimedOutputs,   // what the timed launches left is judged
  kTimedPoison,    // outputs are poisoned before the last of them, so that no earlier result is judged
  kContentTiming,  // a launch on inputs just changed takes no longer than one on inputs just written again
  kUnseenContent,  // a timed launch is right on inputs that nobody could know in advance
  kIdenticalCode,  // two candidates of one machine code are not raced
  kComparison,     // slower by more than the margin is SLOWER
  // harness
  kSelfTest,         // the comparison calls a planted slowdown SLOWER and a speed-up FASTER
  kInertParameters,  // a field that never changes the code
  kUnmaskedFlops,    // a rate in a results file counts unmasked pairs only
  kWatchdog,         // a hang ends
};

template <>
struct WordsOf<Check> {
  static constexpr std::string_view what = "check";
  static constexpr std::pair<Check, std::string_view> table[] = {
      {Check::kDeviceCode, "device_code"},
      {Check::kSpills, "spills"},
      {Check::kStack, "stack"},
      {Check::kPtxasWarnings, "ptxas_warnings"},
      {Check::kSharedMemory, "shared_memory"},
      {Check::kThreads, "threads"},
      {Check::kRegisters, "registers"},
      {Check::kKeptState, "kept_state"},
      {Check::kErrorBound, "error_bound"},
      {Check::kScale, "scale"},
      {Check::kBias, "bias"},
      {Check::kLse, "lse"},
      {Check::kAmax, "amax"},
      {Check::kEveryRow, "every_row"},
      {Check::kPoison, "poison"},
      {Check::kUnwritten, "unwritten"},
      {Check::kRedZones, "red_zones"},
      {Check::kInputs, "inputs"},
      {Check::kGaps, "gaps"},
      {Check::kRepeat, "repeat"},
      {Check::kWorkspaces, "workspaces"},
      {Check::kNoLse, "no_lse"},
      {Check::kAlignment, "alignment"},
      {Check::kLengths, "lengths"},
      {Check::kUsedLengths, "used_lengths"},
      {Check::kNanOfV, "nan_of_v"},
      {Check::kChangedContent, "changed_content"},
      {Check::kEarlierResult, "earlier_result"},
      {Check::kFreshPointers, "fresh_pointers"},
      {Check::kSettled, "settled"},
      {Check::kFloor, "floor"},
      {Check::kTimedOutputs, "timed_outputs"},
      {Check::kTimedPoison, "timed_poison"},
      {Check::kContentTiming, "content_timing"},
      {Check::kUnseenContent, "unseen_content"},
      {Check::kIdenticalCode, "identical_code"},
      {Check::kComparison, "comparison"},
      {Check::kSelfTest, "self_test"},
      {Check::kInertParameters, "inert_parameters"},
      {Check::kUnmaskedFlops, "unmasked_flops"},
      {Check::kWatchdog, "watchdog"},
  };
};
const std::vector<Check>& all_checks();

// True unless a test has switched it off.
bool is_on(Check check);

// Switches a check off while it lives. For tests; one thread.
class CheckOff {
 public:
  explicit CheckOff(Check check);
  ~CheckOff();
  CheckOff(const CheckOff&) = delete;
  CheckOff& operator=(const CheckOff&) = delete;

 private:
  Check check_;
};

}  // namespace flashcore
