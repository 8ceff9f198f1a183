#pragma once
// The emulator's side of kernels/ptx/common.cuh: the same names, run by a host compiler.

#include "device/emulator/services.h"

#define FC_DEVICE inline __attribute__((always_inline))
// Nothing above the kernel but the entry point: one return address tells the whole chain of inlined calls.
#define FC_KERNEL(threads, min_ctas) void
#define FC_OFFSET_OF(type, member) static_cast<unsigned>(__builtin_offsetof(type, member))
#define __grid_constant__

// Set when the module is loaded.
extern "C" const flashcore::emulator::Services* flashcore_services;

namespace flashcore::ptx {

using SharedAddress = unsigned;

FC_DEVICE SharedAddress dynamic_shared() { return flashcore_services->shared_base(); }

template <class Integer>
FC_DEVICE Integer opaque(Integer value) {
  return value;
}

}  // namespace flashcore::ptx
