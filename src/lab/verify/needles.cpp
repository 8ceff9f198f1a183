#include "lab/verify/needles.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace flashcore {
namespace {

double rms_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

// NaN counts as the largest, so that it is within no limit.
double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

template <class A, class B>
std::vector<double> differences(const A* a, const B* b, std::size_t count) {
  std::vector<double> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<double>(a[i]) - static_cast<double>(b[i]);
  return result;
}

template <class Value>
Drift drift_between(const Value* o, const Value* lse, const float* bf16_o, const float* bf16_lse, std::size_t rows,
                    std::size_t columns) {
  const double size = rms_of({bf16_o, bf16_o + rows * columns});
  const std::vector<double> of_o = differences(o, bf16_o, rows * columns), of_lse = differences(lse, bf16_lse, rows);
  return {rms_of(of_o) / size, largest_of(of_o) / size, rms_of(of_lse), largest_of(of_lse)};
}

// The code that is nearest to `row`: all have one length, so that with the largest product. None if a value is NaN.
std::optional<std::size_t> nearest_code(const NeedleData& data, const std::vector<double>& row) {
  std::optional<std::size_t> nearest;
  double best = -std::numeric_limits<double>::infinity();
  for (std::size_t code = 0; code < data.codes.size(); ++code) {
    double product = 0;
    for (std::size_t c = 0; c < row.size(); ++c) product += row[c] * double{data.codes[code][c]};
    if (std::isnan(product)) return std::nullopt;
    if (product > best) best = product, nearest = code;
  }
  return nearest;
}

}  // namespace

NeedleCount count_found(const NeedleData& data, const std::vector<float>& o) {
  const auto columns = static_cast<std::size_t>(data.exact.head_dim_v);
  FC_CHECK(o.size() == static_cast<std::size_t>(data.exact.seqlen_q) * columns);
  NeedleCount count{0, std::vector<int>(kNeedleWeights.size()), std::vector<int>(std::size(kNeedlePlaces))};
  for (std::size_t i = 0; i < data.needles.size(); ++i) {
    const Needle& needle = data.needles[i];
    std::vector<double> left = differences(o.data() + i * columns, data.reference.o.data() + i * columns, columns);
    for (std::size_t c = 0; c < columns; ++c) left[c] += needle.weight * double{data.codes[needle.code][c]};
    if (nearest_code(data, left) != needle.code) continue;
    ++count.all;
    ++count.by_weight[needle.weight_index];
    ++count.by_place[static_cast<std::size_t>(needle.place)];
  }
  return count;
}

NeedleVerdict judge_needles(const NeedleData& data, const std::vector<float>& o, const std::vector<float>& lse,
                            const std::vector<float>& bf16_o, const std::vector<float>& bf16_lse) {
  const auto columns = static_cast<std::size_t>(data.exact.head_dim_v), first = data.needles.size(),
             rows = static_cast<std::size_t>(kPlainRows);
  const float *plain_o = bf16_o.data() + first * columns, *plain_lse = bf16_lse.data() + first;
  NeedleVerdict verdict;
  verdict.found = count_found(data, o);
  verdict.lost = count_found(data, bf16_o).all - verdict.found.all;
  verdict.finds = verdict.lost <= kNeedleLoss * static_cast<double>(data.needles.size());
  verdict.drift = drift_between(o.data() + first * columns, lse.data() + first, plain_o, plain_lse, rows, columns);
  const Reference& quantised = data.of_quantised;
  const Drift of_quantising =
      drift_between(quantised.o.data(), quantised.lse.data(), plain_o, plain_lse, rows, columns);
  const ErrorBound bound = error_bound(data.quantised, quantised);
  const double larger = rms_of(quantised.o) / rms_of({plain_o, plain_o + rows * columns});
  verdict.limit = {of_quantising.o_rms + bound.rel * larger, of_quantising.lse_max + bound.lse_max_abs};
  verdict.stays = verdict.drift.o_rms <= verdict.limit.o_rms && verdict.drift.lse_max <= verdict.limit.lse_max;
  return verdict;
}

std::string NeedleVerdict::words() const {
  if (passed()) return "passes";
  std::string words = finds ? "" : fmt::format("loses {} needles", lost);
  if (stays) return words;
  const bool of_o = !(drift.o_rms <= limit.o_rms);
  return fmt::format("{}{} drifts {:.2g}, allowed {:.2g}", words.empty() ? "" : words + ", ", of_o ? "o" : "lse",
                     of_o ? drift.o_rms : drift.lse_max, of_o ? limit.o_rms : limit.lse_max);
}

}  // namespace flashcore
