#pragma once
// Function markers of device code. Device code includes only ptx/, tile/ and its own folder: no CUDA header, so NVRTC
// needs no include path, and a host compiler can be given other ptx/ headers with the same names.

#define FC_DEVICE __device__ __forceinline__
#define FC_KERNEL(threads, min_ctas) __global__ void __launch_bounds__(threads, min_ctas)
// offsetof without <cstddef>; folds to a constant.
#define FC_OFFSET_OF(type, member) \
  static_cast<unsigned>(reinterpret_cast<unsigned long long>(&reinterpret_cast<type*>(0ull)->member))

namespace flashcore::ptx {

// An address in the shared window of the CTA, in bytes.
using SharedAddress = unsigned;

// The start of the CTA's dynamic shared memory: the one way to reach shared memory.
FC_DEVICE SharedAddress dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char flashcore_dynamic_shared[];
  return static_cast<unsigned>(__cvta_generic_to_shared(flashcore_dynamic_shared));
}

// The same value, of which the compiler knows nothing: what is computed from it stays where it stands. ptxas hoists
// address arithmetic out of loops until accumulators spill; one instruction per use is cheaper.
template <class Integer>
FC_DEVICE Integer opaque(Integer value) {
  if constexpr (sizeof(Integer) == 8) asm volatile("" : "+l"(value));
  else asm volatile("" : "+r"(value));
  return value;
}

}  // namespace flashcore::ptx
