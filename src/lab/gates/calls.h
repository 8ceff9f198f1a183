#pragma once
// What must hold of any call of a candidate, whatever the data: where its operands lie, how often it is called, and
// what it is called with.

#include <optional>
#include <string>

#include "kernels/program.h"
#include "lab/gates/request.h"
#include "lab/harness/compiled_candidate.h"
#include "lab/harness/operands.h"
#include "lab/harness/oracle.h"

namespace flashcore {

// What a check found.
struct CallFault {
  Check check;
  std::string what;
};

// A loaded candidate that was launched on `operands`, which hold oracle.inputs, and gave `outputs`, which are right.
struct JudgedCall {
  Device& device;
  const PlacedProblem& problem;
  const Oracle& oracle;
  const LoadedCandidate& loaded;
  Operands& operands;
  const Launch& launch;
  const AttentionOutputs& outputs;
  const BoundWorkspaces& workspaces;  // of `launch`
};

// Poisons the outputs, launches, waits, and takes what is there.
AttentionOutputs launch_once(Device& device, Operands& operands, const Launch& launch);
// Of the rows that fp64 computed.
OutputError compare_sample(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                           const AttentionOutputs& outputs);
bool is_right(const OutputError& error, const ErrorBound& bound);  // as far as the checks that are on say

// kRepeat: the same launch gives the same bits. At GateLevel::kFull on hardware a hundred times, up to a thousand while
// that takes less than 50 ms, on a GPU half a second; fewer only where a hundred take more than five. On the
// emulator up to 32 times where these are 10 Mflop together (a sequence's KV head counts as 16 rows and 64 keys at
// least), and twice at least; a kernel of the library, unpatched and built in, four times at most. Sets
// evidence["repeats"].
std::optional<CallFault> check_repeats(const JudgedCall& call, GateLevel level, nlohmann::json& evidence);

// kWorkspaces: scratch with other bytes in it gives the same bits, and what is to be zero after a launch is. On the
// emulator one filling is all that a kernel of the library gets.
std::optional<CallFault> check_workspaces(const JudgedCall& call);

// Whether launches of it cost little: on the emulator, of a kernel of the library, only where more than two repeats are
// made.
bool is_launch_cheap(const JudgedCall& call);

// kSettled: a few milliseconds later the outputs are still the same. For hardware; before any other launch.
std::optional<CallFault> check_settled(const JudgedCall& call);

// kEarlierResult, kChangedContent and kFreshPointers, for hardware. Leaves other inputs in the operands.
std::optional<CallFault> check_state(const JudgedCall& call);
// kEarlierResult: outputs that hold the result of other inputs become this one's.
std::optional<CallFault> check_earlier_result(const JudgedCall& call);
// kNanOfV: where V is NaN in all of one key head (of a ragged batch: in one sequence), rows that see it are NaN, and
// those of other heads and sequences are what they were. Of normal data, whose weights are numbers.
std::optional<CallFault> check_nan_of_v(const JudgedCall& call);
// kNoLse: a launch without lse writes the same o and no lse; repeated: and another one the same bits.
std::optional<CallFault> check_no_lse(const JudgedCall& call, bool repeated);

// How much a check of arguments tries: all of it on a candidate's first data, and of other data, by which a kernel may
// choose its way, one launch.
enum class Extent { kAll, kOneLaunch };

// kAlignment: `promised` bytes are what all addresses must be multiples of, at least an element's size.
// Sets evidence["offsets"].
std::optional<CallFault> check_arguments(const JudgedCall& call, int promised, Extent extent, nlohmann::json& evidence);

// kLengths: of a ragged batch, the launch that was bound before serves sequences that are shorter than the problem's,
// and writes no row that none of them has. Sets evidence["shorter_sequences"] to the number of sets of lengths.
std::optional<CallFault> check_lengths(const JudgedCall& call, Extent extent, nlohmann::json& evidence);

// kUsedLengths: of a ragged batch, a launch with seqused_q and seqused_kv takes that many rows and keys of each
// sequence, wherever it begins, and writes no others; behind the used ones of q, k and v lies NaN. A sequence with more
// keys than it can have gives NaN, and so do pages that do not exist. Sets evidence["used_lengths"] to the number of
// launches.
std::optional<CallFault> check_used_lengths(const JudgedCall& call, Extent extent, nlohmann::json& evidence);

}  // namespace flashcore
