#include "lab/verify/fuzz.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace flashcore {
namespace {

// Supports head dims that are multiples of 8 up to 128, half types only; block_n of 32 needs block_m of at most 32.
class ToyFamily : public Family {
 public:
  std::string name() const override { return "toy_fwd"; }
  std::string description() const override { return "for tests"; }
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::optional<std::string> why_unsupported(const Problem& p, const DeviceLimits&) const override {
    if (p.dtype == DType::kF32) return "fp32";
    if (p.head_dim % 8 != 0 || p.head_dim_v % 8 != 0 || p.head_dim > 128 || p.head_dim_v > 128) return "head_dim";
    return std::nullopt;
  }
  const ConfigSpace& space() const override { return space_; }
  ConfigValues default_config(const Problem&, const DeviceLimits&) const override { return {32, 64, 1}; }
  std::optional<std::string> why_invalid(const ConfigValues& c, const Problem&, const DeviceLimits&) const override {
    if (c[1] == 32 && c[0] > 32) return "block_n";
    return std::nullopt;
  }

 private:
  ConfigSpace space_{{{"block_m", {16, 32, 48}}, {"block_n", {32, 64}}, {"num_splits", {1, 2, 4}}}};
};

class FuzzTest : public ::testing::Test {
 protected:
  ToyFamily toy;
  DeviceLimits device;
  std::vector<const Family*> families = {&toy};
};

TEST_F(FuzzTest, EveryCaseIsSupportedValidAndWithinItsCost) {
  const FuzzLimits limits;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const auto c = random_case(7, i, families, device, limits);
    ASSERT_TRUE(c);
    EXPECT_NO_THROW(c->problem.validate());
    EXPECT_FALSE(toy.why_unsupported(c->problem, device));
    EXPECT_FALSE(toy.why_invalid(c->candidate.config, c->problem, device));
    const PlacedProblem& p = c->problem;
    EXPECT_LE(2.0 * static_cast<double>((p.head_dim + p.head_dim_v) * p.batch * p.heads_q * p.seqlen_q * p.seqlen_kv),
              limits.max_flops)
        << p.id();
    EXPECT_EQ(PlacedProblem::parse(p.id()), p) << p.id();
  }
}

TEST_F(FuzzTest, KindsAreWhatTheFieldsSay) {
  const auto words = [](const char* id) {
    std::string text;
    for (const FuzzKind kind : kinds_of(Problem::parse(id))) text += word_of(kind) + " ";
    return text;
  };
  EXPECT_EQ(words("b1_h8_s64_d64_fp16"), "");
  EXPECT_EQ(words("b1_h8_s64_d64_fp16_causal"), "");
  EXPECT_EQ(words("b1_h8_s64_d64_e4m3_causal"), "8bit ");
  EXPECT_EQ(words("b1_h8_sq1_sk64_d64_fp16_kvint8_raggedfull_page16"), "quantised_cache paged ragged ");
  EXPECT_EQ(words("b1_h8_s64_d64_fp16_causal_wl9"), "masked ");
  EXPECT_EQ(words("b1_h8_s64_d64_fp16_wr9_softcap30"), "masked scored ");
  EXPECT_EQ(words("b1_h8_s64_d64_fp16_sink"), "scored ");
  EXPECT_EQ(words(R"({"id": "b1_h1_s8_d8_fp32", "mask": "j <= i + 3"})"), "masked ");
  EXPECT_EQ(words(R"({"id": "b1_h1_s8_d8_fp32", "score": "2 * s"})"), "scored ");
}

TEST_F(FuzzTest, ARunMayBeOfSomeKindsAlone) {
  const std::vector<const Family*> of_cpu = families_to_fuzz(device, "");
  ASSERT_FALSE(of_cpu.empty());
  for (const auto& [kind, word] : WordsOf<FuzzKind>::table) {
    FuzzLimits limits;
    limits.kinds = {kind};
    for (std::uint64_t i = 0; i < 200; ++i) {
      const auto c = random_case(3, i, of_cpu, device, limits);
      ASSERT_TRUE(c) << word;
      EXPECT_EQ(std::ranges::count(kinds_of(c->problem), kind), 1) << word << ": " << c->problem.id();
    }
  }
}

// Beside one that takes everything.
TEST_F(FuzzTest, AFamilyThatTakesFewProblemsIsDrawnAsOftenAsAnother) {
  class Narrow : public ToyFamily {
   public:
    std::string name() const override { return "narrow_fwd"; }
    std::optional<std::string> why_unsupported(const Problem& p, const DeviceLimits& limits) const override {
      if (p.head_dim != 64 || !p.mask.is_causal()) return "not 64, or not causal";
      return ToyFamily::why_unsupported(p, limits);
    }
  } narrow;
  families.push_back(&narrow);
  int of_narrow = 0;
  for (std::uint64_t i = 0; i < 400; ++i) of_narrow += random_case(9, i, families, device)->candidate.family == &narrow;
  EXPECT_GT(of_narrow, 160);
  EXPECT_LT(of_narrow, 240);
}

TEST_F(FuzzTest, AnEmulatedGpuIsGivenSmallerCases) {
  DeviceLimits emulated;
  emulated.emulated = true;
  EXPECT_LT(fuzz_limits(emulated, {}).max_flops, fuzz_limits(device, {}).max_flops);
}

TEST_F(FuzzTest, ACaseIsNamedBySeedAndIndexAlone) {
  EXPECT_EQ(*random_case(1, 5, families, device), *random_case(1, 5, families, device));
  std::set<std::string> seen;
  for (std::uint64_t i = 0; i < 100; ++i) seen.insert(repro_command(*random_case(1, i, families, device), "cpu"));
  for (std::uint64_t i = 0; i < 100; ++i) seen.insert(repro_command(*random_case(2, i, families, device), "cpu"));
  EXPECT_EQ(seen.size(), 200U);
}

TEST_F(FuzzTest, EveryKindOfEdgeIsDrawn) {
  std::set<std::string> seen;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const FuzzCase c = *random_case(3, i, families, device);
    const PlacedProblem& p = c.problem;
    seen.insert(std::string("dtype ") + std::string(to_string(p.dtype)));
    seen.insert("causal " + (p.mask.is_causal() ? std::string(to_string(p.mask.alignment)) : "none"));
    seen.insert(std::string("layout ") + std::string(to_string(p.layout)));
    seen.insert(std::string("pattern ") + std::string(to_string(c.pattern)));
    seen.insert(fmt::format("group {}", p.group_size()));
    seen.insert(fmt::format("sq {}", p.seqlen_q));
    seen.insert(fmt::format("sk {}", p.seqlen_kv));
    if (p.head_dim_v != p.head_dim) seen.insert("dv");
    if (p.scale) seen.insert("scale");
    if (p.seqlen_q > p.seqlen_kv && p.mask == Mask::causal()) seen.insert("masked rows");
    // A length no fixed list holds: it comes from this config's own tile.
    if (c.candidate.config[0] == 48 && (p.seqlen_q == 49 || p.seqlen_q == 95)) seen.insert("tile edge");
    if (p.is_decode()) seen.insert("decode");
  }
  for (const char* wanted : {"dtype fp16",
                             "dtype bf16",
                             "causal none",
                             "causal bottom_right",
                             "causal top_left",
                             "layout bhsd",
                             "layout bshd",
                             "layout strided",
                             "pattern normal",
                             "pattern non_finite",
                             "pattern large_logits",
                             "group 1",
                             "group 5",
                             "group 6",
                             "group 7",
                             "sq 0",
                             "sk 0",
                             "sq 1",
                             "sk 1",
                             "sq 17",
                             "sk 33",
                             "sq 63",
                             "sk 65",
                             "dv",
                             "scale",
                             "masked rows",
                             "tile edge",
                             "decode"}) {
    EXPECT_TRUE(seen.contains(wanted)) << wanted;
  }
}

TEST_F(FuzzTest, NoFamilyNoCase) { EXPECT_FALSE(random_case(1, 1, {}, device)); }

TEST_F(FuzzTest, SimplerCasesAreSupportedValidAndStrictlySimpler) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    const FuzzCase c = *random_case(11, i, families, device);
    for (const FuzzCase& simpler : simpler_cases(c, device)) {
      EXPECT_LT(complexity(simpler, device), complexity(c, device));
      EXPECT_FALSE(toy.why_unsupported(simpler.problem, device));
      EXPECT_FALSE(toy.why_invalid(simpler.candidate.config, simpler.problem, device));
      EXPECT_NO_THROW(simpler.problem.validate());
    }
  }
}

// Planted faults, and the smallest case that shows each.
TEST_F(FuzzTest, ShrinksAWrongTailToItsLength) {
  // Wrong whenever the last key tile is partial and there is more than one tile.
  const auto fails = [](const FuzzCase& c) {
    return c.problem.seqlen_q > 0 && c.problem.seqlen_kv > 64 && c.problem.seqlen_kv % c.candidate.config[1] != 0;
  };
  int shrunk = 0;
  for (std::uint64_t i = 0; i < 500 && shrunk < 20; ++i) {
    const FuzzCase c = *random_case(5, i, families, device);
    if (!fails(c)) continue;
    ++shrunk;
    const PlacedProblem p = shrink(c, device, fails).problem;
    EXPECT_EQ(p.seqlen_kv, 65);
    EXPECT_EQ(p.seqlen_q, 1);
    EXPECT_EQ(p.batch * p.heads_q, 1);
    EXPECT_EQ(p.head_dim, 8);
    EXPECT_EQ(p.mask, Mask());
    EXPECT_EQ(p.layout, Layout::kBhsd);
    EXPECT_FALSE(p.scale);
  }
  EXPECT_EQ(shrunk, 20);
}

TEST_F(FuzzTest, KeepsTheFeatureThatMatters) {
  const auto fails = [](const FuzzCase& c) {
    return c.problem.mask == Mask::causal(Alignment::kTopLeft) && c.problem.group_size() >= 5 &&
           c.candidate.config[2] == 4 && c.pattern == Pattern::kPeaked && c.problem.seqlen_q > 2;
  };
  FuzzCase c;
  c.problem = PlacedProblem::parse("b3_h21_hk3_sq129_sk65_d128_dv64_bf16_causaltl_bshd");
  c.candidate = {&toy, {48, 64, 4}};
  c.pattern = Pattern::kPeaked;
  ASSERT_TRUE(fails(c));
  const FuzzCase smallest = shrink(c, device, fails);
  EXPECT_EQ(smallest.problem, PlacedProblem::parse("b1_h5_hk1_sq3_sk1_d8_bf16_causaltl")) << smallest.problem.id();
  EXPECT_EQ(smallest.candidate.config, (ConfigValues{32, 64, 4}));
  EXPECT_EQ(repro_command(smallest, "cpu"),
            "flashcore check --device cpu --problem " + smallest.problem.id() +
                " --family toy_fwd --config block_m=32,block_n=64,num_splits=4 --patterns peaked --seed 1");
}

TEST_F(FuzzTest, StopsAtItsBudgetAndReturnsAFailingCase) {
  int runs = 0;
  const FuzzCase c = *random_case(5, 1, families, device);
  EXPECT_EQ(shrink(
                c, device, [&](const FuzzCase&) { return ++runs, false; }, 10),
            c);
  EXPECT_LE(runs, 10);
}

}  // namespace
}  // namespace flashcore
