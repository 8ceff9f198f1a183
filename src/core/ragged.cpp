#include "core/ragged.h"

#include <limits>
#include <span>

#include "core/operands.h"

namespace flashcore {
namespace {

HostTensor rows_of(const HostTensor& packed, std::int64_t begin, std::int64_t end) {
  const TensorLayout& at = packed.layout;
  HostTensor rows(packed.dtype, make_layout(Layout::kBhsd, 1, at.heads, end - begin, at.columns));
  for (std::int64_t head = 0; head < at.heads; ++head)
    for (std::int64_t row = begin; row < end; ++row)
      copy_row(rows, rows.layout.offset(0, head, row - begin), packed, at.offset(0, head, row));
  return rows;
}

// The first `keys` keys of a row of the block table, one after another. A page that the pool does not have holds
// `missing`: NaN for k, which makes NaN of each row that sees such a key, and 0 for v. int8 and int4 have no NaN:
// their numbers become fp32.
HostTensor gather_pages(const HostTensor& pool, std::span<const std::int32_t> table_row, std::int64_t keys,
                        float missing) {
  const TensorLayout& at = pool.layout;
  const DType dtype = is_integer(pool.dtype) ? DType::kF32 : pool.dtype;
  HostTensor dense(dtype, make_layout(Layout::kBhsd, 1, at.heads, keys, at.columns));
  for (std::int64_t key = 0; key < keys; ++key) {
    const std::int64_t page = table_row[static_cast<std::size_t>(key / at.rows)];
    for (std::int64_t head = 0; head < at.heads; ++head) {
      const std::int64_t to = dense.layout.offset(0, head, key);
      if (page < 0 || page >= at.batch || dtype != pool.dtype) {
        const bool exists = page >= 0 && page < at.batch;
        for (std::int64_t column = 0; column < at.columns; ++column)
          store_element(dtype, dense.data.data(), to + column,
                        exists ? pool.at(page, head, key % at.rows, column) : missing);
        continue;
      }
      copy_row(dense, to, pool, at.offset(page, head, key % at.rows));
    }
  }
  return dense;
}

// Of values that there are for each batch entry.
std::vector<float> values_of(const std::vector<float>& all, bool by_batch, std::int64_t batch, std::int64_t sequence) {
  if (!by_batch) return all;
  const auto count = static_cast<std::ptrdiff_t>(all.size()) / batch;
  return {all.begin() + count * sequence, all.begin() + count * (sequence + 1)};
}

std::span<const std::int32_t> row_of_table(const Problem& problem, const AttentionInputs& inputs,
                                           std::size_t sequence) {
  const auto stride = inputs.block_table.size() / static_cast<std::size_t>(problem.batch);
  return std::span(inputs.block_table).subspan(sequence * stride, stride);
}

// The factors of a sequence's keys in the pages of a pool, by head and key; of a page that the pool does not have 1.
std::vector<float> factors_of_keys(const Problem& problem, const std::vector<float>& pool,
                                   std::span<const std::int32_t> table_row, std::int64_t keys) {
  const std::int64_t size = problem.page_size;
  const std::int64_t pages = static_cast<std::int64_t>(pool.size()) / (problem.heads_kv * size);
  std::vector<float> factors;
  for (std::int64_t head = 0; head < problem.heads_kv; ++head)
    for (std::int64_t key = 0; key < keys; ++key) {
      const std::int64_t page = table_row[static_cast<std::size_t>(key / size)];
      const bool exists = page >= 0 && page < pages;
      factors.push_back(exists ? descale_k_at(problem, pool, page, head, key % size) : 1);
    }
  return factors;
}

}  // namespace

void pack_rows(HostTensor& packed, const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to) {
  const TensorLayout& at = packed.layout;
  for (std::size_t s = 0; s + 1 < to.size(); ++s)
    for (std::int64_t row = 0; row < to[s + 1] - to[s] && from[s] != to[s]; ++row)
      for (std::int64_t head = 0; head < at.heads; ++head)
        copy_row(packed, at.offset(0, head, to[s] + row), packed, at.offset(0, head, from[s] + row));
}

AttentionInputs inputs_of_sequence(const Problem& problem, const AttentionInputs& inputs, const Boundaries& boundaries,
                                   std::int64_t sequence) {
  const auto s = static_cast<std::size_t>(sequence);
  const std::int64_t kv_begin = boundaries.kv[s], kv_end = boundaries.kv[s + 1];
  AttentionInputs one;
  one.q = rows_of(inputs.q, boundaries.q[s], boundaries.q[s + 1]);
  if (problem.paged()) {
    const auto row = row_of_table(problem, inputs, s);
    one.k = gather_pages(inputs.k, row, kv_end - kv_begin, std::numeric_limits<float>::quiet_NaN());
    one.v = gather_pages(inputs.v, row, kv_end - kv_begin, 0);
  } else {
    one.k = rows_of(inputs.k, kv_begin, kv_end);
    one.v = rows_of(inputs.v, kv_begin, kv_end);
  }
  const bool by_batch = problem.input_scaling() == Scaling::kHead;
  one.descale_q = values_of(inputs.descale_q, by_batch, problem.batch, sequence);
  for (const auto descales : {&AttentionInputs::descale_k, &AttentionInputs::descale_v}) {
    one.*descales =
        problem.input_scaling() == Scaling::kToken
            ? factors_of_keys(problem, inputs.*descales, row_of_table(problem, inputs, s), kv_end - kv_begin)
            : values_of(inputs.*descales, by_batch, problem.batch, sequence);
  }
  one.alibi = values_of(inputs.alibi, problem.alibi == Alibi::kBatch, problem.batch, sequence);
  one.sink = inputs.sink;
  one.tensors = inputs.tensors, one.first_batch = sequence;
  return one;
}

}  // namespace flashcore
