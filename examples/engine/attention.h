// What the engine asks of flashcore: caches in pages, the attention of a step over them, and of one request alone.
#pragma once

#include <flashcore/flashcore.hpp>
#include <span>
#include <vector>

#include "model.h"

namespace engine {

struct CacheSizes {
  int page_size = 16, pages = 128;
  int max_requests = 8;  ///< that run at once
  int max_pages = 16;    ///< of one request
  int max_rows = 64;     ///< of one step, all requests together
};

/// The rows of one step: request s of the step has the rows cu_seqlens_q[s] to cu_seqlens_q[s + 1] - 1, and its keys up
/// to its last row's own are in the pages that its row of the table names.
struct StepTables {
  std::vector<std::int32_t> cu_seqlens_q, seqused_kv, block_table;
  bool is_decoding = true;  ///< no request has more than one row
};

class Attention {
 public:
  Attention(const flashcore::Context& context, const Sizes& sizes, const CacheSizes& cache, fc_dtype dtype);

  /// Once a step, for all layers.
  void begin_step(const StepTables& tables);
  /// Writes k and v [rows, heads_kv * head_dim] to a page from its row `first` on.
  void append(int layer, int page, int first, std::span<const float> k, std::span<const float> v);
  /// o [rows, heads * head_dim] of q, in the order of the step's tables.
  void attend(int layer, std::span<const float> q, std::span<float> o);
  /// The same of one request alone, over dense k and v, causal.
  std::vector<float> attend_alone(std::span<const float> q, std::span<const float> k, std::span<const float> v) const;

  /// How far two computations of a row may be apart, relative to its norm.
  double bound() const;
  const CacheSizes& sizes() const { return cache_; }
  std::string describe() const { return decoding_.describe(); }

 private:
  using Bytes = flashcore::Memory<std::byte>;
  flashcore::Attention problem(int rows) const;
  Bytes allocate(int rows, int width) const;
  std::size_t element_bytes() const { return dtype_ == FC_FP32 ? 4 : 2; }

  const flashcore::Context& context_;
  Sizes sizes_;
  CacheSizes cache_;
  fc_dtype dtype_;
  flashcore::Plan decoding_, mixed_;
  std::vector<Bytes> k_, v_;  // of each layer
  Bytes q_, o_;
  flashcore::Memory<std::int32_t> cu_seqlens_q_, seqused_kv_, block_table_;
  bool is_decoding_ = true;
};

}  // namespace engine
