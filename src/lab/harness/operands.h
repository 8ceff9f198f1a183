#pragma once
// The device memory of one attention call: inputs, outputs, and the traps around them.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data.h"
#include "core/operands.h"
#include "device/device.h"
#include "kernels/family.h"

namespace flashcore {

struct AttentionOutputs {
  HostTensor o;
  std::vector<float> lse;        // [batch, heads_q, seqlen_q], or [heads_q, total_q] of a ragged batch
  std::vector<float> amax = {};  // [2, heads_q], of a problem that asks for largest magnitudes
};
bool bitwise_equal(const AttentionOutputs& a, const AttentionOutputs& b);

class Operands {
 public:
  // Red zones surround every buffer: a tile of 128 rows of 256 halves written one tile too far still lands in one.
  static constexpr std::size_t kRedZoneBytes = 64 << 10;
  // Above this many input bytes, changed_input() is not worth its download and says nothing. The gate's evidence has
  // "inputs_checked", and the level of a results row says it.
  static constexpr std::size_t kInputCheckLimit = std::size_t{512} << 20;

  // Every address is a multiple of 256 bytes plus its offset, of which the bytes before count as a red zone.
  struct Offsets {
    std::size_t tensors = 0;  // of q, k, v and o
    std::size_t lse = 0;
  };
  Operands(Device& device, const PlacedProblem& problem, Offsets offsets);
  Operands(Device& device, const PlacedProblem& problem) : Operands(device, problem, Offsets{}) {}
  // With a `variant`, what varied_inputs() makes of them, at the cost that the inputs themselves have.
  void upload(const AttentionInputs& inputs, std::uint64_t variant = 0);
  // Of a ragged problem: its sequences get these lengths, of which each is at most its own. The tensors stay. upload()
  // gives them their own again.
  void upload_lengths(const std::vector<SequenceLengths>& sequences);
  // Every byte of the outputs becomes 0xFF, which is NaN in every type: what is not written shows.
  void poison_outputs();
  AttentionArgs args() const;
  AttentionOutputs download_outputs() const;
  void download_outputs(AttentionOutputs& outputs) const;  // over an earlier one

  // "o" if somebody wrote outside that buffer; none if all red zones are intact.
  std::optional<std::string> broken_red_zone() const;
  // "k" if that input no longer holds what was uploaded.
  std::optional<std::string> changed_input(const AttentionInputs& uploaded) const;

  static std::size_t input_bytes(const PlacedProblem& problem);
  static std::size_t total_bytes(const PlacedProblem& problem);  // red zones not counted

 private:
  Device* device_;
  PlacedProblem problem_;
  ProblemLayouts layouts_;
  Offsets offsets_;
  std::unique_ptr<Buffer> q_, k_, v_, o_, lse_;
  std::unique_ptr<Buffer> amax_;  // null where the problem does not ask for it
  // Operands of fp32 beside lse, as kFloats lists them (operands.cpp); null where the problem has none.
  std::array<std::unique_ptr<Buffer>, 5> floats_;
  // Boundaries of a ragged batch, block table and lengths of a paged one, as kInt32s lists them; null for others.
  std::array<std::unique_ptr<Buffer>, 4> int32s_;
  // Of Problem::tensors.
  std::array<std::unique_ptr<Buffer>, kMaxExpressionTensors> tensors_;
  std::vector<std::byte> staging_;  // of upload(), whose pieces are made here

  std::byte* at(const Buffer& buffer) const;
  // Of tensors of fp32 it is lse's.
  std::size_t offset_of(const Buffer& buffer) const;
};

// Other content of the same kind: in every element the sign and the lower bits of the mantissa by chance, drawn from
// `variant`. Finite stays finite, within a factor of two; 0 gives the inputs themselves.
AttentionInputs varied_inputs(const AttentionInputs& inputs, std::uint64_t variant);

// Other values of v, of which the output is known exactly from the output of those that were there. What is not part of
// a row stays.
struct ReplacedValues {
  double factor = 1;              // of each value; infinite where it overflows
  bool columns_reversed = false;  // each row backwards
  std::string_view did() const;   // "doubled"
};
ReplacedValues replace_values(HostTensor& tensor);

// Number of elements of the outputs that still hold the poison, bit for bit.
std::int64_t count_unwritten(const AttentionOutputs& outputs);
// True if a row `first` .. `end` - 1 of packed outputs no longer holds the poison in every element.
bool rows_written(const AttentionOutputs& outputs, std::int64_t first, std::int64_t end);
// True if a row `first` .. `end` - 1 of packed outputs still holds nothing but the poison, in lse or in an o of 16 bits
// and more.
bool rows_left(const AttentionOutputs& outputs, std::int64_t first, std::int64_t end);
// True if a byte between the rows of o (Layout::kStrided) no longer holds the poison.
bool gaps_written(const AttentionOutputs& outputs);

}  // namespace flashcore
