#include "lab/harness/amax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace flashcore {
namespace {

// Of a head's stored o; NaN does not count, nor do rows that no sequence has, which hold the poison.
float largest_stored(const HostTensor& o, std::int64_t head) {
  float largest = 0;
  for (std::int64_t b = 0; b < o.layout.batch; ++b)
    for (std::int64_t row = 0; row < o.layout.rows; ++row)
      for (std::int64_t column = 0; column < o.layout.columns; ++column) {
        const float value = std::abs(o.at(b, head, row, column));
        if (!std::isnan(value)) largest = std::max(largest, value);
      }
  return largest;
}

struct Range {
  double least = 0, most = 0;
  bool judged = true;
};
std::vector<Range> ranges_of_scores(const PlacedProblem& problem, const Reference& reference, const RowSample& rows) {
  std::vector<Range> ranges(static_cast<std::size_t>(problem.heads_q));
  for (std::int64_t r = 0; r < reference.rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    Range& range = ranges[static_cast<std::size_t>(reference.head_of_row[at] % problem.heads_q)];
    const double largest = reference.amax[at], error = reference.amax_error[at];
    range.judged = range.judged && std::isfinite(largest);
    range.least = std::max(range.least, largest - error);
    range.most = std::max(range.most, largest + error);
  }
  if (!rows.all)
    for (Range& range : ranges) range.most = std::numeric_limits<double>::infinity();
  return ranges;
}

}  // namespace

std::optional<std::string> find_wrong_amax(const PlacedProblem& problem, const Reference& reference,
                                           const RowSample& rows, const AttentionOutputs& outputs) {
  if (!problem.amax) return std::nullopt;
  FC_CHECK(static_cast<std::int64_t>(outputs.amax.size()) == problem.amax_count());
  const std::vector<Range> ranges = ranges_of_scores(problem, reference, rows);
  for (std::int64_t head = 0; head < problem.heads_q; ++head) {
    const auto at = static_cast<std::size_t>(head);
    const float of_scores = outputs.amax[at], of_o = outputs.amax[at + ranges.size()];
    const Range& range = ranges[at];
    if (std::isnan(of_scores) || std::isnan(of_o))
      return fmt::format("the largest magnitudes of head {} are {} and {}: NaN does not count", head, of_scores, of_o);
    if (range.judged && !(of_scores >= range.least && of_scores <= range.most))
      return fmt::format("the largest score of head {} is said to be {}, and is from {} to {}", head, of_scores,
                         range.least, range.most);
    const float stored = largest_stored(outputs.o, head);
    if (round_to(problem.output_dtype(), of_o) != stored)
      return fmt::format(
          "the largest magnitude of o of head {} is said to be {}, which is stored as {}, and {} is the "
          "largest stored",
          head, of_o, round_to(problem.output_dtype(), of_o), stored);
  }
  return std::nullopt;
}

}  // namespace flashcore
