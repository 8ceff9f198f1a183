#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE int tid_x() { return flashcore_services->tid(0); }
FC_DEVICE int ctaid_x() { return flashcore_services->ctaid(0); }
FC_DEVICE int ctaid_y() { return flashcore_services->ctaid(1); }
FC_DEVICE int ctaid_z() { return flashcore_services->ctaid(2); }
FC_DEVICE int nctaid_z() { return flashcore_services->nctaid(2); }
FC_DEVICE int nctaid_x() { return flashcore_services->nctaid(0); }

}  // namespace flashcore::ptx
