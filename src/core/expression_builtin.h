#pragma once
// Scores and masks that have a name, as the expressions that they are, and how several become one.

#include <cstdint>
#include <optional>

#include "core/expression.h"
#include "core/problem.h"

namespace flashcore {

// cap * tanh(s / cap): Gemma 2, Grok. Error kBadInput unless cap is a positive fp32 number.
Expression softcap_score(double cap);
inline constexpr double kMinSoftcap = 1e-6, kMaxSoftcap = 1e6;  // of Problem::softcap
// The cap of a score that is this and nothing more, the literal before or behind the tanh.
std::optional<double> softcap_of(const Expression& score);
// A score function that says a softcap becomes Problem::softcap, for which kernels have code of their own. It stays
// beside a softcap, and beside ALiBi, which a score function comes after and a softcap before.
void name_softcap(Problem& problem);

// Where row i's own key is: the end of both sequences is the same place, or their beginning.
// s - alibi_slopes[h] * |own key - j| (Press, Smith and Lewis 2021, and FlashAttention's alibi_slopes). The tensor
// holds a positive slope for each query head.
inline constexpr std::string_view kAlibiSlopes = "alibi_slopes";
Expression alibi_score(Alignment alignment = Alignment::kBottomRight);

// The band of a Problem as an expression: own key - left <= j <= own key + right. Needs one of the two bounds.
Expression band_mask(const Mask& band);
inline Expression causal_mask(Alignment alignment = Alignment::kBottomRight) {
  return band_mask(Mask::causal(alignment));
}
// A prefix that every row sees, of `keys` keys or, in the tensor of ints prefix_keys[b], of as many for each batch
// entry; after it causal.
inline constexpr std::string_view kPrefixKeys = "prefix_keys";
Expression prefix_mask(std::int64_t keys, Alignment alignment = Alignment::kBottomRight);
Expression prefix_mask_of_batch(Alignment alignment = Alignment::kBottomRight);
// A row sees the keys of its own document: tensors of ints document_q[b, i] and document_kv[b, j].
inline constexpr std::string_view kDocumentQ = "document_q", kDocumentKv = "document_kv";
Expression document_mask();

// `next` of what `first` makes of s. softcap, then ALiBi: score_after(softcap_score(50), alibi_score()).
Expression score_after(const Expression& first, const Expression& next);
// What both show.
Expression both_masks(const Expression& a, const Expression& b);

}  // namespace flashcore
