// Answers requests for statistics on stdin: what tests/lab/statistics_scipy_test.py compares with SciPy.
// One JSON array of {"f": name, ...} in, one array of numbers out.

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lab/statistics/statistics.h"

namespace {

using namespace flashcore;
using nlohmann::json;

Alternative alternative_of(const json& r) {
  const std::string word = r.value("alternative", "two-sided");
  return word == "greater" ? Alternative::kGreater : word == "less" ? Alternative::kLess : Alternative::kTwoSided;
}

json answer(const json& r) {
  const std::string f = r.at("f").get<std::string>();
  const auto number = [&](const char* key) { return r.at(key).get<double>(); };
  const auto values = [&](const char* key) { return r.at(key).get<std::vector<double>>(); };
  if (f == "normal_cdf") return normal_cdf(number("x"));
  if (f == "normal_quantile") return normal_quantile(number("p"));
  if (f == "student_cdf") return student_cdf(number("x"), number("df"));
  if (f == "student_quantile") return student_quantile(number("p"), number("df"));
  if (f == "noncentral_student_survival")
    return noncentral_student_survival(number("x"), number("df"), number("shift"));
  if (f == "quantile") return quantile(values("x"), number("q"));
  if (f == "wilcoxon") return wilcoxon_signed_rank(values("x"), alternative_of(r));
  if (f == "mann_whitney") {
    const MannWhitney m = mann_whitney(values("x"), values("y"));
    return json{m.u, m.p_value, cliffs_delta(values("x"), values("y"))};
  }
  if (f == "tost_signed_rank") return tost_signed_rank(values("x"), number("margin"));
  if (f == "power") return student_test_power(number("effect"), number("deviation"), number("n"), number("alpha"));
  if (f == "detectable")
    return minimum_detectable_effect(number("deviation"), number("n"), number("alpha"), number("power"));
  if (f == "holm") return holm(values("p"));
  if (f == "bca_mean" || f == "bca_median") {
    const auto mean = [](std::vector<double>& v) {
      double sum = 0;
      for (const double x : v) sum += x;
      return sum / static_cast<double>(v.size());
    };
    const Interval interval =
        f == "bca_mean" ? bca_bootstrap(values("x"), mean, 1, 20000) : bootstrap_median(values("x"), 1, 20000);
    return json{interval.estimate, interval.low, interval.high};
  }
  return nullptr;
}

}  // namespace

int main() {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  json answers = json::array();
  for (const json& request : json::parse(text)) answers.push_back(answer(request));
  std::cout << answers << "\n";
}
