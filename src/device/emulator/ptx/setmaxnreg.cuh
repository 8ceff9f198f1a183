#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

template <int kRegisters>
FC_DEVICE void setmaxnreg_inc() {
  flashcore_services->setmaxnreg(kRegisters, true);
}
template <int kRegisters>
FC_DEVICE void setmaxnreg_dec() {
  flashcore_services->setmaxnreg(kRegisters, false);
}

}  // namespace flashcore::ptx
