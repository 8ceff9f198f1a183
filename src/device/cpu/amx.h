#pragma once
// Intel's matrix tiles for bf16 (AMX-BF16): whether this process may use them, and how fast they are.

#include <cstdint>

namespace flashcore {

// The machine has AMX-BF16 and AVX512-BF16, and the operating system lets this process use the tiles' registers (asked
// for once, with the first call). It does not where a thread's alternate signal stack is too small to hold them.
bool has_amx();

// Products of tiles that wait for nothing; the floating-point operations done. Only where has_amx().
double amx_loop(std::int64_t iterations);

}  // namespace flashcore
