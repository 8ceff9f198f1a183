#include "api/sequence_status.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashcore::api {
namespace {

struct Side {
  const char *cu_seqlens, *seqused, *rows, *total_name, *bound_name;
};
constexpr Side kQ = {"cu_seqlens_q", "seqused_q", "rows", "total_q", "seqlen_q"};
constexpr Side kKv = {"cu_seqlens_kv", "seqused_kv", "keys", "total_kv", "seqlen_kv"};

// Why no sequence has these; empty if one may. As tile::rows_at decides.
std::string why_no_rows(const Side& side, const std::vector<std::int32_t>& boundaries,
                        const std::vector<std::int32_t>& used, std::size_t s, std::int64_t bound, std::int64_t total) {
  const std::int64_t begin = boundaries[s], end = boundaries[s + 1];
  const std::string given = fmt::format("{}[{}] is {} and [{}] is {}", side.cu_seqlens, s, begin, s + 1, end);
  if (begin < 0 || begin > total || end > total)
    return fmt::format("{}; boundaries are 0 to {} = {}", given, side.total_name, total);
  if (end < begin) return fmt::format("{}; a sequence may not end before it begins", given);
  std::int64_t length = end - begin;
  if (!used.empty()) {
    if (used[s] < 0 || used[s] > length)
      return fmt::format("{}[{}] is {}, and the sequence has {} {}; 0 to {} of them may count", side.seqused, s,
                         used[s], length, side.rows, length);
    length = used[s];
  }
  if (length > bound)
    return fmt::format("it has {} {}; the plan's bound {} is {}", length, side.rows, side.bound_name, bound);
  return "";
}

std::string why_no_pages(const Problem& problem, const ProblemLayouts& layouts, const SequenceOperands& operands,
                         std::size_t s) {
  const std::int64_t keys = operands.seqused_kv[s], room = layouts.max_pages * problem.page_size;
  if (keys < 0 || keys > problem.seqlen_kv || keys > room)
    return fmt::format(
        "seqused_kv[{}] is {}; 0 to the plan's bound seqlen_kv = {}, and to the room in a row of the "
        "table, {}, are allowed",
        s, keys, problem.seqlen_kv, room);
  const std::int64_t pages = (keys + problem.page_size - 1) / problem.page_size;
  for (std::int64_t place = 0; place < pages; ++place) {
    const std::int64_t at = static_cast<std::int64_t>(s) * layouts.table_stride + place;
    const std::int32_t page = operands.block_table[static_cast<std::size_t>(at)];
    if (page < 0 || page >= layouts.k.batch)
      return fmt::format("block_table[{}][{}] is {}, and the cache has {} pages; rows that see a key of it are NaN", s,
                         place, page, layouts.k.batch);
  }
  return "";
}

}  // namespace

std::vector<BadSequence> find_bad_sequences(const Problem& problem, const ProblemLayouts& layouts,
                                            const SequenceOperands& operands) {
  std::vector<BadSequence> bad;
  for (std::int64_t sequence = 0; problem.ragged() && sequence < problem.batch; ++sequence) {
    const auto s = static_cast<std::size_t>(sequence);
    std::string why = why_no_rows(kQ, operands.cu_seqlens_q, operands.seqused_q, s, problem.seqlen_q, layouts.total_q);
    if (why.empty())
      why = problem.paged()
                ? why_no_pages(problem, layouts, operands, s)
                : why_no_rows(kKv, operands.cu_seqlens_kv, operands.seqused_kv, s, problem.seqlen_kv, layouts.total_kv);
    if (!why.empty()) bad.push_back({sequence, std::move(why)});
  }
  return bad;
}

}  // namespace flashcore::api
