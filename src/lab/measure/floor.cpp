#include "lab/measure/floor.h"

#include <algorithm>

namespace flashcore {

double floor_us(const Problem& problem, const DeviceInfo& device, const Ceilings& ceilings) {
  // A CPU's matrix tiles take bf16, where it has them.
  const bool tensor_cores = device.limits.kind == DeviceKind::kCuda
                                ? problem.dtype != DType::kF32
                                : problem.dtype == DType::kBF16 && ceilings.matmul_tflops_16bit > 0;
  // Every tensor core that takes 8-bit floats multiplies them at twice the rate of 16-bit ones.
  const double rate = problem.is_8bit() ? 2 : 1;
  const double tflops = tensor_cores ? rate * ceilings.matmul_tflops_16bit : ceilings.fma_tflops_fp32;
  // What the last-level cache can keep need not move again between launches on the same inputs.
  const double must_move = std::max(0.0, problem.bytes() - static_cast<double>(device.limits.l2_bytes));
  const double compute_us = tflops > 0 ? problem.flops() / tflops * 1e-6 : 0;
  const double memory_us = ceilings.read_gbps > 0 ? must_move / ceilings.read_gbps * 1e-3 : 0;
  // A GPU keeps nothing closer than L2 from one launch to the next, so that all of it passes there. A CPU's cores keep
  // what fits their own caches: half of the last level's rate, which is what is measured, is no bound for that (512
  // keys of fp32 are read up to twice as fast).
  const bool passes_cache = device.limits.kind == DeviceKind::kCuda && ceilings.cache_read_gbps > 0;
  const double cache_us = passes_cache ? problem.bytes() / ceilings.cache_read_gbps * 1e-3 : 0;
  return std::max({compute_us, memory_us, cache_us}) + ceilings.empty_launch_us;
}

}  // namespace flashcore
