// What a problem that no table knows gets: always something valid, and on Hopper by the rules that were measured.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/problem_expressions.h"
#include "kernels/family.h"
#include "kernels/registry.h"

namespace flashcore {
namespace {

template <class T>
const T& pick(std::mt19937_64& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}

TEST(Defaults, AreValidForWhateverIsSupported) {
  std::mt19937_64 random(7);
  int checked = 0;
  for (int i = 0; i < 4000; ++i) {
    Problem problem;
    problem.dtype = pick<DType>(random, {DType::kF16, DType::kBF16, DType::kF32});
    problem.batch = pick<std::int64_t>(random, {1, 3, 64});
    problem.heads_kv = pick<std::int64_t>(random, {1, 2, 8});
    problem.heads_q = problem.heads_kv * pick<std::int64_t>(random, {1, 3, 4, 16});
    problem.seqlen_q = pick<std::int64_t>(random, {1, 5, 64, 200, 1024, 5000});
    problem.seqlen_kv = pick<std::int64_t>(random, {1, 33, 512, 1025, 4097, 20000});
    problem.head_dim = 8 * static_cast<int>(1 + random() % 32);
    problem.head_dim_v = random() % 4 > 0 ? problem.head_dim : 8 * static_cast<int>(1 + random() % 32);
    problem.mask = pick<Mask>(random, {Mask(), Mask::causal(Alignment::kTopLeft), Mask::causal(),
                                       Mask{.left = 6, .right = {}}, Mask{.left = 900, .right = 0}});
    problem.lengths = pick<Lengths>(random, {Lengths::kFixed, Lengths::kFixed, Lengths::kHalving});
    if (random() % 4 == 0) problem.alibi = Alibi::kHead;
    const DeviceLimits limits = limits_of_arch(pick(random, known_archs()));
    for (const Family* family : all_families()) {
      if (family->kind() != DeviceKind::kCuda || family->why_unsupported(problem, limits)) continue;
      const ConfigValues config = family->default_config(problem, limits);
      EXPECT_EQ(family->why_invalid(config, problem, limits).value_or(""), "")
          << family->name() << " " << problem.id() << " " << family->space().print(config);
      ++checked;
    }
  }
  EXPECT_GT(checked, 4000);
}

TEST(Defaults, AreValidForWhateverIsSupportedOf8Bits) {
  std::mt19937_64 random(8);
  int checked = 0;
  for (int i = 0; i < 4000; ++i) {
    Problem problem;
    problem.dtype = DType::kE4M3;
    problem.batch = pick<std::int64_t>(random, {1, 3, 64});
    problem.heads_kv = pick<std::int64_t>(random, {1, 2, 8});
    problem.heads_q = problem.heads_kv * pick<std::int64_t>(random, {1, 3, 4, 16});
    problem.seqlen_q = pick<std::int64_t>(random, {1, 5, 64, 200, 1024, 5000});
    problem.seqlen_kv = pick<std::int64_t>(random, {1, 33, 512, 1025, 4097, 20000});
    problem.head_dim = 16 * static_cast<int>(1 + random() % 16);
    problem.head_dim_v = random() % 4 > 0 ? problem.head_dim : 16 * static_cast<int>(1 + random() % 16);
    problem.mask = pick<Mask>(random, {Mask(), Mask::causal(), Mask{.left = 6, .right = {}}});
    problem.lengths = pick<Lengths>(random, {Lengths::kFixed, Lengths::kHalving});
    if (problem.ragged() && random() % 2 == 0) problem.page_size = pick<std::int64_t>(random, {1, 2, 3, 16, 256});
    if (!problem.ragged())
      problem.scaling = pick<std::optional<Scaling>>(random, {std::nullopt, Scaling::kHead, Scaling::kToken});
    if (random() % 3 == 0) problem.softcap = 30;
    if (random() % 4 == 0) problem.alibi = Alibi::kHead;
    problem.sink = random() % 4 == 0;
    const DeviceLimits limits = limits_of_arch(pick(random, known_archs()));
    for (const Family* family : all_families()) {
      if (family->kind() != DeviceKind::kCuda || family->why_unsupported(problem, limits)) continue;
      const ConfigValues config = family->default_config(problem, limits);
      EXPECT_EQ(family->why_invalid(config, problem, limits).value_or(""), "")
          << family->name() << " " << problem.id() << " " << family->space().print(config);
      ++checked;
    }
  }
  EXPECT_GT(checked, 4000);
}

std::string default_of_sm90(const char* problem) {
  const Family& family = family_by_name("sm90_fwd");
  return family.space().print(family.default_config(Problem::parse(problem), limits_of_arch("sm_90")));
}
bool has(const std::string& config, const std::string& field) {
  return ("," + config + ",").find("," + field + ",") != std::string::npos;
}

TEST(Defaults, ShareLoadsWhereRowsAreAnOddNumberOf16Bytes) {
  for (const char* problem : {"b4_h16_s2048_d72_fp16", "b8_h16_s512_d88_bf16_causal", "b4_h16_s2048_d200_bf16_causal"})
    EXPECT_TRUE(has(default_of_sm90(problem), "cluster=2")) << problem << " " << default_of_sm90(problem);
  EXPECT_TRUE(has(default_of_sm90("b4_h16_s2048_d120_bf16_causal"), "num_consumers=3"));
  // Whole sectors, one block of columns, or too few tiles for the loads to be scarce.
  for (const char* problem : {"b4_h16_s2048_d80_fp16", "b4_h16_s2048_d56_fp16", "b1_h4_s600_d72_bf16"})
    EXPECT_TRUE(has(default_of_sm90(problem), "cluster=1")) << problem << " " << default_of_sm90(problem);
}

TEST(Defaults, TakeAsManyConsumersAsTheTilesFill) {
  EXPECT_TRUE(has(default_of_sm90("b16_h16_s2048_d64_fp16"), "num_consumers=4"));
  EXPECT_TRUE(has(default_of_sm90("b1_h32_s16384_d64_bf16"), "num_consumers=3"));
  EXPECT_TRUE(has(default_of_sm90("b2_h16_s8192_d64_bf16_causal"), "num_consumers=3"));
  EXPECT_TRUE(has(default_of_sm90("b1_h10_s2048_d64_fp16"), "key_groups=1"));
  // Half the rows where those of a tile are all there are for an SM, or twice the consumers.
  EXPECT_TRUE(has(default_of_sm90("b1_h8_s1024_d128_bf16"), "key_groups=2"));
  EXPECT_TRUE(has(default_of_sm90("b1_h16_s512_d64_fp16"), "key_groups=2"));
  EXPECT_TRUE(has(default_of_sm90("b1_h8_s2048_d64_fp16"), "key_groups=2"));
}

// Consumers of 8 bits keep their turns until their multiplies are done, but past 128 columns, where they have none.
TEST(Defaults, OfEightBitsHaveTurnsThatLast) {
  const Family& family = family_by_name("sm90_fp8_fwd");
  const auto config = [&](const char* id) {
    return family.space().print(family.default_config(Problem::parse(id), limits_of_arch("sm_90")));
  };
  for (const char* id :
       {"b4_h16_s2048_d64_e4m3", "b4_h16_s2048_d128_e4m3_causal", "b4_h16_s2048_d128_e4m3_perhead_softcap30",
        "b4_h16_s2048_d128_e4m3_causal_raggedhalving", "b4_h16_s2048_d128_e4m3_causal_raggedhalving_page16"})
    EXPECT_TRUE(has(config(id), "ping_pong=3")) << id << " " << config(id);
  EXPECT_TRUE(has(config("b4_h16_s2048_d64_e4m3"), "num_consumers=3"));
  EXPECT_TRUE(has(config("b4_h16_s2048_d64_e4m3"), "block_n=128"));
  EXPECT_TRUE(has(config("b4_h16_s2048_d64_e4m3_raggedhalving_page16"), "num_consumers=2"));
  EXPECT_TRUE(has(config("b4_h16_s2048_d256_e4m3_causal"), "ping_pong=0"));
}

// Score functions of the user's own, of dense tensors, have two consumers with turns of the softmax.
TEST(Defaults, OfScoreFunctionsHaveTurnsOfTheSoftmax) {
  const Family& family = family_by_name("sm90_fwd");
  const auto config = [&](const char* id) {
    Problem problem = Problem::parse(id);
    set_expressions(problem, "2 * tanh(s / 2) + 0.1 * h", "", {});
    return family.space().print(family.default_config(problem, limits_of_arch("sm_90")));
  };
  for (const char* id : {"b4_h16_s2048_d64_fp16", "b4_h16_s2048_d128_bf16_causal"}) {
    EXPECT_TRUE(has(config(id), "num_consumers=2")) << id << " " << config(id);
    EXPECT_TRUE(has(config(id), "ping_pong=4")) << id << " " << config(id);
  }
  EXPECT_TRUE(has(config("b4_h16_s2048_d128_bf16_causal_raggedhalving"), "ping_pong=1"));
  EXPECT_TRUE(has(default_of_sm90("b4_h16_s2048_d128_bf16_softcap30"), "ping_pong=1"));
}

}  // namespace
}  // namespace flashcore
