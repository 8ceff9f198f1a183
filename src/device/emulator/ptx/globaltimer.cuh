#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE unsigned long long globaltimer() { return flashcore_services->globaltimer(); }

}  // namespace flashcore::ptx
