#pragma once
// Tests on ranks: no assumption on the shape of the noise.

#include <span>

namespace flashcore {

enum class Alternative { kTwoSided, kGreater, kLess };  // what the test looks for: the median is not 0, > 0, < 0

// p of "the median of `values` is 0" by Wilcoxon's signed-rank test: exact for up to 30 non-zero values (midranks for
// ties), beyond that the normal approximation with tie and continuity correction. Zeros are left out. 1 if all are 0.
double wilcoxon_signed_rank(std::span<const double> values, Alternative alternative = Alternative::kTwoSided);

struct MannWhitney {
  double u = 0;        // pairs (a, b) with a > b, ties half
  double p_value = 1;  // two-sided; exact without ties up to 400 pairs, else normal with tie and continuity correction
};
// Descriptive only. It takes samples for independent, and samples of one machine are not: drift of the clock between
// two runs makes it find differences between a kernel and itself (tests/lab/statistics_test.cpp, Drift: more than half
// of the time).
MannWhitney mann_whitney(std::span<const double> a, std::span<const double> b);

// Cliff's delta: P(a > b) - P(a < b), from -1 to 1.
double cliffs_delta(std::span<const double> a, std::span<const double> b);

}  // namespace flashcore
