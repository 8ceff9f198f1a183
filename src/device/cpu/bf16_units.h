#pragma once
// Instructions of a CPU that multiply bf16 and add fp32: whether this process may use them, and how fast they are.

#include <cstdint>

namespace flashcore {

// Intel's matrix tiles (AMX-BF16), or the dot products of AVX512-BF16 on 16 lanes of two.
enum class Bf16Unit { kDots, kTiles };

// Of kTiles: the machine has AMX-BF16 and AVX512-BF16, and the operating system lets this process use the tiles'
// registers (asked for once, with the first call). It does not where a thread's alternate signal stack is too small to
// hold them.
bool has_bf16(Bf16Unit unit);

// Products that wait for nothing; the floating-point operations done. Only where has_bf16(unit).
double bf16_loop(Bf16Unit unit, std::int64_t iterations);

}  // namespace flashcore
