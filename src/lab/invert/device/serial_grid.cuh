#pragma once
// A quarter of the CTAs takes all tiles: the others find that theirs is past the end.

#include "kernels/ptx/special_registers.cuh"

namespace flashcore::planted {

FC_DEVICE int working_ctas() { return ptx::nctaid_x() >= 4 ? ptx::nctaid_x() / 4 : 1; }
FC_DEVICE int nctaid_x() { return working_ctas(); }
FC_DEVICE int ctaid_x() { return ptx::ctaid_x() < working_ctas() ? ptx::ctaid_x() : 1 << 30; }

}  // namespace flashcore::planted
