#include "lab/compare/noise.h"

#include <gtest/gtest.h>

#include "lab/fake.h"

namespace flashcore {
namespace {

class NoiseTest : public ::testing::Test {
 protected:
  Noise of(const std::string& candidate, const test::FakeDeviceOptions& machine = {}) {
    PlacedProblem problem = PlacedProblem::parse("b1_h1_s19_d4_fp32");
    const auto device = test::make_fake_device(machine);
    return measure_noise(*device, problem, parse_candidate(candidate, problem, device->info().limits));
  }
  test::AllFakeFamilies families_;
};

TEST_F(NoiseTest, IsThatOfTheMachine) {
  test::FakeDeviceOptions quiet, loud;
  quiet.noise = 0.001;
  loud.noise = 0.1;
  const Noise little = of("fake_none", quiet), much = of("fake_none", loud);
  EXPECT_EQ(little.blocks, 30);
  EXPECT_EQ(little.problem, "b1_h1_s19_d4_fp32");
  EXPECT_EQ(little.candidate, "fake_none:block=16,unroll=1,spread=0");
  EXPECT_EQ(little.wrong, "");
  EXPECT_LT(little.ratio.low, 1.001);
  EXPECT_GT(little.ratio.high, 0.999);
  EXPECT_GT(much.ratio.high - much.ratio.low, 10 * (little.ratio.high - little.ratio.low));
}

TEST_F(NoiseTest, WrongOutputsAreSaid) {
  EXPECT_NE(of("fake_wrong_tail").wrong.find("relative error"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
