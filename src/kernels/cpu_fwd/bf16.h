#pragma once
// bf16 on instructions that multiply bf16: both products in them, summed in fp32, P rounded to bf16.

#include "device/cpu/bf16_units.h"
#include "kernels/cpu_fwd/plan.h"

namespace flashcore::cpu_fwd {

// A task of fewer rows packs K and V for too few: vectors of fp32 are as fast then.
inline constexpr int kLeastBf16Rows = 12;

// As attend(), of bf16, on a unit that the machine has. False, with nothing written to the output: the values are for
// the other path, since V holds an infinity, a NaN or numbers below 2^-100. The instructions take all keys of a block,
// so that a masked key weighs 0, and 0 times NaN is NaN; and they flush what is subnormal.
bool attend_bf16(Bf16Unit unit, const Plan& plan, const Task& task, float* scratch);

// o / row_sum and the log-sum-exp into the output, or a split's part to its place, from the state in `scratch`
// (kernel.cpp).
void finish(const Plan& plan, const Task& task, float* scratch);

}  // namespace flashcore::cpu_fwd
