#pragma once
// Order statistics. Quantiles are of type 7 (linear interpolation), as NumPy's default. Every function needs at least
// one value (Error kInternal otherwise); none may be NaN.

#include <span>
#include <vector>

namespace flashcore {

double quantile(std::span<const double> values, double q);
double median(std::span<const double> values);
double geometric_mean(std::span<const double> values);  // of positive values

double quantile_of_sorted(std::span<const double> sorted, double q);
// Reorders its argument.
double median_in_place(std::vector<double>& values);

}  // namespace flashcore
