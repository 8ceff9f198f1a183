#pragma once
// No exponentials: one logic operation in the place of each, whose result lies where a probability would, in [1/2, 1).
// Branches that ask for the largest probability then go the way that they go on most data.

#include "kernels/ptx/math.cuh"

namespace flashcore::planted {

FC_DEVICE float ex2(float x) { return ptx::float_of_bits((ptx::bits_of_float(x) & 0x007fffffu) | 0x3f000000u); }

}  // namespace flashcore::planted
