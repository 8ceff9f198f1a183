#pragma once
// Which instruction sets the SIMD sources are compiled for; included before <hwy/foreach_target.h>. Every target costs
// a full compilation, and these bring nothing to fp32 arithmetic over SSE4, AVX2, AVX-512 (and NEON) on such sizes.
// The scalable ones cannot hold vectors in arrays, which the register-blocked kernels need.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
