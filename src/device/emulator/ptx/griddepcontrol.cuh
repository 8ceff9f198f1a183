#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void griddepcontrol_wait() { flashcore_services->griddepcontrol_wait(); }
FC_DEVICE void griddepcontrol_launch_dependents() { flashcore_services->griddepcontrol_launch_dependents(); }

}  // namespace flashcore::ptx
