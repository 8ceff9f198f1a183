// make_inputs() of core/data.h.

#include <algorithm>
#include <limits>

#include "core/boundaries.h"
#include "core/data.h"
#include "core/drawn_scores.h"
#include "core/drawn_tensor.h"
#include "core/operands.h"
#include "core/paged.h"
#include "core/pattern_values.h"
#include "core/random.h"

namespace flashcore {
namespace {

// No number becomes -128 of int8 or -8 of int4, and a cache of somebody else's making may have it: in one column of
// every eighth row.
void add_least_codes(HostTensor& keys) {
  constexpr std::int64_t kColumn = 5, kEveryRow = 8;
  if (!is_integer(keys.dtype) || keys.layout.columns <= kColumn) return;
  for_each_row(keys.layout, [&](std::int64_t batch, std::int64_t head, std::int64_t row) {
    if (row % kEveryRow == 0)
      store_quantised(keys, keys.layout.offset(batch, head, row) + kColumn, std::numeric_limits<float>::quiet_NaN());
  });
}

// What q, k or v holds at a place, by `of_batch(generator, place)`: the batch's own generator, or that of the sequence
// that the row is of.
class Generators {
 public:
  // `owners`: of a paged problem's pages, else none.
  Generators(const Problem& problem, Pattern pattern, std::uint64_t seed, const std::vector<PageOwner>& owners)
      : owners_(owners) {
    if (problem.ragged()) {
      boundaries_ = boundaries_of(problem);
      for (const SequenceLengths& each : problem.sequences()) problems_.push_back(problem.of_sequence(each));
    } else {
      problems_.push_back(problem);
    }
    for (std::size_t s = 0; s < problems_.size(); ++s)
      all_.emplace_back(problems_[s], pattern, seed + kSplitMixStep * 0x100 * s, problem.ragged());
  }
  float q(const Place& at) const {
    return of(at, boundaries_.q, [](const PatternValues& of, const Place& place) { return of.q(place); });
  }
  float k(const Place& at) const {
    return of_key(at, [](const PatternValues& of, const Place& place) { return of.k(place); });
  }
  float v(const Place& at) const {
    return of_key(at, [](const PatternValues& of, const Place& place) { return of.v(place); });
  }

 private:
  template <class Value>
  float of_key(const Place& at, const Value& value) const {
    if (owners_.empty()) return of(at, boundaries_.kv, value);
    const auto [sequence, first_key] = owners_[static_cast<std::size_t>(at.batch)];
    const auto s = static_cast<std::size_t>(std::max<std::int64_t>(0, sequence));
    const std::int64_t key = first_key + at.row;
    if (sequence < 0 || key >= problems_[s].seqlen_kv) return std::numeric_limits<float>::quiet_NaN();
    return value(all_[s], {sequence, at.head, key, at.column});
  }
  template <class Value>
  float of(const Place& at, const std::vector<std::int64_t>& boundaries, const Value& value) const {
    if (boundaries.empty()) return value(all_[0], at);
    const std::int64_t s = sequence_of_row(boundaries, at.row);
    // As batch entry s, so that heads are poisoned in turn.
    return value(all_[static_cast<std::size_t>(s)],
                 {s, at.head, at.row - boundaries[static_cast<std::size_t>(s)], at.column});
  }

  std::vector<PageOwner> owners_;
  Boundaries boundaries_;
  std::vector<Problem> problems_;  // which the generators refer to
  std::vector<PatternValues> all_;
};

}  // namespace

AttentionInputs make_inputs(const PlacedProblem& problem, Pattern pattern, std::uint64_t seed) {
  problem.validate();
  const ProblemLayouts layouts = make_layouts(problem);
  const DrawnPages pages = problem.paged() ? draw_pages(problem, layouts.table_stride, seed) : DrawnPages();
  const Generators generators(problem, pattern, seed, pages.owners);
  const Boundaries boundaries = boundaries_of(problem);
  const BatchOf rows(problem, boundaries.q), keys(problem, boundaries.kv, pages.owners);
  AttentionInputs in;
  in.block_table = pages.table;
  if (problem.paged())
    for (const SequenceLengths& each : problem.sequences()) in.seqused_kv.push_back(static_cast<std::int32_t>(each.kv));
  in.q = draw(problem, problem.q_scaling(), problem.dtype, layouts.q, problem.group_size(), rows, in.descale_q,
              [&](const Place& at) { return generators.q(at); });
  const DType cache = problem.cache_dtype();
  in.k = draw(problem, problem.k_scaling(), cache, layouts.k, 1, keys, in.descale_k,
              [&](const Place& at) { return generators.k(at); });
  in.v = draw(problem, problem.v_scaling(), cache, layouts.v, 1, keys, in.descale_v, [&](const Place& at) {
    return generators.v(problem.has_transposed_v() ? Place{at.batch, at.head, at.column, at.row} : at);
  });
  for (HostTensor* each : {&in.k, &in.v}) add_least_codes(*each);
  draw_scores(problem, pattern, seed, in);
  in.tensors = make_tensors(problem, seed);
  if (pattern == Pattern::kNonFinite) hide_blocks(problem, in.tensors);
  return in;
}

}  // namespace flashcore
