#pragma once
// The small kernels that measuring needs: clock stamps, cache flush, and the loops behind the ceilings. Compiled at run
// time like any family, from source that this file's .cpp holds.

#include <cstdint>

#include "device/artifact.h"
#include "device/compiler.h"

namespace flashcore::cuda {

enum class Microkernel {
  kEmpty,  // nothing: what a launch costs
  kStamp,  // one block per SM notes the SM's cycle counter and the GPU's nanosecond clock
  kFill,   // random bf16 values, so that measured loops do not run on zeros
  kRead,   // reads a buffer, past L1
  kMma,    // mma.sync m16n8k16 bf16 from registers, fp32 accumulate (sm_80 and newer)
  kWgmma,  // wgmma m64n256k16 bf16 from shared memory, fp32 accumulate (sm_90a only)
};

// Each kernel takes one struct, laid out here as on the device.
struct StampParams {
  std::uint64_t out;      // Stamp per slot
  std::uint32_t slots;    // SMs; an SM numbered beyond is not noted
  std::uint32_t hold_ns;  // spins so long first: the host enqueues meanwhile
};
struct Stamp {
  std::uint64_t cycles = 0, nanoseconds = 0;
};
struct FillParams {
  std::uint64_t data, words;  // 32-bit words
};
struct ReadParams {
  std::uint64_t data, vectors;  // 16-byte vectors
  std::uint64_t sink;           // never written in practice; keeps the loads
  std::uint32_t rounds, unused = 0;
};
struct MatmulParams {
  std::uint64_t sink;
  std::uint32_t iterations, unused = 0;
};

inline constexpr int kFillThreads = 256, kReadThreads = 256, kMatmulThreads = 256;
// Of one matrix instruction of the source.
struct MultiplyShape {
  int m, n, k;
  constexpr double flops() const { return 2.0 * m * n * k; }
};
inline constexpr MultiplyShape kMmaShape{16, 8, 16}, kWgmmaShape{64, 256, 16};
inline constexpr double kMmaFlopsPerIteration = 8 * 32 * kMmaShape.flops();      // per block: 8 warps × 32 mma
inline constexpr double kWgmmaFlopsPerIteration = 2 * 16 * kWgmmaShape.flops();  // per block: 2 warpgroups × 16 wgmma

KernelSource microkernel_source(Microkernel kernel);
const SourceMap& microkernel_sources();

}  // namespace flashcore::cuda
