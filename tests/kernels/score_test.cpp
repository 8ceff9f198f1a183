// The short way of softcap (tile/score.cuh): the polynomial that make_score_params hands to kernels.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/gpu_family.h"

namespace flashcore {
namespace {

// As tile::Score::cap computes it, in fp32.
float capped(const ScoreParams& params, float s) {
  const float square = s * s;
  float p = std::fma(params.tanh_series[3], square, params.tanh_series[2]);
  p = std::fma(p, square, params.tanh_series[1]);
  p = std::fma(p, square, params.tanh_series[0]);
  return s * p;
}

ScoreParams params_of(double scale, double softcap) {
  Problem problem;
  problem.scale = scale, problem.softcap = softcap;
  return make_score_params(problem);
}

TEST(Softcap, TheShortWayIsAsExactAsTheLongOne) {
  for (const auto& [scale, softcap] :
       {std::pair{0.125, 30.0}, {0.08838834764831845, 50.0}, {1.0, 1.0}, {3.0, 0.5}, {1e-3, 50.0}}) {
    const ScoreParams params = params_of(scale, softcap);
    ASSERT_NEAR(params.tanh_series_until, 0.4375 / (scale / softcap), 1e-6 * params.tanh_series_until);
    double worst = 0;
    for (int i = 1; i <= 200000; ++i) {
      const float s = params.tanh_series_until * static_cast<float>(i) / 200000.0f;
      const double exact = std::tanh(static_cast<double>(s) * (scale / softcap));
      worst = std::max(worst, std::abs(capped(params, s) / exact - 1));
    }
    // What the bounds allow (kTanhError of core/reference_block.cpp), whose argument's two roundings are not made here.
    EXPECT_LT(worst, 0x1p-21) << scale << " " << softcap;
    EXPECT_GT(worst, 0x1p-24) << "no fp32 polynomial is as exact: this test compares nothing";
    EXPECT_TRUE(std::isnan(capped(params, std::nanf(""))));
  }
}

// Powers of the scale that leave fp32 would make zeros or infinities of coefficients: there the long way takes all.
TEST(Softcap, ExtremeScalesGoTheLongWay) {
  for (const auto& [scale, softcap] : {std::pair{1e-6, 1e6}, {1e6, 1e-6}, {1e-6, 1.0}, {1e6, 1.0}}) {
    const ScoreParams params = params_of(scale, softcap);
    EXPECT_EQ(params.tanh_series_until, 0.0f) << scale << " " << softcap;
    EXPECT_EQ(capped(params, 0.0f), 0.0f);
  }
}

}  // namespace
}  // namespace flashcore
