// Sliding windows in every GPU family: keys outside of a tile's band are never loaded.

#include <gtest/gtest.h>

#include "kernels/candidates.h"
#include "kernels/emulator_run.h"

namespace flashcore::testing {
namespace {

// Steps of 32 keys and fewer.
constexpr const char* kCandidates[] = {kRef,  kSm80,        kSm80One,    kDirect, kDirectOne,
                                       kSm90, kSm90Cluster, kSm90Groups, kShort,  kShortRing};

struct Case {
  const char* problem;
  RowsInMemory keys;  // the band of all rows, to whole blocks
};

TEST(Window, KeysOutsideAreNeverLoaded) {
  constexpr Case kCases[] = {
      {"b1_h2_hk1_sq70_sk1000_d64_fp16_causal_wl100", {800, 1000}},  // keys from 830 on
      {"b1_h2_hk1_sq70_sk1000_d64_fp16_wl100_wr20_tl", {0, 96}},     // to 90
  };
  for (const Case& one : kCases) {
    for (const char* candidate : kCandidates) {
      EXPECT_EQ(run_on_emulator(device_sources(), candidate, PlacedProblem::parse(one.problem), 1, one.keys).verdict(),
                "passed")
          << candidate << " " << one.problem;
    }
  }
}

// And what does load them is seen: a block too many on either side.
TEST(Window, AKeyThatIsNotThereIsAFault) {
  const char* problem = "b1_h2_hk1_sq70_sk1000_d64_fp16_causal_wl100";
  for (const char* candidate : {kSm80, kSm90, kShort}) {
    const EmulatorRun run =
        run_on_emulator(device_sources(), candidate, PlacedProblem::parse(problem), 1, RowsInMemory{850, 1000});
    EXPECT_NE(run.verdict().find("out of bounds"), std::string::npos) << candidate << " " << run.verdict();
  }
}

}  // namespace
}  // namespace flashcore::testing
