#include "core/paged.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/random.h"

namespace flashcore {
namespace {

// Whole pages that a sequence has of the one before it.
std::int64_t shared_pages(const Problem& problem, const std::vector<SequenceLengths>& sequences, std::size_t s) {
  if (problem.lengths != Lengths::kRandom || s % 2 == 0) return 0;
  return (std::min(sequences[s].kv, sequences[s - 1].kv) / problem.page_size + 1) / 2;
}

std::int64_t own_pages(const Problem& problem) {
  const std::vector<SequenceLengths> sequences = problem.sequences();
  std::int64_t pages = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s)
    pages += pages_of_keys(sequences[s].kv, problem.page_size) - shared_pages(problem, sequences, s);
  return pages;
}

std::vector<std::int32_t> shuffled(std::int64_t count, SplitMix& random) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[random.below(i)]);
  return pages;
}

}  // namespace

std::int64_t pool_pages(const Problem& problem) {
  FC_CHECK(problem.paged());
  const std::int64_t used = own_pages(problem), pages = used + used / 8 + 2;
  constexpr std::int64_t kMostPoolRows = (std::int64_t{1} << 31) - 1;
  if (pages > kMostPoolRows / problem.page_size / problem.heads_kv)
    throw_bad_input(
        "{} takes {} pages of {} keys and {} heads, more than {} rows; use smaller pages, or a smaller batch or length",
        problem.id(), pages, problem.page_size, problem.heads_kv, kMostPoolRows);
  return pages;
}

std::int64_t table_columns(const Problem& problem) {
  FC_CHECK(problem.paged());
  return pages_of_keys(problem.seqlen_kv, problem.page_size) + 1;
}

DrawnPages draw_pages(const Problem& problem, std::int64_t stride, std::uint64_t seed) {
  constexpr std::uint64_t kStream = 0x9a;
  SplitMix random(split_mix_finish(seed + kSplitMixStep * kStream));
  const std::int64_t pages = pool_pages(problem);
  const std::int32_t none[] = {-1, static_cast<std::int32_t>(pages), std::numeric_limits<std::int32_t>::max(),
                               std::numeric_limits<std::int32_t>::min()};
  DrawnPages drawn;
  drawn.table.resize(static_cast<std::size_t>(problem.batch * stride));
  for (std::size_t i = 0; i < drawn.table.size(); ++i) drawn.table[i] = none[i % std::size(none)];
  drawn.owners.resize(static_cast<std::size_t>(pages));
  const std::vector<std::int32_t> order = shuffled(pages, random);
  const std::vector<SequenceLengths> sequences = problem.sequences();
  std::size_t next = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto row = drawn.table.begin() + static_cast<std::ptrdiff_t>(s) * stride;
    const std::int64_t shared = shared_pages(problem, sequences, s);
    if (shared > 0) std::copy_n(row - stride, shared, row);
    for (std::int64_t page = shared; page < pages_of_keys(sequences[s].kv, problem.page_size); ++page) {
      const std::int32_t number = order[next++];
      row[page] = number;
      drawn.owners[static_cast<std::size_t>(number)] = {static_cast<std::int64_t>(s), page * problem.page_size};
    }
  }
  return drawn;
}

}  // namespace flashcore
