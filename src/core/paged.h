#pragma once
// Caches in pages, in host memory: where the keys of a paged problem's sequences lie. Its k and v are
// [pages, heads_kv, page_size, head_dim]; entry p of a sequence's row of the block table is the page that holds its
// keys from p * page_size on.

#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace flashcore {

constexpr std::int64_t pages_of_keys(std::int64_t keys, std::int64_t page_size) {
  return (keys + page_size - 1) / page_size;
}

// Pages of the pool that checks and benchmarks take: more than the sequences have.
std::int64_t pool_pages(const Problem& problem);
// Columns of their block table: one more than the longest sequence may have.
std::int64_t table_columns(const Problem& problem);

// Which keys a page holds: those of a sequence from `first_key` on; sequence -1: nobody's.
struct PageOwner {
  std::int64_t sequence = -1, first_key = 0;
};

// A block table whose pages are scattered over the pool. Entries past a sequence's last page hold what no page is. With
// Lengths::kRandom every other sequence begins with pages of the one before it (a prompt that both have); where times
// are measured none do, for what is read twice may come from a cache.
struct DrawnPages {
  std::vector<std::int32_t> table;  // rows of `stride` entries
  std::vector<PageOwner> owners;    // of each page of the pool
};
DrawnPages draw_pages(const Problem& problem, std::int64_t stride, std::uint64_t seed);

}  // namespace flashcore
