#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE int tid_x() { return flashcore_services->tid(0); }
FC_DEVICE int ctaid_x() { return flashcore_services->ctaid(0); }
FC_DEVICE int nctaid_x() { return flashcore_services->nctaid(0); }

}  // namespace flashcore::ptx
