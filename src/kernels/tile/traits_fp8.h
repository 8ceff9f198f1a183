#pragma once
// tile/traits.h for kernels whose q, k and v have 8 bits. Apart from it: what the 16-bit kernels are compiled from, and
// with it the results measured on them, does not change with this. Read by g++ and by NVRTC.

#include "kernels/tile/traits.h"

namespace flashcore {

// Element goes on: the values of core/dtype.h's DType.
inline constexpr Element kElementE4M3 = static_cast<Element>(3);
inline constexpr Element kElementE5M2 = static_cast<Element>(4);

constexpr bool is_8bit(Element element) { return element == kElementE4M3 || element == kElementE5M2; }

// Compile-time facts of an 8-bit problem: template argument of its kernels.
struct Fp8Traits {
  Element element = kElementE4M3;   // of q, k and v
  Element output = Element::kBF16;  // of o: any but fp32
  int head_dim = 64;
  int head_dim_v = 64;
  bool bounded_left = false;
  bool bounded_right = false;

  // What code that is for every element type knows: of q, k and v, or (the epilogue) of o.
  constexpr Traits input_traits() const { return {element, head_dim, head_dim_v, bounded_left, bounded_right}; }
  constexpr Traits output_traits() const { return {output, head_dim, head_dim_v, bounded_left, bounded_right}; }
};

// The factors of one operand, x = factor * stored: one for all, or one for each batch entry and kv head.
struct Descale {
  const float* values;            // on the device; null: 1
  int batch_stride, head_stride;  // 0 and 0: one for all
};

// The parameters of a forward kernel on 8-bit operands:
//   S = scale * descale_q * descale_k * (q · k)    o = descale_v * (softmax(S) · v)    of what q, k and v store
// tile::descale of tile/element_fp8.cuh reads a factor. Each is positive and finite.
struct Fp8ForwardParams {
  ForwardParams problem;
  Descale descale_q, descale_k, descale_v;
};

}  // namespace flashcore
