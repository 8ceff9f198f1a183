#pragma once
// A trial with every field set to something that is not its default.

#include <limits>

#include "lab/record/trial.h"

namespace flashcore::test {

inline Trial sample_trial() {
  Trial t;
  t.run = "run-1";
  t.created_at = "2025-01-02T03:04:05.678Z";
  t.phase = Phase::kHoldout;
  t.suite = "quick";
  t.problem_name = "mission";
  t.problem.dtype = DType::kBF16;
  t.problem.heads_q = 8;
  t.problem.heads_kv = 2;
  t.problem.seqlen_q = 17;
  t.problem.seqlen_kv = 65;
  t.problem.mask = Mask::causal();
  t.device.key = "h200";
  t.device.name = "NVIDIA H200";
  t.device.id = "cuda:0";
  t.device.memory_bytes = 150'000'000'000;
  t.device.driver = "580.1";
  t.device.limits = {DeviceKind::kCuda, 90, 132, 232448, 233472, 65536, 1024, 2048, 50 << 20, 1980, 4800.5};
  t.family = "sm80_fwd";
  t.config = "block_m=64,block_n=32";
  t.source_hash = "0123abcd";
  t.seed = std::numeric_limits<std::uint64_t>::max();
  Artifact a;
  a.symbol = "_Z7forward";
  a.arch = "sm_90";
  a.registers = 168;
  a.warnings = {"C7510: \"quoted\"\nsecond line"};
  a.code_hash = "feed";
  a.compile_ms = 123.456;
  t.artifact = a;
  t.gates = {{Gate::kValid, GateStatus::kPassed, "", nullptr},
             {Gate::kCorrectness,
              GateStatus::kFailed,
              "row 3 is NaN",
              {{"rel", std::numeric_limits<double>::quiet_NaN()},
               {"rows", {1, 2.5, -std::numeric_limits<double>::infinity()}}}}};
  t.error = OutputError{.rel = 0.1,
                        .worst_row_rel = std::numeric_limits<double>::infinity(),
                        .max_abs = 1.0 / 3,
                        .scale = 0.01,
                        .bias = -1e-300,
                        .lse_max_abs = 5,
                        .lse_bias = -2e-7,
                        .lse_rms = 3e-7,
                        .lse_share = 0.25,
                        .nonfinite = 7,
                        .first_bad_row = 3};
  t.bound = ErrorBound{1e-3, 2e-3, 3e-3};
  Timing timing;
  timing.p10_us = 1.1;
  timing.p50_us = 1.0 / 3;
  timing.p90_us = std::numeric_limits<double>::quiet_NaN();
  timing.samples = {{1.25, 1755}, {std::numeric_limits<double>::infinity(), 0}};
  timing.launches_per_sample = 20;
  timing.regime = Regime::kCold;
  timing.condition = Condition::kSustained;
  timing.floor_us = 0.5;
  timing.kcycles = 12.5;
  t.timing = timing;
  t.comparison = Comparison{
      "ref_fwd:", 2, -std::numeric_limits<double>::infinity(), 3, SpeedVerdict::kInconclusive, 4, 0.02, 0.5, 0.07};
  t.environment.clock_sm_mhz = 1755;
  t.environment.throttle_reasons = "none";
  t.ended = Ended::kIncorrect;
  t.message = "compiler said \xff\xfe and then inf";
  return t;
}

}  // namespace flashcore::test
