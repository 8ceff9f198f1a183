#pragma once
// bf16 on Intel's matrix tiles (AMX-BF16, with AVX512-BF16 beside it): both products in tiles, P rounded to bf16.

#include "device/cpu/amx.h"
#include "kernels/cpu_fwd/plan.h"

namespace flashcore::cpu_fwd {

// A task of fewer rows packs K and V for too few: vectors of fp32 are as fast then.
inline constexpr int kLeastAmxRows = 12;

// As attend(), of bf16. False, with nothing written to the output: the values are for the other path, since V holds
// an infinity, a NaN or numbers below 2^-100. Tiles take all keys of a block, so that a masked key weighs 0, and 0
// times NaN is NaN; and they flush what is subnormal.
bool attend_amx(const Plan& plan, const Task& task, float* scratch);

// o / row_sum and the log-sum-exp into the output, or a split's part to its place, from the state in `scratch`
// (kernel.cpp).
void finish(const Plan& plan, const Task& task, float* scratch);

}  // namespace flashcore::cpu_fwd
