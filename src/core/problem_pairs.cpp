// Problem::unmasked_pairs: of the band by a formula, of a mask function by counting.

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "core/data.h"
#include "core/expression_value.h"
#include "core/parallel.h"
#include "core/problem.h"
#include "core/problem_expressions.h"
#include "core/random.h"

namespace flashcore {
namespace {

// Beyond so many, those of a part of the rows are counted.
constexpr double kMostPairs = 0x1p26;

// Over one head of one batch entry; of a mask that is another for each of them, the mean. Its functions are told
// `first_batch` of batch entry 0.
class PairCounter {
 public:
  PairCounter(const Problem& problem, const std::vector<ElementTensor>& tensors, std::int64_t first_batch)
      : p_(problem),
        mask_(problem.mask_expression()),
        band_(problem.band()),
        tensors_(tensors),
        first_batch_(first_batch) {
    using enum ExpressionVariable;
    batches_ = mask_.uses(kB) ? p_.batch : 1;
    heads_ = mask_.uses(kH) || mask_.uses(kHk) ? p_.heads_q : 1;
  }

  std::int64_t count() const {
    const std::int64_t rows = batches_ * heads_ * p_.seqlen_q;
    if (rows == 0 || p_.seqlen_kv == 0) return 0;
    const double pairs = static_cast<double>(rows) * static_cast<double>(p_.seqlen_kv);
    // One row of each so many, at a random place, so that no period of the mask is met.
    const auto step = static_cast<std::int64_t>(std::ceil(pairs / kMostPairs));
    const std::int64_t taken = (rows + step - 1) / step;
    constexpr std::int64_t kRowsPerJob = 64;
    std::vector<std::int64_t> sums(static_cast<std::size_t>((taken + kRowsPerJob - 1) / kRowsPerJob));
    std::vector<std::int64_t> counted(sums.size());
    parallel_for(static_cast<std::int64_t>(sums.size()), pairs < 0x1p16 ? 1 : 0, [&](std::int64_t job) {
      ExpressionEvaluator evaluator(mask_, elements());
      std::vector<std::uint8_t> visible;
      for (std::int64_t n = job * kRowsPerJob; n < std::min(taken, (job + 1) * kRowsPerJob); ++n) {
        const auto within = static_cast<std::int64_t>(split_mix_finish(static_cast<std::uint64_t>(n)) %
                                                      static_cast<std::uint64_t>(step));
        const std::int64_t row = n * step + within;
        if (row >= rows) continue;
        sums[static_cast<std::size_t>(job)] += of_row(evaluator, row, visible);
        ++counted[static_cast<std::size_t>(job)];
      }
    });
    const std::int64_t sum = std::accumulate(sums.begin(), sums.end(), std::int64_t{0});
    const std::int64_t all = std::accumulate(counted.begin(), counted.end(), std::int64_t{0});
    const double mean = static_cast<double>(sum) / static_cast<double>(std::max<std::int64_t>(all, 1));
    return std::llround(mean * static_cast<double>(p_.seqlen_q));
  }

 private:
  ExpressionElements elements() const {
    return [this, numbers = tensor_numbers(p_, mask_)](int tensor, std::span<const std::int32_t> indices) {
      return tensors_[static_cast<std::size_t>(numbers[static_cast<std::size_t>(tensor)])].at(indices);
    };
  }
  std::int64_t of_row(ExpressionEvaluator& evaluator, std::int64_t row, std::vector<std::uint8_t>& visible) const {
    const std::int64_t i = row % p_.seqlen_q, head = row / p_.seqlen_q % heads_;
    const KeyRange<std::int64_t> keys = band_.keys_of_row(i);
    visible.resize(static_cast<std::size_t>(keys.size()));
    ExpressionPoint at;
    at.b = static_cast<std::int32_t>(first_batch_ + row / p_.seqlen_q / heads_), at.h = static_cast<std::int32_t>(head);
    at.hk = static_cast<std::int32_t>(head / p_.group_size()), at.i = static_cast<std::int32_t>(i);
    at.j = static_cast<std::int32_t>(keys.begin);
    at.seqlen_q = static_cast<std::int32_t>(p_.seqlen_q), at.seqlen_kv = static_cast<std::int32_t>(p_.seqlen_kv);
    evaluator.masks(at, visible);
    return std::count(visible.begin(), visible.end(), 1);
  }

  const Problem& p_;
  const Expression mask_;
  const Band<std::int64_t> band_;
  const std::vector<ElementTensor>& tensors_;
  const std::int64_t first_batch_;
  std::int64_t batches_ = 1, heads_ = 1;
};

// What the mask's tensors hold is the test data of seed 0. Of a ragged batch the sum over its sequences.
std::int64_t count_anew(const Problem& problem) {
  const std::vector<ElementTensor> tensors = make_tensors(problem, 0);
  if (!problem.ragged()) return PairCounter(problem, tensors, 0).count();
  const std::vector<SequenceLengths> sequences = problem.sequences();
  std::int64_t pairs = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Problem one = problem.of_sequence(sequences[s]);
    pairs += PairCounter(one, tensors, static_cast<std::int64_t>(s)).count();
  }
  return pairs;
}

// Once for each mask and sizes in the life of the process.
std::int64_t count_visible_pairs(const Problem& problem) {
  // All that the answer depends on; a score and its tensors do not count.
  Problem counted;
  counted.batch = problem.batch, counted.heads_q = problem.heads_q, counted.heads_kv = problem.heads_kv;
  counted.seqlen_q = problem.seqlen_q, counted.seqlen_kv = problem.seqlen_kv, counted.mask = problem.mask;
  counted.head_dim = counted.head_dim_v = 1, counted.lengths = problem.lengths;
  set_expressions(counted, "", problem.mask_text, problem.mask_expression().tensors());
  static std::map<std::string, std::int64_t> known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(counted.id());
  if (is_new) place->second = count_anew(counted);
  return place->second;
}

}  // namespace

std::int64_t Problem::unmasked_pairs() const {
  if (has_mask_expression()) return count_visible_pairs(*this);
  if (ragged()) {
    std::int64_t pairs = 0;
    for (const SequenceLengths& each : sequences()) pairs += of_sequence(each).unmasked_pairs();
    return pairs;
  }
  // Each row sees clamp(row + right + 1) - clamp(row + left) keys, with clamp to 0..seqlen_kv: two sums of the same
  // form. Both lengths are below 2^31, so their product fits.
  const auto sum_of_ends = [this](std::int64_t offset) {
    const std::int64_t first = std::clamp<std::int64_t>(-offset, 0, seqlen_q);                // the first row above 0
    const std::int64_t full = std::clamp<std::int64_t>(seqlen_kv - offset, first, seqlen_q);  // from here on seqlen_kv
    const std::int64_t rising = full - first;
    return rising * (first + offset) + rising * (rising - 1) / 2 + (seqlen_q - full) * seqlen_kv;
  };
  const Band<std::int64_t> visible = band();
  const std::int64_t ends = visible.bounded_right ? sum_of_ends(visible.right_offset + 1) : seqlen_q * seqlen_kv;
  return ends - (visible.bounded_left ? sum_of_ends(visible.left_offset) : 0);
}

}  // namespace flashcore
