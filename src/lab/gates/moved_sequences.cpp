// Sequences of a ragged batch of which the first one begins behind rows that none has.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/boundaries.h"
#include "core/ragged.h"
#include "lab/gates/lengths.h"

namespace flashcore {
namespace {

constexpr std::int64_t kMostMoved = 5;  // rows, and keys: no multiple of a tile's, or of what one copy brings

// The first `count` rows to `by` rows later, and NaN before them, where the type has one.
void move_rows(HostTensor& packed, std::int64_t count, std::int64_t by) {
  const TensorLayout& at = packed.layout;
  for (std::int64_t head = 0; head < at.heads && by > 0; ++head)
    for (std::int64_t row = count + by; row-- > 0;) {
      const std::int64_t to = at.offset(0, head, row);
      if (row >= by) copy_row(packed, to, packed, at.offset(0, head, row - by));
      else if (!is_integer(packed.dtype))
        for (std::int64_t column = 0; column < at.columns; ++column)
          packed.set(0, head, row, column, std::numeric_limits<float>::quiet_NaN());
    }
}

std::vector<std::int32_t> moved(const std::vector<std::int64_t>& boundaries, std::int64_t by) {
  std::vector<std::int32_t> later;
  for (const std::int64_t each : boundaries) later.push_back(static_cast<std::int32_t>(each + by));
  return later;
}

}  // namespace

std::optional<CallFault> check_moved_sequences(const JudgedCall& call, const ShorterSequences& set) {
  const Boundaries own = boundaries_of(call.problem), at = boundaries_of(set.sequences);
  const std::int64_t rows = std::min(kMostMoved, own.q.back() - at.q.back());
  const std::int64_t keys = call.problem.paged() ? 0 : std::min(kMostMoved, own.kv.back() - at.kv.back());
  if (rows == 0 && keys == 0) return std::nullopt;
  AttentionInputs inputs = call.oracle.inputs;
  move_rows(inputs.q, at.q.back(), rows);
  for (HostTensor* each : {&inputs.k, &inputs.v}) move_rows(*each, at.kv.back(), keys);
  call.operands.upload(inputs);
  call.operands.upload_lengths(set.sequences);
  const DeviceLengths device_q(call.device, moved(at.q, rows)), device_kv(call.device, moved(at.kv, keys));
  AttentionArgs args = call.operands.args();
  args.cu_seqlens_q = device_q.data();
  if (!call.problem.paged()) args.cu_seqlens_kv = device_kv.data();
  AttentionOutputs outputs = launch_once(call.device, call.operands, call.loaded.bind(args));
  const std::string where = fmt::format("with sequences that begin at row {} and key {} ", rows, keys);
  if (const auto name = is_on(Check::kRedZones) ? call.operands.broken_red_zone() : std::nullopt)
    return CallFault{Check::kLengths, where + fmt::format("it wrote out of bounds around {}", *name)};
  if (is_on(Check::kPoison) &&
      (rows_written(outputs, 0, rows) || rows_written(outputs, at.q.back() + rows, own.q.back())))
    return CallFault{Check::kLengths, where + "it wrote rows that no sequence has"};
  const Boundaries from{std::vector<std::int64_t>{rows, at.q.back() + rows}, {}}, to{{0, at.q.back()}, {}};
  pack_rows(outputs, from, to);
  const OutputError error = compare_sample(call.problem, set.reference, set.rows, outputs);
  call.operands.upload(call.oracle.inputs);
  if (is_right(error, set.bound)) return std::nullopt;
  return CallFault{Check::kLengths, where + "it is wrong: " + describe_error(error, set.bound)};
}

}  // namespace flashcore
