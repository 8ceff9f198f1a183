#pragma once
// What this GPU can do at most, measured in burst: an idle gap, then a few milliseconds.

#include <string>

#include "device/cuda/cuda_memory.h"
#include "device/device.h"

namespace flashcore::cuda {

class CudaDevice;

// matmul_tflops_16bit: wgmma on Hopper (what bounds every kernel there), mma.sync elsewhere. On sm_100 the bound holds
// for kernels built from mma.sync only: tcgen05 goes beyond it.
// read_gbps: 16-byte loads over 4 GiB, or a quarter of the free memory if that is less; cache_read_gbps: over a
// quarter and a half of L2, the faster. Each the best of several bursts, `idle_ms` apart. About three seconds.
Ceilings measure_ceilings(CudaDevice& device, double idle_ms = 100);

// What matmul_tflops_16bit is measured with: "wgmma m64n256k16 of bf16, ...". The shape is the same for all kernels.
std::string words_of_matmul(const DeviceLimits& limits);

// Enqueues `rounds` reads of the first `bytes` of `buffer`, past L1.
void enqueue_read(CudaDevice& device, const CudaBuffer& buffer, std::size_t bytes, unsigned rounds);

}  // namespace flashcore::cuda
