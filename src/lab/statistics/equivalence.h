#pragma once
// Two one-sided tests (TOST, Schuirmann 1987): is an effect inside a margin? And what could a run have seen at all?

#include <span>

namespace flashcore {

// p of "the effect is outside (-margin, margin)"; small: equivalent. The larger of two one-sided p-values.
// By signed ranks: of the median, as the verdict's estimand.
double tost_signed_rank(std::span<const double> values, double margin);

// Power of the two-sided one-sample t-test of n values with standard deviation `deviation` to find a true `effect`
// (noncentral t).
double student_test_power(double effect, double deviation, double n, double alpha = 0.05);
// The effect that it finds with `power`: the smallest one such a run could be relied on to detect. n >= 2.
double minimum_detectable_effect(double deviation, double n, double alpha = 0.05, double power = 0.8);

}  // namespace flashcore
