#include "lab/invert/invert.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "device/compiler.h"
#include "device/emulator/emulator_device.h"
#include "lab/harness/compiled_candidate.h"
#include "lab/harness/operands.h"

namespace flashcore {
namespace {

using nlohmann::json;

// Several tiles and blocks of every family, ragged ends; small enough for the emulator.
PlacedProblem problem_of(const std::string& family) {
  return PlacedProblem::parse(family.ends_with("_fp8_fwd") ? "b1_h2_s200_d128_e4m3" : "b1_h2_s200_d64_fp16");
}

std::vector<const Family*> gpu_families() {
  std::vector<const Family*> found;
  for (const Family* family : all_families())
    if (family->kind() == DeviceKind::kCuda && family->name().find('+') == std::string::npos) found.push_back(family);
  return found;
}

// What the emulator makes of a candidate: its counters, and its output.
struct Launched {
  json counters;
  AttentionOutputs outputs;
  std::size_t zeros = 0;       // bytes of workspaces that are to be zero after a launch
  bool are_zeros_left = true;  // and whether they are
  double value(const std::string& name) const {
    const auto dot = name.find('.');
    return dot == std::string::npos ? counters.at(name).get<double>()
                                    : counters.at(name.substr(0, dot)).at(name.substr(dot + 1)).get<double>();
  }
  double requests() const { return value("global_load.requests") + value("shared_load.requests"); }
  double stored() const { return value("global_store.bytes") + value("tma_stored_bytes"); }
  double loaded() const { return value("global_load.bytes") + value("tma_bytes"); }
};

class InvertTest : public ::testing::Test {
 protected:
  Launched launch(const PlacedProblem& problem, const std::string& text, const std::optional<Patch>& patch = {}) {
    const PatchScope scope(patch ? std::vector<Patch>{*patch} : std::vector<Patch>{});
    const DeviceLimits& limits = device_->info().limits;
    const CompiledCandidate compiled = compiled_candidate(parse_candidate(text, problem, limits), problem, limits);
    Operands operands(*device_, problem);
    operands.upload(make_inputs(problem, Pattern::kNormal, 1));
    operands.poison_outputs();
    const LoadedCandidate loaded(*device_, compiled.candidate, problem, compiled.artifact);
    BoundWorkspaces workspaces;
    const Launch run = loaded.bind(operands.args(), &workspaces);
    run(), run();
    device_->synchronize();
    Launched launched{device_->counters(), operands.download_outputs()};
    for (std::size_t i = 0; i < workspaces.buffers.size(); ++i) {
      if (workspaces.kinds[i].contents != Workspace::Contents::kLeftZero) continue;
      std::vector<std::byte> bytes(workspaces.kinds[i].bytes);
      device_->download(bytes.data(), workspaces.buffers[i]->data(), bytes.size());
      launched.zeros += bytes.size();
      launched.are_zeros_left &= std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
    }
    return launched;
  }
  PlantedVariant planted(std::string_view name, const std::string& candidate) {
    return planted(name, candidate, problem_of(candidate.substr(0, candidate.find(':'))));
  }
  PlantedVariant planted(std::string_view name, const std::string& candidate, const PlacedProblem& problem) {
    const DeviceLimits& limits = device_->info().limits;
    return plant(variant_by_name(name), parse_candidate(candidate, problem, limits), problem, limits);
  }
  // The plain kernel and a variant of it.
  std::pair<Launched, Launched> both(std::string_view name, const std::string& candidate) {
    return both(name, candidate, problem_of(candidate.substr(0, candidate.find(':'))));
  }
  std::pair<Launched, Launched> both(std::string_view name, const std::string& candidate,
                                     const PlacedProblem& problem) {
    const PlantedVariant variant = planted(name, candidate, problem);
    EXPECT_EQ(variant.why_not, "") << name << " of " << candidate;
    return {launch(problem, candidate), launch(problem, variant.candidate, variant.patch)};
  }

  const std::unique_ptr<Device> device_ = open_emulator();
};

// Default configs that use what the variants change, on a device as the emulator's.
const std::vector<std::string> kCandidates = {
    "ref_fwd",        "sm80_fwd:num_stages=3", "sm80_short_fwd",  "sm90_fwd:num_stages=3,scheduler=1,cluster=1",
    "sm90_short_fwd", "sm90_fp8_fwd",          "sm80_decode_fwd", "sm89_fp8_fwd:num_stages=3"};

// --- the emulator's counts ------------------------------------------------------------------------------------------
TEST_F(InvertTest, WithoutExponentialsThereAreNoneAndTheRestIsThere) {
  for (const std::string& candidate : kCandidates) {
    const auto [plain, variant] = both("no_exponentials", candidate);
    EXPECT_GT(plain.value("ex2"), 0) << candidate;
    EXPECT_EQ(variant.value("ex2"), 0) << candidate;
    EXPECT_EQ(variant.value("mma_instructions"), plain.value("mma_instructions")) << candidate;
    EXPECT_EQ(variant.loaded(), plain.loaded()) << candidate;
    EXPECT_EQ(variant.stored(), plain.stored()) << candidate;
    // Branches go as they do with exponentials: none does a block again.
    EXPECT_EQ(variant.value("shared_load.requests"), plain.value("shared_load.requests")) << candidate;
  }
}

TEST_F(InvertTest, AQuarterOfTheMultipliesIsLeftAndTheRestIsThere) {
  for (const std::string& candidate : kCandidates) {
    if (candidate == "ref_fwd") {
      EXPECT_NE(planted("quarter_multiplies", candidate).why_not, "");
      continue;
    }
    const auto [plain, variant] = both("quarter_multiplies", candidate);
    // One of an accumulator's tiles stays at the least: of 16 keys a warp, one of two for S and a quarter for O.
    const double left = candidate == "sm80_decode_fwd" ? 0.375 : 0.25;
    EXPECT_NEAR(variant.value("mma_instructions") / plain.value("mma_instructions"), left, 0.08) << candidate;
    EXPECT_EQ(variant.loaded(), plain.loaded()) << candidate;
    EXPECT_EQ(variant.stored(), plain.stored()) << candidate;
    // A block whose scores exceed the maximum is done again; with other scores fewer are.
    // sm89_fp8_fwd decides for 16 rows, others for 64 or never: it saves more.
    const double most = candidate.starts_with("sm89_fp8_fwd") ? 0.9 : 0.95;
    EXPECT_GE(variant.value("ex2"), most * plain.value("ex2")) << candidate;
  }
}

TEST_F(InvertTest, WithoutStoresNothingOfTheOutputIsWritten) {
  for (const std::string& candidate : kCandidates) {
    const auto [plain, variant] = both("no_stores", candidate);
    EXPECT_GT(plain.stored(), 0) << candidate;
    EXPECT_EQ(variant.stored(), 0) << candidate;
    EXPECT_EQ(count_unwritten(plain.outputs), 0) << candidate;
    EXPECT_GT(count_unwritten(variant.outputs), 0) << candidate;
    EXPECT_EQ(variant.value("ex2"), plain.value("ex2")) << candidate;
    EXPECT_EQ(variant.value("mma_instructions"), plain.value("mma_instructions")) << candidate;
    EXPECT_EQ(variant.loaded(), plain.loaded()) << candidate;
  }
}

// Else no part of a later launch is a tile's last, and the time of a merge is missing too.
TEST_F(InvertTest, WithoutStoresCountersOfPartsAreLeftZero) {
  const std::pair<const char*, const char*> cases[] = {
      {"sm80_wide_fwd:num_splits=2", "b1_h1_sq8_sk128_d320_fp16"},
      {"sm80_decode_fwd", "b1_h1_sq1_sk2000_d64_fp16"},
  };
  for (const auto& [candidate, problem] : cases) {
    const auto [plain, variant] = both("no_stores", candidate, PlacedProblem::parse(problem));
    EXPECT_GT(plain.zeros, 0u) << candidate;
    EXPECT_TRUE(plain.are_zeros_left) << candidate;
    EXPECT_TRUE(variant.are_zeros_left) << candidate;
    EXPECT_GT(count_unwritten(variant.outputs), 0) << candidate;
    // Nothing is stored but the zeros, of each of two launches.
    EXPECT_GT(variant.stored(), 0) << candidate << ": its tiles have one part each";
    EXPECT_LE(variant.stored(), 2.0 * static_cast<double>(variant.zeros)) << candidate;
  }
}

// Whoever merges parts in a step of its own still knows how many there are.
TEST_F(InvertTest, WithoutStoresPartsAreStillCounted) {
  const auto [plain, variant] =
      both("no_stores", "sm90_wide_fwd:num_splits=2,block_n=64", PlacedProblem::parse("b1_h1_sq8_sk256_d320_fp16"));
  EXPECT_GT(count_unwritten(variant.outputs), 0);
  EXPECT_EQ(variant.stored(), 4) << "of one tile, how many parts it has";
}

TEST_F(InvertTest, LoadsFromOneTileAreAsManyAndReadNothingElse) {
  for (const std::string& candidate : kCandidates) {
    const auto [plain, variant] = both("one_tile_loads", candidate);
    EXPECT_EQ(variant.loaded(), plain.loaded()) << candidate;
    EXPECT_EQ(variant.value("mma_instructions"), plain.value("mma_instructions")) << candidate;
    EXPECT_EQ(variant.stored(), plain.stored()) << candidate;
    EXPECT_FALSE(bitwise_equal(variant.outputs, plain.outputs)) << candidate << ": it still reads every tile";
  }
}

// Pathologies: each shows in its counter, and no result changes but by rounding; those without other blocks are the
// same to the bit.
TEST_F(InvertTest, StridedLoadsTakeMoreSectors) {
  for (const char* candidate : {"ref_fwd", "sm80_fwd", "sm80_short_fwd", "sm80_decode_fwd", "sm89_fp8_fwd"}) {
    const auto [plain, variant] = both("strided_loads", candidate);
    EXPECT_GT(variant.value("global_load.excess"), 1.5 * plain.value("global_load.excess")) << candidate;
    EXPECT_TRUE(bitwise_equal(variant.outputs, plain.outputs)) << candidate;
  }
  for (const char* candidate : {"sm90_fwd", "sm90_short_fwd", "sm90_fp8_fwd"})
    EXPECT_NE(planted("strided_loads", candidate).why_not.find("TMA"), std::string::npos) << candidate;
}

TEST_F(InvertTest, WithoutStagingFewerCopiesAreUnderWay) {
  for (const char* candidate : {"sm80_fwd:num_stages=3", "sm89_fp8_fwd:num_stages=3", "sm90_fwd:num_stages=3",
                                "sm90_short_fwd", "sm90_fp8_fwd"}) {
    const auto [plain, variant] = both("no_staging", candidate);
    if (std::string_view(candidate) == "sm90_fp8_fwd") {
      // Between its copies and its multiplies stand the threads that transpose V: what they wait for is counted.
      EXPECT_GT(variant.value("barrier_waits"), plain.value("barrier_waits")) << candidate;
    } else {
      EXPECT_LT(variant.value("copies_in_flight_per_mma"), plain.value("copies_in_flight_per_mma")) << candidate;
    }
    EXPECT_TRUE(bitwise_equal(variant.outputs, plain.outputs)) << candidate;
  }
  for (const char* candidate : {"ref_fwd", "sm80_short_fwd"})
    EXPECT_NE(planted("no_staging", candidate).why_not, "") << candidate;
}

// Other functions load pages than dense keys.
TEST_F(InvertTest, ReachesLoadsOfPages) {
  const char* candidate =
      "sm90_short_fwd:row_groups=1,key_groups=1,cluster=1,block_n=32,num_stages=3,pack_heads=4,early_launch=0";
  const PlacedProblem problem = PlacedProblem::parse("b3_h4_hk2_sq2_sk300_d64_fp16_raggedhalving_page16");
  const auto [plain, waiting] = both("no_staging", candidate, problem);
  EXPECT_LT(waiting.value("copies_in_flight_per_mma"), plain.value("copies_in_flight_per_mma"));
  EXPECT_TRUE(bitwise_equal(waiting.outputs, plain.outputs));
  for (const char* name : {"extra_barriers", "divergence", "waited_multiplies"})
    EXPECT_TRUE(bitwise_equal(both(name, candidate, problem).second.outputs, plain.outputs)) << name;
}

TEST_F(InvertTest, ExtraBarriersAreWaitedFor) {
  for (const std::string& candidate : kCandidates) {
    const auto [plain, variant] = both("extra_barriers", candidate);
    // Barriers of a warp, all that ref_fwd can have, are not counted.
    if (candidate != "ref_fwd") {
      EXPECT_GT(variant.value("barrier_waits"), plain.value("barrier_waits")) << candidate;
    }
    EXPECT_TRUE(bitwise_equal(variant.outputs, plain.outputs)) << candidate;
  }
}

TEST_F(InvertTest, DivergentLanesMakeMoreRequests) {
  for (const std::string& candidate : kCandidates) {
    const auto [plain, variant] = both("divergence", candidate);
    EXPECT_EQ(variant.value("ex2"), plain.value("ex2")) << candidate;
    EXPECT_TRUE(bitwise_equal(variant.outputs, plain.outputs)) << candidate;
    // Where all loads are by TMA, only lanes of the main loop diverge, which no counter shows.
    if (!candidate.starts_with("sm90")) {
      // sm89_fp8_fwd has no loads of its own but its copies: what else it requests is ldmatrix, which cannot diverge.
      const double least = candidate.starts_with("sm89_fp8_fwd") ? 1.1 : 1.2;
      EXPECT_GT(variant.requests(), least * plain.requests()) << candidate;
    }
  }
}

TEST_F(InvertTest, WhatNoCounterShowsComputesTheSame) {
  for (const std::string& candidate : kCandidates) {
    for (const char* name : {"forced_spills", "waited_multiplies", "serial_grid"}) {
      const PlantedVariant variant = planted(name, candidate);
      if (!variant.why_not.empty()) continue;
      const auto [plain, changed] = both(name, candidate);
      EXPECT_TRUE(bitwise_equal(changed.outputs, plain.outputs)) << name << " of " << candidate;
    }
  }
  EXPECT_NE(planted("waited_multiplies", "sm80_fwd").why_not, "");
  EXPECT_EQ(planted("waited_multiplies", "sm90_fwd").why_not, "");
  for (const char* candidate : {"sm80_fwd:persistent=1", "sm90_fwd:cluster=1,scheduler=1"}) {
    const auto [plain, changed] = both("serial_grid", candidate);
    EXPECT_TRUE(bitwise_equal(changed.outputs, plain.outputs)) << candidate;
    // The variant differs from what it is raced against by nothing but the change.
    const std::string variant = planted("serial_grid", candidate).candidate;
    const std::string raced =
        parse_candidate(candidate, problem_of(std::string(candidate).substr(0, std::string(candidate).find(':'))),
                        device_->info().limits)
            .print();
    EXPECT_EQ(variant.substr(variant.find(':')), raced.substr(raced.find(':'))) << candidate;
  }
  EXPECT_NE(planted("serial_grid", "sm80_fwd:persistent=0").why_not.find("give it with persistent=1"),
            std::string::npos);
  EXPECT_NE(planted("serial_grid", "sm80_short_fwd").why_not, "");
}

TEST_F(InvertTest, OtherConfigsDoWhatTheyAreCalled) {
  const auto [plain, tiny] = both("tiny_blocks", "sm80_fwd");
  EXPECT_GT(tiny.loaded(), 1.5 * plain.loaded());
  const auto [staged, one] = both("one_stage", "sm80_fwd:num_stages=3");
  EXPECT_LT(one.value("copies_in_flight_per_mma"), staged.value("copies_in_flight_per_mma"));
  EXPECT_EQ(planted("one_stage", "sm80_fwd:num_stages=1").why_not,
            "it has the fewest stages that its config allows already");
  const DeviceLimits& limits = device_->info().limits;
  for (const std::string& candidate : kCandidates) {
    for (const char* name : {"tiny_blocks", "one_stage"}) {
      const PlantedVariant variant = planted(name, candidate);
      EXPECT_NE(variant.why_not.empty(), variant.candidate.empty()) << name << " of " << candidate;
      if (!variant.why_not.empty()) continue;
      EXPECT_NO_THROW(parse_candidate(variant.candidate, problem_of(candidate.substr(0, candidate.find(':'))), limits));
    }
  }
}

// --- NVRTC ----------------------------------------------------------------------------------------------------------
TEST(InvertCompile, EveryVariantOfEveryFamilyCompilesForEachArchitecture) {
  int compiled = 0;
  for (const char* arch : {"sm_80", "sm_90"}) {
    const DeviceLimits limits = limits_of_arch(arch);
    for (const Family* family : gpu_families()) {
      const PlacedProblem problem = problem_of(family->name());
      if (family->why_unsupported(problem, limits)) continue;
      const Candidate plain = parse_candidate(family->name(), problem, limits);
      const Artifact artifact = compile_candidate(plain, problem, limits);
      for (const Variant& variant : variants()) {
        const PlantedVariant planted = plant(variant, plain, problem, limits);
        if (!planted.why_not.empty()) continue;
        const PatchScope scope(planted.patch ? std::vector<Patch>{*planted.patch} : std::vector<Patch>{});
        const std::string what = fmt::format("{} for {}", planted.candidate, arch);
        try {
          const Artifact changed =
              compile_candidate(parse_candidate(planted.candidate, problem, limits), problem, limits);
          ++compiled;
          // ref_fwd needs fewer registers than are left.
          if (variant.name != "forced_spills" || family->name() != "ref_fwd") {
            EXPECT_NE(changed.code_hash, artifact.code_hash) << what << ": the same machine code";
          }
          // What was omitted left the rest alone: nothing but the omitted thing's own share is gone.
          if (variant.wrong_on_purpose) {
            EXPECT_GT(changed.cubin.size(), artifact.cubin.size() / 2) << what;
          }
          if (variant.name == "forced_spills" && family->name().starts_with("sm80") && artifact.registers > 80) {
            EXPECT_GT(changed.spill_store_bytes, artifact.spill_store_bytes) << what;
          }
        } catch (const CompileError& e) {
          ADD_FAILURE() << what << ": " << e.what() << "\n" << e.log().substr(0, 2000);
        }
      }
    }
  }
  EXPECT_GT(compiled, 60);
}

// --- pure functions -------------------------------------------------------------------------------------------------
AbResult result_of(double speedup, double low, double high, SpeedVerdict verdict) {
  AbResult r;
  r.ended = PairEnded::kMeasured;
  r.verdict = verdict;
  r.comparison.speedup = speedup, r.comparison.ci95_low = low, r.comparison.ci95_high = high;
  return r;
}

TEST(Sensitivities, SaysWhatALeaveOneOutBounds) {
  const Sensitivity s =
      sensitivity_of_times(variant_by_name("no_exponentials"), "x", result_of(1.25, 1.2, 1.3, SpeedVerdict::kFaster));
  EXPECT_DOUBLE_EQ(s.time_ratio, 0.8);
  EXPECT_DOUBLE_EQ(s.low, 1 / 1.3);
  EXPECT_TRUE(s.wrong_on_purpose);
  EXPECT_EQ(s.sentence,
            "without exponentials it takes 0.80 of the time (0.77 to 0.83): at most 1.30 times as fast if each "
            "exponential were one logic operation");
  // Three of four are left out: nothing is known of what the fourth costs.
  const auto said = [](const char* name, double speedup, SpeedVerdict verdict) {
    return sensitivity_of_times(variant_by_name(name), "x", result_of(speedup, speedup, speedup, verdict)).sentence;
  };
  EXPECT_EQ(said("quarter_multiplies", 1.25, SpeedVerdict::kFaster),
            "with a quarter of its multiplies it takes 0.80 of the time (0.80 to 0.80): at most 1.25 times as fast if "
            "multiplies cost a quarter");
  EXPECT_EQ(
      said("no_stores", 1, SpeedVerdict::kSame),
      "without stores it takes 1.00 of the time (1.00 to 1.00): no gain beyond the margin if stores cost nothing");
  EXPECT_EQ(said("no_exponentials", 0.8, SpeedVerdict::kSlower),
            "without exponentials it takes 1.25 of the time (1.25 to 1.25): what is in their place costs more, so it "
            "bounds nothing");
}

TEST(Sensitivities, TheLargestEffectComesFirst) {
  const auto of = [](const char* name, double speedup, SpeedVerdict verdict) {
    return sensitivity_of_times(variant_by_name(name), "x", result_of(speedup, speedup, speedup, verdict));
  };
  const std::vector<Sensitivity> ranked = ranking(
      {of("no_stores", 1.01, SpeedVerdict::kSame), of("divergence", 0.9, SpeedVerdict::kSlower),
       no_sensitivity(variant_by_name("one_stage"), "x", "none"), of("quarter_multiplies", 1.6, SpeedVerdict::kFaster),
       of("no_exponentials", 1.2, SpeedVerdict::kFaster)});
  std::string order;
  for (const Sensitivity& s : ranked) order += s.variant + " ";
  EXPECT_EQ(order, "quarter_multiplies no_exponentials divergence no_stores ");
  EXPECT_EQ(answer(ranked).rfind("fewer or cheaper multiplies would help most: ", 0), 0U) << answer(ranked);
  EXPECT_NE(answer(ranked).find("most sensitive to divergence"), std::string::npos);
  EXPECT_EQ(answer({}), "no variant could be judged, so nothing is known");
  const json first = ranked.front();
  EXPECT_EQ(first.at("wrong_on_purpose"), true);
  EXPECT_EQ(first.at("kind"), "leave_one_out");
}

TEST(Sensitivities, WhatCouldNotBeJudgedHasNoRatio) {
  AbResult failed;
  failed.ended = PairEnded::kCandidateFailed;
  failed.sentence = "it does not compile";
  const Sensitivity s = sensitivity_of_times(variant_by_name("divergence"), "x", failed);
  EXPECT_FALSE(s.judged());
  EXPECT_EQ(s.sentence, "divergence: it does not compile");
  EXPECT_FALSE(json(s).contains("time_ratio"));
}

TEST(InvertVariants, AnUnknownOneIsRefusedWithTheNames) {
  try {
    variant_by_name("no_gravity");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(e.what()).find("'no_gravity' is no variant; give some of: no_exponentials, "),
              std::string::npos);
  }
}

TEST(InvertVariants, AFamilyWithoutDeviceSourceHasOtherConfigsOnly) {
  const PlacedProblem problem = PlacedProblem::parse("b1_h2_s96_d64_fp32");
  DeviceLimits limits;
  limits.kind = DeviceKind::kCpu;
  const Candidate plain = parse_candidate("cpu_fwd", problem, limits);
  EXPECT_NE(plant(variant_by_name("no_stores"), plain, problem, limits).why_not.find("is compiled into the program"),
            std::string::npos);
  EXPECT_NE(plant(variant_by_name("tiny_blocks"), plain, problem, limits).candidate.find("block_m=24,block_n=32"),
            std::string::npos);
  EXPECT_NE(plant(variant_by_name("serial_grid"), plain, problem, limits).candidate.find("threads=1"),
            std::string::npos);
}

}  // namespace
}  // namespace flashcore
