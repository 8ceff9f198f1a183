#pragma once
// The distributions that the tests and intervals need, from Boost.Math (behind this header, because its templates are
// slow to compile). Degrees of freedom are positive and need not be whole.

namespace flashcore {

double normal_cdf(double z);
double normal_quantile(double p);  // 0 < p < 1
double student_cdf(double t, double degrees);
double student_quantile(double p, double degrees);
// P(T > t) of Student's t with a shifted mean: what the power of a t-test is made of.
double noncentral_student_survival(double t, double degrees, double shift);

}  // namespace flashcore
