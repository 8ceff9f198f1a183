#pragma once
// PTX ISA, "setmaxnreg": moves registers between the warpgroups of a CTA. The pool is launch registers × threads, not
// the whole file: a sum above it hangs for ever, so why_invalid must know. Every warp of a warpgroup takes part.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

template <int kRegisters>
FC_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
FC_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace flashcore::ptx
