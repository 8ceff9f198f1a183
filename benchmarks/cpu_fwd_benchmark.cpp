// cpu_fwd over typical problems: GFLOP/s and the fraction of this machine's measured FMA peak.
// build/benchmarks/cpu_fwd_benchmark [--benchmark_filter=...]; a problem of your own: FLASHCORE_PROBLEM=<id>,
// a config of your own: FLASHCORE_CONFIG=block_m=96,...
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdlib>

#include "core/data.h"
#include "core/operands.h"
#include "device/cpu/cpu_device.h"
#include "kernels/family.h"

namespace flashcore {
namespace {

Device& device() {
  static const std::unique_ptr<Device> instance = open_cpu_device();
  return *instance;
}

void run_problem(benchmark::State& state, const PlacedProblem& problem) {
  const Family& family = family_by_name("cpu_fwd");
  const DeviceLimits& limits = device().info().limits;
  const char* text = std::getenv("FLASHCORE_CONFIG");
  const ConfigValues config =
      family.space().parse(text ? text : "", family.default_config(problem, limits), family.name());
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  AttentionArgs args;
  args.layouts = make_layouts(problem);
  const auto output = device().allocate(static_cast<std::size_t>(args.layouts.o.span()) * size_of(problem.dtype));
  const auto lse = device().allocate(static_cast<std::size_t>(args.layouts.lse_elements) * sizeof(float));
  args.q = inputs.q.data.data();
  args.k = inputs.k.data.data();
  args.v = inputs.v.data.data();
  args.o = output->data();
  args.lse = static_cast<float*>(lse->data());
  const Launch launch = family.cpu_launch(config, problem, args);
  launch();
  // The mean that the library reports includes every preemption; the best launch shows what the code can do.
  double best = 1e30;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    launch();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const double tflops = problem.flops() / best / 1e12;
  state.counters["best_us"] = best * 1e6;
  state.counters["gflops"] = tflops * 1e3;
  state.counters["of_peak"] = tflops / device().ceilings().fma_tflops_fp32;
  state.counters["gbps"] = problem.bytes() / best / 1e9;
  state.SetLabel(family.space().print(config));
}

const char* const kProblems[] = {
    "b1_h4_s2048_d128_fp32",
    "b1_h4_s2048_d128_bf16",
    "b1_h4_s2048_d128_fp16",
    "b1_h4_s2048_d128_fp32_causal",
    "b1_h8_s1024_d64_fp32",
    "b1_h8_s512_d64_fp16",
    "b2_h8_hk2_s1024_d128_bf16_causal",
    "b1_h4_s1000_d80_fp32",
    "b4_h32_hk8_sq1_sk4096_d128_bf16",
    "b1_h8_sq1_sk16384_d128_fp32",
    "b1_h2_s1024_d256_fp32",
    "b4_h8_s128_d64_fp32",
};

void add(const std::string& id) {
  benchmark::RegisterBenchmark(
      id.c_str(), [problem = PlacedProblem::parse(id)](benchmark::State& state) { run_problem(state, problem); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

const bool registered = [] {
  if (const char* id = std::getenv("FLASHCORE_PROBLEM")) {
    add(id);
  } else {
    for (const char* problem : kProblems) add(problem);
  }
  return true;
}();

}  // namespace
}  // namespace flashcore
