#include "core/data.h"

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

std::size_t bytes_of(const AttentionInputs& in) {
  std::size_t bytes = in.q.data.size() + in.k.data.size() + in.v.data.size();
  for (const std::vector<float>* floats : {&in.descale_q, &in.descale_k, &in.descale_v, &in.sink, &in.alibi})
    bytes += floats->size() * sizeof(float);
  for (const ElementTensor& tensor : in.tensors) bytes += tensor.data.size();
  return bytes + (in.block_table.size() + in.seqused_kv.size()) * sizeof(std::int32_t);
}

float slope_at(const Problem& problem, const std::vector<float>& alibi, std::int64_t batch, std::int64_t head) {
  if (alibi.empty()) return 0;
  return alibi[static_cast<std::size_t>(problem.alibi == Alibi::kBatch ? batch * problem.heads_q + head : head)];
}

const std::vector<Pattern>& all_patterns() {
  constexpr auto values = enum_values<Pattern>();
  static const std::vector<Pattern> patterns(values.begin(), values.end());
  return patterns;
}

std::vector<Pattern> patterns_of(const Problem& problem) {
  std::vector<Pattern> patterns = all_patterns();
  std::erase(patterns, problem.is_8bit() ? Pattern::kUnequal : Pattern::kPositive);
  return patterns;
}

}  // namespace flashcore
