#include "lab/verify/needles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "device/emulator/emulator_device.h"
#include "lab/fake.h"

namespace flashcore {
namespace {

const NeedleData& short_data() {
  static const NeedleData data = make_needle_data(kFewestNeedleKeys, 64, 1);
  return data;
}

std::vector<float> in_fp32(const std::vector<double>& values) { return {values.begin(), values.end()}; }

NeedleVerdict judge(const std::vector<float>& o, const std::vector<float>& lse) {
  const Reference& reference = short_data().reference;
  return judge_needles(short_data(), o, lse, reference.ideal_o, reference.ideal_lse);
}

// Row i of `o` without what its needle gives, and a hundredth less, for an exact remainder points nowhere.
void take_needle_away(std::vector<float>& o, std::size_t i) {
  const Needle& needle = short_data().needles[i];
  const std::vector<float>& code = short_data().codes[needle.code];
  for (std::size_t c = 0; c < code.size(); ++c)
    o[i * code.size() + c] -= static_cast<float>(1.01 * needle.weight) * code[c];
}

TEST(Needles, HaveTheirShareOfTheWeightAndAllPlaces) {
  const NeedleData& data = short_data();
  std::vector<int> places(std::size(kNeedlePlaces));
  double sum = 0;
  for (const Needle& needle : data.needles) {
    const double wanted = kNeedleWeights[needle.weight_index];
    const double off = std::log(needle.weight / (1 - needle.weight)) - std::log(wanted / (1 - wanted));
    // A row may lean towards another needle's key too, by chance.
    EXPECT_LT(std::abs(off), 1.5) << needle.key << " " << wanted;
    sum += off;
    ++places[static_cast<std::size_t>(needle.place)];
  }
  EXPECT_NEAR(sum / static_cast<double>(data.needles.size()), 0, 0.1);
  EXPECT_EQ(data.needles.front().key, 0);
  for (const int count : places) EXPECT_GT(count, 0);
}

TEST(Needles, QuantisedInputsAreThoseOfBf16ToThreeBits) {
  const NeedleData& data = short_data();
  const HostTensor &exact = data.exact_inputs.v, &quantised = data.quantised_inputs.v;
  for (std::int64_t row = 0; row < kFewestNeedleKeys; row += 97) {
    const float value = exact.at(0, 0, row, 5);
    EXPECT_NEAR(quantised.at(0, 0, row, 5) * data.quantised_inputs.descale_v.front(), value,
                std::abs(value) / 16 + 1e-4f);
  }
}

TEST(Needles, ExactResultsShowAllAndAHaystackNone) {
  const NeedleData& data = short_data();
  std::vector<float> o = in_fp32(data.reference.o);
  const NeedleCount all = count_found(data, o);
  EXPECT_EQ(all.all, static_cast<int>(data.needles.size()));
  for (const int count : all.by_weight) EXPECT_EQ(count, kNeedlePlaceCount);
  for (std::size_t i = 0; i < data.needles.size(); ++i) take_needle_away(o, i);
  EXPECT_EQ(count_found(data, o).all, 0);
  std::fill(o.begin(), o.end(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(count_found(data, o).all, 0);
}

TEST(Needles, TwoOfAHundredMayBeLost) {
  const Reference& reference = short_data().reference;
  std::vector<float> o = reference.ideal_o;
  EXPECT_EQ(judge(o, reference.ideal_lse).words(), "passes");
  const int allowed = static_cast<int>(kNeedleLoss * static_cast<double>(short_data().needles.size()));
  ASSERT_EQ(allowed, 2);
  for (std::size_t i = 0; i < 2; ++i)
    std::fill_n(o.begin() + static_cast<std::ptrdiff_t>(i) * 64, 64, 9.0f * (i % 2 ? 1 : -1));
  EXPECT_TRUE(judge(o, reference.ideal_lse).finds);
  std::fill_n(o.begin() + 128, 64, 9.0f);
  const NeedleVerdict verdict = judge(o, reference.ideal_lse);
  EXPECT_FALSE(verdict.finds);
  EXPECT_EQ(verdict.words(), "loses 3 needles");
}

TEST(Needles, DriftOfPlainRowsHasALimit) {
  const Reference& reference = short_data().reference;
  const std::size_t first = short_data().needles.size();
  std::vector<float> o = reference.ideal_o, lse = reference.ideal_lse;
  for (std::size_t i = first * 64; i < o.size(); ++i) o[i] *= 0.97f;
  NeedleVerdict verdict = judge(o, lse);
  EXPECT_TRUE(verdict.finds);
  EXPECT_FALSE(verdict.stays);
  EXPECT_NEAR(verdict.drift.o_rms, 0.03, 1e-3);
  EXPECT_LT(verdict.limit.o_rms, 0.025);
  EXPECT_NE(verdict.words().find("o drifts 0.03, allowed 0.0"), std::string::npos) << verdict.words();
  lse[first] += 0.2f;
  verdict = judge(reference.ideal_o, lse);
  EXPECT_FALSE(verdict.stays);
  EXPECT_NE(verdict.words().find("lse drifts 0.2"), std::string::npos) << verdict.words();
  lse[first] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(judge(reference.ideal_o, lse).stays);
}

TEST(Needles, FewKeysAreRefused) { EXPECT_THROW(make_needle_data(kFewestNeedleKeys - 1, 64, 1), Error); }

TEST(Needles, EveryIntervalOfPromotionIsTriedAndTheDefaultGated) {
  const auto device = open_emulator();
  const Problem problem = needle_problem(131072, 64, DType::kE4M3);
  std::string why_none;
  const auto candidates = needle_candidates("sm90_fp8_fwd", problem, device->info(), why_none);
  std::vector<int> values;
  for (const NeedleCandidate& each : candidates) {
    const auto promotion = promotion_of(each.candidate);
    ASSERT_TRUE(promotion);
    EXPECT_EQ(each.gated, values.empty());
    EXPECT_FALSE(each.candidate.family->why_invalid(each.candidate.config, problem, device->info().limits));
    values.push_back(promotion->value);
  }
  EXPECT_EQ(values, (std::vector<int>{1, 0, 2, 4, 8}));
  EXPECT_TRUE(needle_candidates("cpu_fwd", problem, device->info(), why_none).empty());
  EXPECT_NE(why_none.find("CPU"), std::string::npos);
}

// The planted fault of the gate: sums that are never promoted.
TEST(Needles, SumsThatAreNeverPromotedAreNamedAndTheDefaultPasses) {
  Worker worker("emulator", FLASHCORE_BINARY);
  NeedleOptions options;
  options.seqlens_kv = {kFewestNeedleKeys};
  options.head_dims = {64};
  options.pinned = "sm89_fp8_fwd:promote_keys=0";
  const NeedleRun never = run_needles(worker, options).at(0);
  ASSERT_EQ(never.results.size(), 1u);
  EXPECT_TRUE(never.results[0].candidate.gated);
  EXPECT_FALSE(never.results[0].verdict.finds);
  EXPECT_FALSE(never.results[0].verdict.stays);
  EXPECT_GT(never.results[0].verdict.lost, 10);
  options.pinned = "sm89_fp8_fwd:promote_keys=64";
  const NeedleRun promoted = run_needles(worker, options).at(0);
  EXPECT_TRUE(promoted.results.at(0).verdict.passed()) << promoted.results[0].verdict.words();
  EXPECT_EQ(promoted.bf16, "idealised");
}

// What was judged before it must not be lost, and what comes after it gets a fresh child.
TEST(Needles, AKernelThatFaultsCrashesOrHangsFailsByItself) {
  const test::AllFakeFamilies families;
  struct Case {
    const char *family, *says;
    double seconds;
  };
  for (const Case& c :
       {Case{"fake_device_fault", "illegal memory access", 0}, Case{"fake_segfault", "SIGSEGV", 0},
        // Data and bf16's outputs take their time on a slow machine, before the child hangs.
        Case{"fake_hang", "no answer after 20 s, in stage correctness: the worker process was ended", 20}}) {
    Worker worker("cpu", FLASHCORE_WORKER_HELPER);
    NeedleOptions options;
    options.seqlens_kv = {kFewestNeedleKeys};
    options.head_dims = {64, 128};
    options.pinned = c.family;
    options.timeout_seconds = c.seconds;
    if (c.seconds > 0) options.head_dims = {64};
    const std::vector<NeedleRun> runs = run_needles(worker, options);
    ASSERT_EQ(runs.size(), options.head_dims.size()) << c.family;
    for (const NeedleRun& run : runs) {
      ASSERT_EQ(run.results.size(), 1u) << c.family << ": " << run.failure << run.lacking;
      const NeedleResult& result = run.results[0];
      EXPECT_NE(result.failure.find(c.says), std::string::npos) << result.failure;
      EXPECT_FALSE(result.passed());
      EXPECT_EQ(result.words(), result.failure.substr(0, result.failure.find('\n')));
    }
    const auto row = needles_json(runs, options, worker.device())["results"][0];
    EXPECT_EQ(row["candidates"][0]["failure"], runs[0].results[0].failure);
    EXPECT_TRUE(row["bf16"].is_object());
    options.pinned = "cpu_fwd", options.head_dims = {64}, options.timeout_seconds = 0;
    EXPECT_TRUE(run_needles(worker, options).at(0).results.at(0).passed()) << "after " << c.family;
  }
}

}  // namespace
}  // namespace flashcore
