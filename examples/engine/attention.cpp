#include "attention.h"

#include <bit>
#include <cstring>

namespace engine {
namespace {

void check(fc_status status) {
  if (status != FC_OK) throw flashcore::Error(status, fc_last_error());
}

/// As the device stores them: fp32, or bf16 rounded to nearest even.
std::vector<std::byte> encode(std::span<const float> values, fc_dtype dtype) {
  std::vector<std::byte> bytes(values.size() * (dtype == FC_FP32 ? 4 : 2));
  if (dtype == FC_FP32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint16_t upper = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    std::memcpy(&bytes[2 * i], &upper, 2);
  }
  return bytes;
}

void decode(std::span<const std::byte> bytes, fc_dtype dtype, std::span<float> values) {
  if (dtype == FC_FP32) return void(std::memcpy(values.data(), bytes.data(), bytes.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, &bytes[2 * i], 2);
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(upper) << 16);
  }
}

}  // namespace

Attention::Attention(const flashcore::Context& context, const Sizes& sizes, const CacheSizes& cache, fc_dtype dtype)
    : context_(context),
      sizes_(sizes),
      cache_(cache),
      dtype_(dtype),
      decoding_(context, problem(1)),
      mixed_(context, problem(cache.max_rows)),
      q_(allocate(cache.max_rows, sizes.width())),
      o_(allocate(cache.max_rows, sizes.width())),
      cu_seqlens_q_(context, static_cast<std::size_t>(cache.max_requests) + 1),
      seqused_kv_(context, static_cast<std::size_t>(cache.max_requests)),
      block_table_(context, static_cast<std::size_t>(cache.max_requests) * static_cast<std::size_t>(cache.max_pages)) {
  for (int layer = 0; layer < sizes.layers; ++layer) {
    k_.push_back(allocate(cache.pages, cache.page_size * sizes.width_kv()));
    v_.push_back(allocate(cache.pages, cache.page_size * sizes.width_kv()));
  }
}

Attention::Bytes Attention::allocate(int rows, int width) const {
  return Bytes(context_, static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * element_bytes());
}

// One plan serves every step: the bounds are in it, the lengths and pages of a step are read on the device.
flashcore::Attention Attention::problem(int rows) const {
  const fc_strides of_rows = {0, sizes_.head_dim, sizes_.width()};
  const fc_strides of_pages = {static_cast<std::int64_t>(cache_.page_size) * sizes_.width_kv(), sizes_.head_dim,
                               sizes_.width_kv()};
  return {.dtype = dtype_,
          .batch = cache_.max_requests,
          .heads_q = sizes_.heads,
          .heads_kv = sizes_.heads_kv,
          .seqlen_q = rows,
          .seqlen_kv = static_cast<std::int64_t>(cache_.max_pages) * cache_.page_size,
          .head_dim = sizes_.head_dim,
          .causal = FC_CAUSAL_BOTTOM_RIGHT,
          .q_strides = of_rows,
          .k_strides = of_pages,
          .v_strides = of_pages,
          .o_strides = of_rows,
          .lengths = FC_LENGTHS_FULL,
          .total_q = cache_.max_rows,
          .page_size = cache_.page_size,
          .pages = cache_.pages,
          .max_pages = cache_.max_pages};
}

void Attention::begin_step(const StepTables& tables) {
  cu_seqlens_q_.upload(tables.cu_seqlens_q);
  seqused_kv_.upload(tables.seqused_kv);
  block_table_.upload(tables.block_table);
  is_decoding_ = tables.is_decoding;
}

void Attention::append(int layer, int page, int first, std::span<const float> k, std::span<const float> v) {
  const std::size_t row =
      (static_cast<std::size_t>(page) * static_cast<std::size_t>(cache_.page_size) + static_cast<std::size_t>(first)) *
      static_cast<std::size_t>(sizes_.width_kv());
  const auto write = [&](Bytes& cache, std::span<const float> rows) {
    const std::vector<std::byte> bytes = encode(rows, dtype_);
    check(fc_memory_upload(context_.get(), cache.data() + row * element_bytes(), bytes.data(), bytes.size()));
  };
  write(k_[static_cast<std::size_t>(layer)], k);
  write(v_[static_cast<std::size_t>(layer)], v);
}

void Attention::attend(int layer, std::span<const float> q, std::span<float> o) {
  q_.upload(encode(q, dtype_));
  fc_operands operands = FC_OPERANDS_INIT;
  operands.q = q_.data(), operands.o = o_.data();
  operands.k = k_[static_cast<std::size_t>(layer)].data(), operands.v = v_[static_cast<std::size_t>(layer)].data();
  operands.cu_seqlens_q = cu_seqlens_q_.data(), operands.seqused_kv = seqused_kv_.data();
  operands.block_table = block_table_.data();
  (is_decoding_ ? decoding_ : mixed_).launch(operands);
  context_.synchronize();
  std::vector<std::byte> bytes(o.size() * element_bytes());
  o_.download(bytes);
  decode(bytes, dtype_, o);
}

std::vector<float> Attention::attend_alone(std::span<const float> q, std::span<const float> k,
                                           std::span<const float> v) const {
  const std::int64_t rows = static_cast<std::int64_t>(q.size()) / sizes_.width();
  const fc_strides of_q = {0, sizes_.head_dim, sizes_.width()}, of_k = {0, sizes_.head_dim, sizes_.width_kv()};
  const flashcore::Plan plan(context_, {.dtype = dtype_,
                                        .heads_q = sizes_.heads,
                                        .heads_kv = sizes_.heads_kv,
                                        .seqlen_q = rows,
                                        .seqlen_kv = rows,
                                        .head_dim = sizes_.head_dim,
                                        .causal = FC_CAUSAL_BOTTOM_RIGHT,
                                        .q_strides = of_q,
                                        .k_strides = of_k,
                                        .v_strides = of_k,
                                        .o_strides = of_q});
  const auto on_device = [&](std::span<const float> x) { return Bytes(context_, encode(x, dtype_)); };
  const Bytes q_in = on_device(q), k_in = on_device(k), v_in = on_device(v);
  Bytes o_out(context_, q.size() * element_bytes());
  plan.launch(q_in.data(), k_in.data(), v_in.data(), o_out.data());
  context_.synchronize();
  std::vector<std::byte> bytes(q.size() * element_bytes());
  o_out.download(bytes);
  std::vector<float> o(q.size());
  decode(bytes, dtype_, o);
  return o;
}

// Both sides round q, k, v, P and o of each layer: five roundings of half a unit each, of rows that differ before the
// second layer by what the first left. fp32: the exponential's error, which is larger than the roundings.
double Attention::bound() const { return dtype_ == FC_FP32 ? 1e-4 : 0.00390625 * 2.5 * sizes_.layers; }

}  // namespace engine
