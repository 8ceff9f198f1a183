#include "core/data.h"

#include "core/error.h"

namespace flashcore {

namespace {

float factor_at(Scaling scaling, const std::vector<float>& factors, std::int64_t of_head, std::int64_t of_row) {
  if (factors.empty()) return 1;
  switch (scaling) {
    case Scaling::kNone: return 1;
    case Scaling::kTensor: return factors[0];
    case Scaling::kHead: return factors[static_cast<std::size_t>(of_head)];
    case Scaling::kToken: return factors[static_cast<std::size_t>(of_row)];
  }
  throw_internal("unknown scaling {}", static_cast<int>(scaling));
}

float factor_of_key(const Problem& p, Scaling scaling, const std::vector<float>& factors, std::int64_t batch,
                    std::int64_t head_kv, std::int64_t key) {
  const std::int64_t head = batch * p.heads_kv + head_kv;
  return factor_at(scaling, factors, head, head * (p.paged() ? p.page_size : p.seqlen_kv) + key);
}

}  // namespace

float descale_q_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_q,
                   std::int64_t row) {
  return factor_at(problem.q_scaling(), descales, batch * problem.heads_kv + head_q / problem.group_size(),
                   (batch * problem.heads_q + head_q) * problem.seqlen_q + row);
}

float descale_k_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_kv,
                   std::int64_t key) {
  return factor_of_key(problem, problem.k_scaling(), descales, batch, head_kv, key);
}

float descale_v_at(const Problem& problem, const std::vector<float>& descales, std::int64_t batch, std::int64_t head_kv,
                   std::int64_t key) {
  return factor_of_key(problem, problem.v_scaling(), descales, batch, head_kv, key);
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
  if (!problem.is_8bit() && !problem.has_quantised_cache())
    std::erase_if(patterns, [](Pattern p) { return p == Pattern::kOutlierChannels || p == Pattern::kSinks; });
  return patterns;
}

}  // namespace flashcore
