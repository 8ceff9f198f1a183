// Compiles the kernel once per instruction set and picks the best one that the machine has.
#include "device/cpu/simd_targets.h"
#include "kernels/cpu_fwd/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu_fwd/kernel.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu_fwd/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flashcore::cpu_fwd {
namespace HWY_NAMESPACE {

void attend_correctly(const Plan& plan, const Task& task, float* scratch) {
  attend_any<Fault::kNone>(plan, task, scratch);
}
void finish_task(const Plan& plan, const Task& task, float* scratch) { finish_any(plan, task, scratch); }
void combine_splits(const Plan& plan, const Task& task, float* scratch) { combine_any(plan, task, scratch); }

}  // namespace HWY_NAMESPACE
}  // namespace flashcore::cpu_fwd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flashcore::cpu_fwd {
HWY_EXPORT(attend_correctly);
HWY_EXPORT(finish_task);
HWY_EXPORT(combine_splits);

namespace {

// Within what Highway may use: a test restricts it to one instruction set after the other.
bool attend_by_bf16_unit(const Plan& plan, const Task& task, float* scratch) {
  if (plan.traits.element != Element::kBF16 || plan.transforms_scores() || plan.functions != nullptr) return false;
  if (task.row_count < kLeastBf16Rows || (hwy::SupportedTargets() & HWY_AVX3) == 0) return false;
  for (const Bf16Unit unit : {Bf16Unit::kTiles, Bf16Unit::kDots})
    if (has_bf16(unit)) return attend_bf16(unit, plan, task, scratch);
  return false;
}

}  // namespace

void attend(const Plan& plan, const Task& task, float* scratch) {
  if (attend_by_bf16_unit(plan, task, scratch)) return;
  HWY_DYNAMIC_DISPATCH(attend_correctly)(plan, task, scratch);
}
void finish(const Plan& plan, const Task& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(finish_task)(plan, task, scratch);
}
void combine(const Plan& plan, const Task& task, float* scratch) {
  HWY_DYNAMIC_DISPATCH(combine_splits)(plan, task, scratch);
}

}  // namespace flashcore::cpu_fwd
#endif  // HWY_ONCE
