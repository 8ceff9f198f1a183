#include "lab/statistics/distributions.h"

#include <boost/math/distributions/non_central_t.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>

namespace flashcore {
namespace {

namespace bm = boost::math;
const bm::normal kStandard;

}  // namespace

double normal_cdf(double z) { return bm::cdf(kStandard, z); }
double normal_quantile(double p) { return bm::quantile(kStandard, p); }
double student_cdf(double t, double degrees) { return bm::cdf(bm::students_t(degrees), t); }
double student_quantile(double p, double degrees) { return bm::quantile(bm::students_t(degrees), p); }
double noncentral_student_survival(double t, double degrees, double shift) {
  return bm::cdf(bm::complement(bm::non_central_t(degrees, shift), t));
}

}  // namespace flashcore
