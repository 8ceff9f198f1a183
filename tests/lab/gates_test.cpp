// The parts of the gates that need no device: resources, floor, element-wise comparison, the oracle's cache.

#include "lab/gates/gates.h"
#include "lab/harness/compared_outputs.h"
#include "lab/measure/floor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"

namespace flashcore {
namespace {

Artifact sound_artifact() {
  Artifact a;
  a.arch = "sm_90";
  a.registers = 168;
  a.threads_per_block = 128;
  a.static_shared_bytes = 1024;
  a.dynamic_shared_bytes = 100 << 10;
  a.warnings = {"ptxas info: something harmless C1234"};
  return a;
}

DeviceLimits hopper() {
  DeviceLimits limits;
  limits.kind = DeviceKind::kCuda;
  limits.arch = 90;
  limits.shared_bytes_per_block = 227 << 10;
  limits.registers_per_multiprocessor = 65536;
  limits.max_threads_per_block = 1024;
  return limits;
}

TEST(ResourceGate, PassesASoundArtifactWithItsNumbers) {
  const Verdict verdict = judge_resources(sound_artifact(), hopper());
  EXPECT_EQ(verdict.status, GateStatus::kPassed) << verdict.reason;
  EXPECT_EQ(verdict.gate, Gate::kResource);
  EXPECT_EQ(verdict.evidence.at("registers"), 168);
  EXPECT_EQ(verdict.evidence.at("shared_bytes"), 101 << 10);
}

TEST(ResourceGate, FailsOnEachFaultAndNamesIt) {
  const std::pair<const char*, std::function<void(Artifact&)>> faults[] = {
      {"spills", [](Artifact& a) { a.spill_store_bytes = 4; }},
      {"spills", [](Artifact& a) { a.spill_load_bytes = 4; }},
      {"stack frame of 16", [](Artifact& a) { a.stack_bytes = 16; }},
      {"C7508", [](Artifact& a) { a.warnings.push_back("(C7508) Potential Performance Loss"); }},
      {"C7510", [](Artifact& a) { a.warnings.push_back("ptxas info : (C7510) wgmma serialized"); }},
      {"C7517", [](Artifact& a) { a.warnings.push_back("C7517"); }},
      {"shared memory", [](Artifact& a) { a.dynamic_shared_bytes = (227 << 10) - 1023; }},
      {"threads a block", [](Artifact& a) { a.threads_per_block = 1025; }},
      {"threads a block", [](Artifact& a) { a.threads_per_block = 0; }},
      {"registers a block", [](Artifact& a) { a.threads_per_block = 416; }},  // 13 warps of 168 x 32
      {"the variable counter lives in global memory", [](Artifact& a) { a.kept_variables = {"counter"}; }},
      {"registers a thread", [](Artifact& a) { a.registers = 256; }},
  };
  for (const auto& [word, plant] : faults) {
    Artifact artifact = sound_artifact();
    plant(artifact);
    const Verdict verdict = judge_resources(artifact, hopper());
    EXPECT_EQ(verdict.status, GateStatus::kFailed) << word;
    EXPECT_NE(verdict.reason.find(word), std::string::npos) << verdict.reason;
  }
}

TEST(ResourceGate, LimitsThemselvesAreAllowed) {
  Artifact artifact = sound_artifact();
  artifact.dynamic_shared_bytes = (227 << 10) - 1024;
  artifact.threads_per_block = 384;
  EXPECT_EQ(judge_resources(artifact, hopper()).status, GateStatus::kPassed);
}

TEST(ResourceGate, ACpuCandidateIsSkippedNotPassed) {
  EXPECT_EQ(judge_resources({}, DeviceLimits{}).status, GateStatus::kSkipped);
}

TEST(Floor, IsTheLargerOfArithmeticAndTraffic) {
  DeviceInfo gpu;
  gpu.limits = hopper();
  gpu.limits.l2_bytes = 50 << 20;
  Ceilings ceilings;
  ceilings.matmul_tflops_16bit = 800;
  ceilings.read_gbps = 4000;
  ceilings.empty_launch_us = 1.5;
  PlacedProblem prefill;  // 4 * 16 * 8192^2 * 128 = 0.55 TFLOP
  prefill.heads_q = prefill.heads_kv = 16;
  prefill.seqlen_q = prefill.seqlen_kv = 8192;
  prefill.head_dim = prefill.head_dim_v = 128;
  EXPECT_NEAR(floor_us(prefill, gpu, ceilings), 1.5 + 4.0 * 16 * 8192 * 8192 * 128 / 800e6, 1e-6);

  PlacedProblem decode;
  decode.batch = 64;
  decode.heads_q = 32;
  decode.heads_kv = 8;
  decode.seqlen_kv = 4096;
  decode.head_dim = decode.head_dim_v = 128;
  EXPECT_NEAR(floor_us(decode, gpu, ceilings), 1.5 + (decode.bytes() - (50 << 20)) / 4000e3, 1e-6);

  PlacedProblem tiny;  // everything stays in the cache
  EXPECT_NEAR(floor_us(tiny, gpu, ceilings), 1.5, 1e-3);
  EXPECT_EQ(floor_us(prefill, gpu, {}), 0) << "nothing measured, nothing claimed";

  // What stays in L2 is read from there: 2 sequences of the 64.
  decode.batch = 2;
  ceilings.cache_read_gbps = 8000;
  EXPECT_NEAR(floor_us(decode, gpu, ceilings), 1.5 + decode.bytes() / 8000e3, 1e-6);
  DeviceInfo cpu = gpu;
  cpu.limits.kind = DeviceKind::kCpu;
  EXPECT_NEAR(floor_us(decode, cpu, ceilings), 1.5, 1e-3) << "the cores' own caches are faster than what is measured";
}

TEST(Floor, FollowsTheUnitThatDoesTheWork) {
  DeviceInfo cpu;
  Ceilings ceilings;
  ceilings.matmul_tflops_16bit = 800;
  ceilings.fma_tflops_fp32 = 0.1;
  PlacedProblem problem;
  problem.seqlen_q = problem.seqlen_kv = 1024;
  EXPECT_NEAR(floor_us(problem, cpu, ceilings), problem.flops() / 0.1e6, 1e-6) << "a CPU has no tensor cores";
  problem.dtype = DType::kBF16;
  EXPECT_NEAR(floor_us(problem, cpu, ceilings), problem.flops() / 800e6, 1e-6) << "but matrix tiles for bf16";
  ceilings.matmul_tflops_16bit = 0;
  EXPECT_NEAR(floor_us(problem, cpu, ceilings), problem.flops() / 0.1e6, 1e-6) << "or none";
  ceilings.matmul_tflops_16bit = 800;
  DeviceInfo gpu;
  gpu.limits = hopper();
  EXPECT_LT(floor_us(problem, gpu, ceilings), 1);
  problem.dtype = DType::kF32;
  EXPECT_NEAR(floor_us(problem, gpu, ceilings), problem.flops() / 0.1e6, 1e-6) << "fp32 does not run on them either";
}

PlacedProblem small_problem() {
  PlacedProblem p;
  p.dtype = DType::kF32;
  p.heads_q = p.heads_kv = 2;
  p.seqlen_q = 3;
  p.seqlen_kv = 5;
  p.head_dim = p.head_dim_v = 4;
  return p;
}

AttentionOutputs outputs_of(const PlacedProblem& p) {
  AttentionOutputs outputs{HostTensor(p.dtype, make_layouts(p).o), std::vector<float>(6, 0.5f)};
  for (std::int64_t h = 0; h < 2; ++h)
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::int64_t c = 0; c < 4; ++c) outputs.o.set(0, h, row, c, 1 + 0.1f * static_cast<float>(h + row + c));
  return outputs;
}

TEST(CompareOutputs, OneWrongElementAmongAllIsFound) {
  const PlacedProblem p = small_problem();
  const AttentionOutputs theirs = outputs_of(p);
  AttentionOutputs ours = theirs;
  EXPECT_EQ(compare_outputs(p, ours, theirs).worst_row_rel, 0);
  ours.o.set(0, 1, 2, 3, ours.o.at(0, 1, 2, 3) + 0.5f);
  const OutputError error = compare_outputs(p, ours, theirs);
  EXPECT_EQ(error.first_bad_row, 5);
  EXPECT_NEAR(error.max_abs, 0.5, 1e-6);
  EXPECT_GT(error.bias, 0);
  EXPECT_GT(error.worst_row_rel, error.rel);
  EXPECT_FALSE(within(error, {1e-3, 1e-3, 1e-3}));
}

TEST(CompareOutputs, NonFiniteValuesMustAgree) {
  const PlacedProblem p = small_problem();
  AttentionOutputs theirs = outputs_of(p), ours = theirs;
  const float infinity = std::numeric_limits<float>::infinity();
  theirs.lse[1] = ours.lse[1] = -infinity;
  ours.o.set(0, 0, 0, 0, std::nanf(""));
  theirs.o.set(0, 0, 0, 0, -std::nanf("1"));
  EXPECT_EQ(compare_outputs(p, ours, theirs).nonfinite, 0);
  ours.lse[1] = infinity;
  theirs.o.set(0, 0, 0, 0, 1);
  EXPECT_EQ(compare_outputs(p, ours, theirs).nonfinite, 2);
}

TEST(ShareOfBound, NanIsNeverSmall) {
  const ErrorBound bound{1, 1, 1};
  OutputError error;
  error.rel = 0.5;
  EXPECT_EQ(share_of_bound(error, bound), 0.5);
  error.rel = std::nan("");
  EXPECT_TRUE(std::isinf(share_of_bound(error, bound)));
  error.rel = 0;
  error.nonfinite = 1;
  EXPECT_TRUE(std::isinf(share_of_bound(error, bound)));
}

TEST(Poison, CountsWhatWasNotWritten) {
  PlacedProblem p = small_problem();
  p.layout = Layout::kStrided;
  AttentionOutputs outputs{HostTensor(p.dtype, make_layouts(p).o), std::vector<float>(6)};
  std::fill(outputs.o.data.begin(), outputs.o.data.end(), std::byte{0xFF});
  outputs.lse.assign(6, 1.0f);
  EXPECT_EQ(count_unwritten(outputs), 24);
  EXPECT_FALSE(gaps_written(outputs));
  for (std::int64_t c = 0; c < 4; ++c) outputs.o.set(0, 1, 1, c, 0);
  EXPECT_EQ(count_unwritten(outputs), 20);
  EXPECT_FALSE(gaps_written(outputs));
  store_element(p.dtype, outputs.o.data.data(), outputs.o.layout.offset(0, 1, 1) + 4, 0);
  EXPECT_TRUE(gaps_written(outputs));
}

TEST(OracleCache, KeepsTheLatestWithinItsBytes) {
  OracleCache cache(1);
  const PlacedProblem p = small_problem();
  const auto first = cache.get(p, Pattern::kNormal, 1, 1e9);
  EXPECT_EQ(cache.get(p, Pattern::kNormal, 1, 1e9), first) << "the latest is kept even when it is over the limit";
  EXPECT_NE(cache.get(p, Pattern::kNormal, 2, 1e9), first);
  EXPECT_NE(cache.get(p, Pattern::kNormal, 1, 1e9), first) << "evicted";
  OracleCache roomy;
  const auto one = roomy.get(p, Pattern::kNormal, 1, 1e9);
  roomy.get(p, Pattern::kPeaked, 1, 1e9);
  EXPECT_EQ(roomy.get(p, Pattern::kNormal, 1, 1e9), one);
}

TEST(OracleCache, CountsWhatTheGatesHaveItAdd) {
  const PlacedProblem p = small_problem();
  const std::size_t bytes = bytes_of(*OracleCache().get(p, Pattern::kNormal, 1, 1e9));
  for (const bool with_other : {false, true}) {
    OracleCache cache(2 * bytes + bytes / 2);
    const auto first = cache.get(p, Pattern::kNormal, 1, 1e9);
    if (with_other) {
      OracleCache::other(p, *first);
      EXPECT_EQ(bytes_of(*first), 2 * bytes);
    }
    cache.get(p, Pattern::kNormal, 2, 1e9);
    const bool is_kept = cache.get(p, Pattern::kNormal, 1, 1e9) == first;
    EXPECT_EQ(is_kept, !with_other);
  }
}

}  // namespace
}  // namespace flashcore
