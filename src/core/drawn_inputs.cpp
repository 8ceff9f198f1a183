// make_inputs() of core/data.h.

#include <algorithm>
#include <limits>
#include <span>

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

// What q, k or v holds at a place and in the columns after it: by the batch's own generator, or that of the sequence
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
  void q(const Place& first, std::span<float> out) const {
    const Source from = of_row(first, boundaries_.q);
    from.values->q(from.place, out);
  }
  void k(const Place& first, std::span<float> out) const {
    if (const Source from = of_key(first); from.values) from.values->k(from.place, out);
    else std::ranges::fill(out, std::numeric_limits<float>::quiet_NaN());
  }
  void v(const Place& first, std::span<float> out) const {
    if (const Source from = of_key(first); from.values) from.values->v(from.place, out);
    else std::ranges::fill(out, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  struct Source {
    const PatternValues* values = nullptr;  // none: nobody's key
    Place place = {};
  };
  Source of_key(const Place& at) const {
    if (owners_.empty()) return of_row(at, boundaries_.kv);
    const auto [sequence, first_key] = owners_[static_cast<std::size_t>(at.batch)];
    const auto s = static_cast<std::size_t>(std::max<std::int64_t>(0, sequence));
    const std::int64_t key = first_key + at.row;
    if (sequence < 0 || key >= problems_[s].seqlen_kv) return {};
    return {&all_[s], {sequence, at.head, key, at.column}};
  }
  Source of_row(const Place& at, const std::vector<std::int64_t>& boundaries) const {
    if (boundaries.empty()) return {&all_[0], at};
    const std::int64_t sequence = sequence_of_row(boundaries, at.row);
    const auto s = static_cast<std::size_t>(sequence);
    // As batch entry s, so that heads are poisoned in turn.
    return {&all_[s], {sequence, at.head, at.row - boundaries[s], at.column}};
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
  in.q = draw_tensor(problem, problem.q_scaling(), problem.dtype, layouts.q, problem.group_size(), rows, in.descale_q,
                     [&](const Place& first, std::span<float> out) { generators.q(first, out); });
  const DType cache = problem.cache_dtype();
  in.k = draw_tensor(problem, problem.k_scaling(), cache, layouts.k, 1, keys, in.descale_k,
                     [&](const Place& first, std::span<float> out) { generators.k(first, out); });
  in.v = draw_tensor(problem, problem.v_scaling(), cache, layouts.v, 1, keys, in.descale_v,
                     [&](const Place& first, std::span<float> out) {
                       if (!problem.has_transposed_v()) return generators.v(first, out);
                       std::int64_t key = first.column;
                       for (float& value : out) generators.v({first.batch, first.head, key++, first.row}, {&value, 1});
                     });
  for (HostTensor* each : {&in.k, &in.v}) add_least_codes(*each);
  draw_scores(problem, pattern, seed, in);
  in.tensors = make_tensors(problem, seed);
  if (pattern == Pattern::kNonFinite) hide_blocks(problem, in.tensors);
  return in;
}

}  // namespace flashcore
