#include "core/data.h"

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {

float descale_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_kv,
                 std::int64_t row) {
  if (descales.empty()) return 1;
  std::int64_t at = 0;
  switch (problem.input_scaling()) {
    case Scaling::kNone: return 1;
    case Scaling::kTensor: break;
    case Scaling::kHead: at = batch * problem.heads_kv + head_kv; break;
    case Scaling::kToken:
      at = (batch * problem.heads_kv + head_kv) * (problem.paged() ? problem.page_size : problem.seqlen_kv) + row;
      break;
  }
  return descales[static_cast<std::size_t>(at)];
}

float slope_at(const Problem& problem, const std::vector<float>& alibi, std::int64_t batch, std::int64_t head) {
  if (alibi.empty()) return 0;
  return alibi[static_cast<std::size_t>(problem.alibi == Alibi::kBatch ? batch * problem.heads_q + head : head)];
}

const std::vector<Pattern>& all_patterns() {
  static const std::vector<Pattern> patterns = {Pattern::kNormal,   Pattern::kPeaked,    Pattern::kLargeLogits,
                                                Pattern::kConstant, Pattern::kOutlier,   Pattern::kLongTail,
                                                Pattern::kExtreme,  Pattern::kNonFinite, Pattern::kPositive};
  return patterns;
}

std::vector<Pattern> patterns_of(const Problem& problem) {
  std::vector<Pattern> patterns = all_patterns();
  if (!problem.is_8bit()) std::erase(patterns, Pattern::kPositive);
  return patterns;
}

std::string_view to_string(Pattern pattern) {
  switch (pattern) {
    case Pattern::kNormal: return "normal";
    case Pattern::kPeaked: return "peaked";
    case Pattern::kLargeLogits: return "large_logits";
    case Pattern::kConstant: return "constant";
    case Pattern::kOutlier: return "outlier";
    case Pattern::kLongTail: return "long_tail";
    case Pattern::kNonFinite: return "non_finite";
    case Pattern::kExtreme: return "extreme";
    case Pattern::kPositive: return "positive";
  }
  throw_internal("unknown pattern {}", static_cast<int>(pattern));
}

Pattern parse_pattern(std::string_view name) {
  std::string known;
  for (const Pattern pattern : all_patterns()) {
    if (name == to_string(pattern)) return pattern;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", to_string(pattern));
  }
  throw_bad_input("data pattern '{}' is not known; use one of {}", excerpt(name), known);
}

}  // namespace flashcore
