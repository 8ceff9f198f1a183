#pragma once
// Problem: what to compute. It says nothing of how (tiles and stages belong to a family's config), nor of where
// operands lie (core/operands.h). Its fields are those of the table in core/problem_fields.cpp.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/band.h"
#include "core/dtype.h"
#include "core/expression.h"

namespace flashcore {

// Where the diagonal of a mask lies when both lengths differ: row i's own key is i + seqlen_kv - seqlen_q, or i.
enum class Alignment {
  kBottomRight,  // the last row's own key is the last one (FlashAttention, decoding). `causal: true`
  kTopLeft,      // the first row's own key is the first one (PyTorch's is_causal)
};

// Which keys a query row may see: those from `left` before its own to `right` after it. No bound: all on that side.
// FlashAttention's window_size = (left, right) with -1 for no bound; causal is right = 0.
struct Mask {
  Alignment alignment = Alignment::kBottomRight;  // kBottomRight where nothing is bounded
  std::optional<std::int64_t> left, right;

  static constexpr Mask causal(Alignment alignment = Alignment::kBottomRight) { return {alignment, std::nullopt, 0}; }

  bool operator==(const Mask&) const = default;
  bool none() const { return !left && !right; }
  bool is_causal() const { return right == 0; }
};

// How many factors bring 8-bit operands back to their values (descales): x = descale * stored.
enum class Scaling {
  kNone,    // none: they are what is stored
  kTensor,  // one for each operand
  kHead,    // one for each batch entry and kv head, and the query heads that read it (FlashAttention's descales)
  // Of a quantised cache one for each key and kv head, which lie as the keys do. Of 8-bit operands one for each row of
  // q and of k, but one for each batch entry and kv head of v: its values meet weights of 8 bits, which have no room
  // for factors that are far apart.
  kToken,
};
inline constexpr std::array kAllScalings = {Scaling::kNone, Scaling::kTensor, Scaling::kHead, Scaling::kToken};
std::string_view to_string(Scaling scaling);  // "none" | "tensor" | "head" | "token"

// How v lies, of 8-bit q, k and v: wgmma wants both operands of 8 bits with contiguous keys in P·V.
enum class VLayout {
  kNd,  // [batch, heads_kv, seqlen_kv, head_dim_v]
  kDn,  // [batch, heads_kv, head_dim_v, seqlen_kv]: the keys of a column are neighbours (core/operands.h)
};
std::string_view to_string(VLayout layout);  // "nd" | "dn"

// ALiBi: a bias that falls with the distance between a row's own key and the key, by a slope for each query head.
// The own key is i + seqlen_kv - seqlen_q however the mask is aligned, as in FlashAttention.
enum class Alibi {
  kNone,
  kHead,   // head: a slope for each query head
  kBatch,  // batch: a slope for each batch entry and query head
};
std::string_view to_string(Alibi alibi);  // "none" | "head" | "batch"

// Of a ragged batch seqlen_q and seqlen_kv are upper bounds. The lengths themselves are data, read on the device at
// each launch; the word says which ones checks and benchmarks take, and kernels do not know it.
enum class Lengths {
  kFixed,    // no ragged batch: every sequence has seqlen_q rows and seqlen_kv keys
  kFull,     // every sequence is as long as the bounds
  kHalving,  // the bounds, half of them, a quarter, ...; at least 1
  kRandom,   // drawn from the sizes of the problem; some are 0, some the bounds
};
std::string_view to_string(Lengths lengths);  // "fixed" | "full" | "halving" | "random"

struct SequenceLengths {
  std::int64_t q = 0, kv = 0;
  bool operator==(const SequenceLengths&) const = default;
};

// Of a score and a mask together.
inline constexpr std::size_t kMaxExpressionTensors = 8;

struct Problem {
  DType dtype = DType::kF16;  // of q, and of k and v unless those are a quantised cache
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;   // divides heads_q (grouped-query attention)
  std::int64_t seqlen_q = 1;   // 0 is allowed: nothing to compute
  std::int64_t seqlen_kv = 1;  // 0 is allowed: every row is fully masked
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  Mask mask;
  std::optional<double> scale = {};  // softmax scale; none means 1/sqrt(head_dim)
  // Of a quantised cache: what k and v store, of 8 bits beside q of 16 or 32. One of kCacheDTypes.
  std::optional<DType> kv_dtype = {};
  // Of o and of the scales of 8 bits, where they are not the usual ones: see output_dtype() and input_scaling().
  std::optional<DType> o_dtype = {};
  std::optional<Scaling> scaling = {};
  // What becomes of a score s = scale * q·k, in this order: softcap * tanh(s / softcap); minus slope * |own key - j|.
  // Then it is masked.
  std::optional<double> softcap = {};
  Alibi alibi = Alibi::kNone;
  // A logit for each query head that joins the row's sum and log-sum-exp, and has no value (gpt-oss).
  bool sink = false;
  // Beside o the largest magnitudes are asked for, fp32 [2, heads_q]: of each query head's scores, as the softmax takes
  // them and of visible pairs, and of its o before that is rounded. Of 8-bit q, whose callers choose factors by them.
  bool amax = false;
  Lengths lengths = Lengths::kFixed;
  // Keys in a page of k and v, which then lie in a pool of pages that a block table names (core/paged.h); 0: dense. Of
  // ragged batches only, whose keys are not packed then: the first ones of a sequence's pages are its keys.
  std::int64_t page_size = 0;
  // Of dense e4m3 or e5m2 q, k and v; others have kNd.
  VLayout v_layout = VLayout::kNd;
  // Functions of the user's own (core/expression.h), as canonical text; empty: none. The score function takes what
  // softcap and ALiBi leave; the mask function says which of the pairs within the band are visible. set_expressions()
  // of core/problem_expressions.h fills in all three.
  std::string score_text = {}, mask_text = {};
  std::vector<ExpressionTensor> tensors = {};  // that the two name: the score's in the order of its text, then others

  bool operator==(const Problem&) const = default;

  bool is_8bit() const { return size_of(dtype) == 1; }
  // Multiplied with q in its precision, to which all that a cache can store converts exactly.
  bool has_quantised_cache() const { return kv_dtype.has_value(); }
  DType cache_dtype() const { return kv_dtype.value_or(dtype); }  // of k and v
  bool may_be_scaled() const { return is_8bit() || has_quantised_cache(); }
  static DType usual_output(DType dtype) { return size_of(dtype) == 1 ? DType::kBF16 : dtype; }
  DType output_dtype() const { return o_dtype.value_or(usual_output(dtype)); }
  Scaling usual_scaling() const { return may_be_scaled() ? Scaling::kTensor : Scaling::kNone; }
  Scaling input_scaling() const { return scaling.value_or(usual_scaling()); }
  bool has_descales() const { return input_scaling() != Scaling::kNone; }
  // Of each operand's own factors. descale_counts() of core/operands.h says how many they are.
  Scaling q_scaling() const { return is_8bit() ? input_scaling() : Scaling::kNone; }
  Scaling k_scaling() const { return input_scaling(); }
  Scaling v_scaling() const {
    return is_8bit() && input_scaling() == Scaling::kToken ? Scaling::kHead : input_scaling();
  }

  bool transforms_scores() const { return softcap || alibi != Alibi::kNone; }
  bool has_score() const { return transforms_scores() || sink; }
  // Values of the operands alibi and sink, 0 where there is none: heads_q, or batch x heads_q.
  std::int64_t alibi_count() const;
  std::int64_t sink_count() const { return sink ? heads_q : 0; }
  std::int64_t amax_count() const { return amax ? 2 * heads_q : 0; }  // scores first, then o

  bool has_score_expression() const { return !score_text.empty(); }
  bool has_mask_expression() const { return !mask_text.empty(); }
  bool has_expression() const { return has_score_expression() || has_mask_expression(); }
  // Parsed; only of a problem that has one.
  Expression score_expression() const;
  Expression mask_expression() const;
  Problem without_expressions() const;

  // A batch of sequences of different lengths that lie one after another (cu_seqlens).
  bool ragged() const { return lengths != Lengths::kFixed; }
  bool paged() const { return page_size > 0; }
  bool has_transposed_v() const { return v_layout == VLayout::kDn; }
  // Of each batch entry; where they are not fixed, those that `lengths` stands for.
  std::vector<SequenceLengths> sequences() const;
  SequenceLengths total_lengths() const;
  // One sequence of those lengths by itself. What a ragged problem computes, and what it costs, is that of its parts.
  Problem of_sequence(SequenceLengths sequence) const;

  double softmax_scale() const;
  std::int64_t group_size() const { return heads_q / heads_kv; }
  // The mask, of these lengths; of a ragged problem, whether any lengths within the bounds are cut on a side. A bound
  // that cuts nothing off is not there, so that a window longer than the sequences runs on the kernels without one.
  // Except for the causal one: which kernel and config a causal problem gets does not change where it has but one row.
  Band<std::int64_t> band() const;
  // Number of keys that query row `row` sees: 0..seqlen_kv.
  std::int64_t visible_keys(std::int64_t row) const { return band().keys_of_row(row).size(); }
  // Keys that any row sees: what must be read of k and v.
  KeyRange<std::int64_t> keys_read() const;
  // Over one head of one batch entry; of a ragged problem, of all of them. What a mask function hides does not count
  // (core/problem_pairs.cpp).
  std::int64_t unmasked_pairs() const;

  // 2·(head_dim + head_dim_v) per unmasked pair of every query head; softmax not counted (the field's convention).
  double flops() const;
  // The fewest bytes that must move: q, k, v read once, o and lse (fp32) written once. Keys that no row sees and rows
  // that see no key are not read. Of a paged problem also the block table; keys that two sequences share count for
  // each.
  double bytes() const;
  // Decode-like: too few query rows per key to be bound by arithmetic; quoted in bytes per second. The rule: at most 64
  // query rows share a key (seqlen_q x group_size: about 64 flops a byte, a third of what keeps tensor cores busy), and
  // at least 8 keys are read per query row.
  bool is_decode() const;

  // Readable, file-safe and reversible: b1_h8_s512_d64_fp16, b1_h32_hk8_s4096_d128_bf16_causal,
  // b16_h32_hk8_sq1_sk8192_d128_dv64_bf16_causaltl_scale0.125, b1_h8_s4096_d128_bf16_causal_wl1023,
  // b1_h8_sq5_sk70_d64_fp16_wl8_wr4_tl, b1_h8_s512_d64_e4m3_ofp16_perhead_causal,
  // b1_h32_hk16_s4096_d128_bf16_causal_softcap50, b1_h64_hk8_s4096_d64_bf16_causal_wl127_sink,
  // b8_h32_hk8_s8192_d128_bf16_causal_raggedhalving, b64_h32_hk8_sq1_sk4096_d128_bf16_raggedfull_page16,
  // b64_h32_hk8_sq1_sk4096_d128_bf16_kve4m3_raggedfull_page16, b1_h8_s512_d64_e4m3_causal_vdn,
  // b1_h8_s512_d64_e4m3_amax
  // Of a score or mask function it has a hash, _score1b0c3a1f9e2d, which parse() knows of what this process has read or
  // printed before.
  std::string id() const;
  // Error kBadInput with the form on a bad id, and on one that names a layout: PlacedProblem reads those. Also reads
  // {"id": "b1_h8_s512_d64_fp16_causal", "score": "s * 2", "mask": ..., "tensors": "slope: float[1]"}.
  static Problem parse(std::string_view id);

  // Throws Error kBadInput naming the field, its value and what is allowed. Limits: dims up to 2^31-1 elements a
  // tensor row count, head dims 1..1024, at most 2^40 elements a tensor.
  void validate() const;
};

std::string_view to_string(Alignment alignment);  // "bottom_right" | "top_left"

}  // namespace flashcore
