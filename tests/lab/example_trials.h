#pragma once
// Trials as a tune run on a GPU and one on a CPU would leave them, for the report's tests. Invented numbers.

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "lab/record/trial.h"

namespace flashcore::example {

inline constexpr const char* kCurrent = "c0ffee00112233445566778899aabbcc";
inline constexpr const char* kOld = "0ddba11000000000000000000000dead";

inline DeviceInfo gpu() {
  DeviceInfo device;
  device.limits.kind = DeviceKind::kCuda;
  device.limits.arch = 90;
  device.key = "example_gpu";
  device.name = "Example GPU <90>";
  device.id = "cuda:0";
  device.driver = "123.45 (CUDA 13.0)";
  return device;
}

inline Verdict verdict(Gate gate, GateStatus status, const std::string& reason = {}) {
  return {gate, status, reason, nlohmann::json::object()};
}

// `id` spreads the invented times; created_at grows with it.
inline Trial trial(int id, Phase phase, const std::string& problem, const std::string& name,
                   const std::string& config) {
  Trial t;
  t.id = id;
  t.run = "run-1";
  t.created_at = fmt::format("2025-01-31T12:{:02}:{:02}.000Z", id / 60, id % 60);
  t.phase = phase;
  t.suite = "example";
  t.problem_name = name;
  t.problem = PlacedProblem::parse(problem);
  t.device = gpu();
  t.family = "sm80_fwd";
  t.config = config;
  t.source_hash = kCurrent;
  t.environment = {1755, 3201, 512, 61, "none"};
  return t;
}

inline constexpr Gate kGates[] = {Gate::kValid, Gate::kCompile, Gate::kResource, Gate::kCorrectness,
                                  Gate::kPerformance};

inline Trial stopped(Trial t, Gate gate, GateStatus status, Ended ended, const std::string& reason) {
  for (const Gate each : kGates) {
    if (each == gate) break;
    t.gates.push_back(verdict(each, GateStatus::kPassed));
  }
  t.gates.push_back(verdict(gate, status, reason));
  t.ended = ended;
  t.message = reason;
  return t;
}

inline Trial timed(Trial t, double p50_us, double floor_us, const std::string& against = {}, double speedup = 1) {
  for (const Gate each : kGates) t.gates.push_back(verdict(each, GateStatus::kPassed));
  t.gates.back().evidence["ceilings"] = Ceilings{790, 0, 4430, 9000, 0.6};
  Artifact artifact;
  artifact.arch = "sm_90";
  artifact.registers = 168;
  artifact.dynamic_shared_bytes = 49152;
  artifact.threads_per_block = 128;
  artifact.compile_ms = 412;
  artifact.code_hash = "5eed5eed5eed5eed";
  t.artifact = artifact;
  Timing timing;
  timing.p50_us = p50_us;
  timing.p10_us = p50_us * 0.99;
  timing.p90_us = p50_us * 1.02;
  timing.floor_us = floor_us;
  timing.launches_per_sample = 20;
  for (int i = 0; i < 120; ++i) {
    const double drift = 1 + 0.012 * std::sin(i / 9.0) + 0.004 * std::sin(i * 2.3);
    timing.samples.push_back({p50_us * drift, 1755 / drift});
  }
  t.timing = timing;
  if (!against.empty()) {
    Comparison raced;
    raced.against = against;
    raced.speedup = speedup;
    raced.ci95_low = speedup * 0.97;
    raced.ci95_high = speedup * 1.04;
    raced.verdict = raced.ci95_low > 1.03    ? SpeedVerdict::kFaster
                    : raced.ci95_high < 0.97 ? SpeedVerdict::kSlower
                                             : SpeedVerdict::kInconclusive;
    raced.blocks = 24;
    raced.processes = 8;
    raced.p_value = raced.verdict == SpeedVerdict::kFaster ? 0.001 : 0.5;
    t.comparison = raced;
  }
  t.ended = Ended::kPassed;
  return t;
}

// One problem: 8 proposed, 6 valid, 5 compiled, 4 correct, 4 raced, 2 won, and a held-out winner.
inline std::vector<Trial> tuned_problem(const std::string& problem, const std::string& name, double default_us,
                                        double best_speedup, double floor_us, int first_id) {
  const std::string standard = "block_m=64,block_n=64,num_warps=4,num_stages=2",
                    tuned = "block_m=128,block_n=64,num_warps=8,num_stages=3";
  const std::string other = "block_m=128,block_n=128,num_warps=8,num_stages=2";
  int id = first_id;
  const auto next = [&](Phase phase, const std::string& config) { return trial(id++, phase, problem, name, config); };
  const std::string incumbent = "sm80_fwd:" + standard;
  return {
      timed(next(Phase::kDefault, standard), default_us, floor_us),
      stopped(next(Phase::kSearch, "block_m=256,block_n=256,num_warps=4,num_stages=4"), Gate::kValid,
              GateStatus::kFailed, Ended::kInvalid, "needs 262144 bytes of shared memory, 232448 allowed"),
      stopped(next(Phase::kSearch, "block_m=256,block_n=128,num_warps=4,num_stages=4"), Gate::kValid,
              GateStatus::kFailed, Ended::kInvalid, "needs 294912 bytes of shared memory, 232448 allowed"),
      stopped(next(Phase::kSearch, "block_m=192,block_n=64,num_warps=4,num_stages=2"), Gate::kResource,
              GateStatus::kFailed, Ended::kResource, "16 bytes of registers spilled"),
      stopped(next(Phase::kSearch, "block_m=64,block_n=32,num_warps=2,num_stages=1"), Gate::kCorrectness,
              GateStatus::kFailed, Ended::kIncorrect, "rel error 0.31 over the bound <5.6e-4>"),
      timed(next(Phase::kSearch, tuned), default_us / best_speedup, floor_us, incumbent, best_speedup),
      timed(next(Phase::kSearch, other), default_us / 1.1, floor_us, incumbent, 1.1),
      timed(next(Phase::kSearch, "block_m=32,block_n=64,num_warps=4,num_stages=2"), default_us * 1.5, floor_us,
            incumbent, 0.67),
      timed(next(Phase::kHoldout, standard), default_us, floor_us),
      timed(next(Phase::kHoldout, tuned), default_us / best_speedup, floor_us, incumbent, best_speedup),
  };
}

// A suite of five: four decided, one without any candidate that passed.
inline std::vector<Trial> tuned_suite() {
  std::vector<Trial> all;
  const auto add = [&](const std::vector<Trial>& more) { all.insert(all.end(), more.begin(), more.end()); };
  add(tuned_problem("b1_h8_s512_d64_fp16", "mission", 14.1, 1.31, 1.4, 1));
  add(tuned_problem("b4_h16_s2048_d128_fp16_causal", "canonical_1", 302, 1.12, 92, 11));
  add(tuned_problem("b8_h16_s2048_d128_bf16", "d128_2k", 801, 1.22, 350, 21));
  add(tuned_problem("b1_h32_hk8_sq1_sk32768_d128_bf16", "decode_b1_32k", 51.2, 1.18, 30.9, 31));
  all.push_back(stopped(
      trial(41, Phase::kDefault, "b1_h8_s2048_d64_fp16", "long", "block_m=64,block_n=64,num_warps=4,num_stages=2"),
      Gate::kCompile, GateStatus::kError, Ended::kCrashed,
      "the compiler crashed (signal 11) <script>alert(1)</script>"));
  return all;
}

}  // namespace flashcore::example
