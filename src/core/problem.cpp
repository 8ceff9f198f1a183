#include "core/problem.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"

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
    case Scaling::kToken: return "token";
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

std::string_view to_string(VLayout layout) { return layout == VLayout::kDn ? "dn" : "nd"; }

std::string_view to_string(Lengths lengths) {
  switch (lengths) {
    case Lengths::kFixed: return "fixed";
    case Lengths::kFull: return "full";
    case Lengths::kHalving: return "halving";
    case Lengths::kRandom: return "random";
  }
  throw_internal("unknown lengths {}", static_cast<int>(lengths));
}

std::int64_t Problem::alibi_count() const {
  switch (alibi) {
    case Alibi::kNone: return 0;
    case Alibi::kHead: return heads_q;
    case Alibi::kBatch: return batch * heads_q;
  }
  throw_internal("unknown kind of ALiBi {}", static_cast<int>(alibi));
}

namespace {

std::int64_t halved(std::int64_t bound, std::int64_t times) {
  return std::max(bound >> std::min<std::int64_t>(times, 62), std::min<std::int64_t>(bound, 1));
}

// A quarter are 0, a quarter the bound.
std::int64_t random_length(SplitMix& random, std::int64_t bound) {
  const std::size_t kind = random.below(4);
  if (kind == 0) return 0;
  if (kind == 1) return bound;
  return static_cast<std::int64_t>(random.below(static_cast<std::size_t>(bound) + 1));
}

SequenceLengths random_lengths(SplitMix& random, std::int64_t most_q, std::int64_t most_kv) {
  const std::int64_t q = random_length(random, most_q), kv = random_length(random, most_kv);
  // As in training: a sequence's own keys.
  return {q, random.below(3) == 0 ? std::min(q, most_kv) : kv};
}

}  // namespace

std::vector<SequenceLengths> Problem::sequences() const {
  std::vector<SequenceLengths> all(static_cast<std::size_t>(batch), {seqlen_q, seqlen_kv});
  if (lengths == Lengths::kHalving) {
    std::int64_t times = 0;
    for (SequenceLengths& each : all) each = {halved(seqlen_q, times), halved(seqlen_kv, times)}, ++times;
  } else if (lengths == Lengths::kRandom) {
    SplitMix random(static_cast<std::uint64_t>((batch * 1000003 + seqlen_q) * 1000003 + seqlen_kv));
    for (SequenceLengths& each : all) each = random_lengths(random, seqlen_q, seqlen_kv);
    // Of few sequences all might be empty, and a check of nothing passes.
    const auto has_pairs = [](const SequenceLengths& each) { return each.q > 0 && each.kv > 0; };
    if (!all.empty() && std::ranges::none_of(all, has_pairs)) all.front() = {seqlen_q, seqlen_kv};
  }
  return all;
}

SequenceLengths Problem::total_lengths() const {
  if (!ragged()) return {batch * seqlen_q, batch * seqlen_kv};
  SequenceLengths total;
  for (const SequenceLengths& each : sequences()) total.q += each.q, total.kv += each.kv;
  return total;
}

Problem Problem::of_sequence(SequenceLengths sequence) const {
  Problem one = *this;
  one.batch = 1, one.seqlen_q = sequence.q, one.seqlen_kv = sequence.kv, one.lengths = Lengths::kFixed;
  one.page_size = 0;
  return one;
}

Expression Problem::score_expression() const { return Expression::parse(score_text, ExpressionUse::kScore, tensors); }

Expression Problem::mask_expression() const { return Expression::parse(mask_text, ExpressionUse::kMask, tensors); }

Problem Problem::without_expressions() const {
  Problem plain = *this;
  plain.score_text.clear(), plain.mask_text.clear(), plain.tensors.clear();
  return plain;
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

double Problem::flops() const {
  return 2.0 * static_cast<double>(head_dim + head_dim_v) * static_cast<double>(unmasked_pairs()) *
         static_cast<double>(ragged() ? 1 : batch) * static_cast<double>(heads_q);
}

namespace {

// Of q, k, v, o and lse.
double bytes_of_rows(const Problem& p) {
  const Band<std::int64_t> visible = p.band();
  const std::int64_t keys = p.keys_read().size();
  // A row that sees none needs no q: those before the band reaches the first key and those after it left the last.
  const std::int64_t before = visible.bounded_right ? std::max<std::int64_t>(0, -visible.right_offset) : 0;
  const std::int64_t after =
      visible.bounded_left ? std::max<std::int64_t>(0, p.seqlen_q - (p.seqlen_kv - visible.left_offset)) : 0;
  const std::int64_t masked_rows = keys == 0 ? p.seqlen_q : before + after;
  const double q_rows = static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seqlen_q - masked_rows);
  const double o_rows = static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seqlen_q);
  const double kv_rows = static_cast<double>(p.batch * p.heads_kv) * static_cast<double>(keys);
  const double read = q_rows * static_cast<double>(p.head_dim) * static_cast<double>(size_of(p.dtype)) +
                      kv_rows * static_cast<double>(p.head_dim + p.head_dim_v) * (bits_of(p.cache_dtype()) / 8.0);
  const auto factors_of = [](Scaling scaling, double rows) { return scaling == Scaling::kToken ? 4.0 * rows : 0; };
  const double factors =
      factors_of(p.q_scaling(), q_rows) + factors_of(p.k_scaling(), kv_rows) + factors_of(p.v_scaling(), kv_rows);
  const double written = o_rows * static_cast<double>(p.head_dim_v) * static_cast<double>(size_of(p.output_dtype()));
  return read + factors + written + o_rows * 4.0;
}

}  // namespace

double Problem::bytes() const {
  // Factors of rows are read with their rows.
  const auto factors_of = [this](Scaling by) {
    return by == Scaling::kTensor ? 1 : by == Scaling::kHead ? batch * heads_kv : 0;
  };
  const std::int64_t descales = factors_of(q_scaling()) + factors_of(k_scaling()) + factors_of(v_scaling());
  const double by_head = 4.0 * static_cast<double>(descales + alibi_count() + sink_count() + amax_count());
  if (!ragged()) return bytes_of_rows(*this) + by_head;
  double sum = by_head;
  for (const SequenceLengths& each : sequences()) {
    const Problem one = of_sequence(each);
    sum += bytes_of_rows(one);
    if (paged()) sum += 4.0 * static_cast<double>((one.keys_read().size() + page_size - 1) / page_size);
  }
  return sum;
}

bool Problem::is_decode() const {
  return seqlen_q > 0 && seqlen_q * group_size() <= 64 && keys_read().size() >= 8 * seqlen_q;
}

}  // namespace flashcore
