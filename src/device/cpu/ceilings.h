#pragma once
// What this machine can do at most: the loops behind Device::ceilings() of the CPU.

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"

namespace flashcore {

// Measured on all threads of cpu_thread_pool(), takes about a second.
Ceilings measure_cpu_ceilings(std::int64_t last_level_cache_bytes, std::int64_t memory_bytes);

// Reads all of `bytes` (64-byte aligned) once with vector loads on this thread; the sum keeps the loads alive.
float read_through(std::span<const std::byte> bytes);

// The instruction set that dynamic dispatch picks here: "AVX3", "AVX2", "SSE4", "NEON", "SCALAR".
const char* simd_target_name();

}  // namespace flashcore
