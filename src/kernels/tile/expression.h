#pragma once
// What the device code of expressions (core/expression_code.h) is handed. Read by g++ and by NVRTC, so it includes
// nothing.

namespace flashcore::expression {

// A tensor that an expression names: floats, 32-bit ints, or conditions as bytes, with its strides in elements.
struct Tensor {
  const void* data;
  long long stride[4];
};

// Of one pair of a query row and a key.
struct Variables {
  float s;
  int b, h, hk, i, j, seqlen_q, seqlen_kv;
};

}  // namespace flashcore::expression
