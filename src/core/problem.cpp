#include "core/problem.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace flashcore {
std::string_view to_string(Alignment alignment) {
  switch (alignment) {
    case Alignment::kBottomRight: return "bottom_right";
    case Alignment::kTopLeft: return "top_left";
  }
  throw_internal("unknown alignment {}", static_cast<int>(alignment));
}

std::string_view to_string(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone: return "none";
    case Scaling::kTensor: return "tensor";
    case Scaling::kHead: return "head";
  }
  throw_internal("unknown scaling {}", static_cast<int>(scaling));
}

std::string_view to_string(Alibi alibi) {
  switch (alibi) {
    case Alibi::kNone: return "none";
    case Alibi::kHead: return "head";
    case Alibi::kBatch: return "batch";
  }
  throw_internal("unknown kind of ALiBi {}", static_cast<int>(alibi));
}

std::int64_t Problem::alibi_count() const {
  switch (alibi) {
    case Alibi::kNone: return 0;
    case Alibi::kHead: return heads_q;
    case Alibi::kBatch: return batch * heads_q;
  }
  throw_internal("unknown kind of ALiBi {}", static_cast<int>(alibi));
}

std::int64_t Problem::descale_count() const {
  switch (input_scaling()) {
    case Scaling::kNone: return 0;
    case Scaling::kTensor: return 1;
    case Scaling::kHead: return batch * heads_kv;
  }
  throw_internal("unknown scaling {}", static_cast<int>(input_scaling()));
}

double Problem::softmax_scale() const { return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(head_dim)); }

Band<std::int64_t> Problem::band() const {
  const std::int64_t diagonal = mask.alignment == Alignment::kBottomRight ? seqlen_kv - seqlen_q : 0;
  Band<std::int64_t> band{seqlen_kv, false, false, 0, 0};
  // The last row's window begins last, the first row's ends first.
  if (mask.left && seqlen_q - 1 + diagonal - *mask.left > 0) {
    band.bounded_left = true;
    band.left_offset = diagonal - *mask.left;
  }
  if (mask.right && (mask.is_causal() || diagonal + *mask.right + 1 < seqlen_kv)) {
    band.bounded_right = true;
    band.right_offset = diagonal + *mask.right;
  }
  return band;
}

KeyRange<std::int64_t> Problem::keys_read() const {
  if (seqlen_q == 0) return {0, 0};
  return band().keys_of_any(0, seqlen_q - 1);
}

std::int64_t Problem::unmasked_pairs() const {
  // Each row sees clamp(row + right + 1) - clamp(row + left) keys, with clamp to 0..seqlen_kv: two sums of the same
  // form. Both lengths are below 2^31, so their product fits.
  const auto sum_of_ends = [this](std::int64_t offset) {
    const std::int64_t first = std::clamp<std::int64_t>(-offset, 0, seqlen_q);                // the first row above 0
    const std::int64_t full = std::clamp<std::int64_t>(seqlen_kv - offset, first, seqlen_q);  // from here on seqlen_kv
    const std::int64_t rising = full - first;
    return rising * (first + offset) + rising * (rising - 1) / 2 + (seqlen_q - full) * seqlen_kv;
  };
  const Band<std::int64_t> visible = band();
  const std::int64_t ends = visible.bounded_right ? sum_of_ends(visible.right_offset + 1) : seqlen_q * seqlen_kv;
  return ends - (visible.bounded_left ? sum_of_ends(visible.left_offset) : 0);
}

double Problem::flops() const {
  return 2.0 * static_cast<double>(head_dim + head_dim_v) * static_cast<double>(unmasked_pairs()) *
         static_cast<double>(batch) * static_cast<double>(heads_q);
}

double Problem::bytes() const {
  const Band<std::int64_t> visible = band();
  const std::int64_t keys = keys_read().size();
  // A row that sees none needs no q: those before the band reaches the first key and those after it left the last.
  const std::int64_t before = visible.bounded_right ? std::max<std::int64_t>(0, -visible.right_offset) : 0;
  const std::int64_t after =
      visible.bounded_left ? std::max<std::int64_t>(0, seqlen_q - (seqlen_kv - visible.left_offset)) : 0;
  const std::int64_t masked_rows = keys == 0 ? seqlen_q : before + after;
  const double q_rows = static_cast<double>(batch * heads_q) * static_cast<double>(seqlen_q - masked_rows);
  const double o_rows = static_cast<double>(batch * heads_q) * static_cast<double>(seqlen_q);
  const double kv_rows = static_cast<double>(batch * heads_kv) * static_cast<double>(keys);
  const double element = static_cast<double>(size_of(dtype));
  const double read = q_rows * static_cast<double>(head_dim) + kv_rows * static_cast<double>(head_dim + head_dim_v);
  const double written = o_rows * static_cast<double>(head_dim_v) * static_cast<double>(size_of(output_dtype()));
  const auto by_head = static_cast<double>(3 * descale_count() + alibi_count() + sink_count());
  return read * element + written + (o_rows + by_head) * 4.0;
}

bool Problem::is_decode() const {
  return seqlen_q > 0 && seqlen_q * group_size() <= 64 && keys_read().size() >= 8 * seqlen_q;
}

}  // namespace flashcore
