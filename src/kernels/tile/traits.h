#pragma once
// What a kernel knows of its problem at compile time, and what it is handed at run time. Read by g++ and by NVRTC, so
// it includes nothing.

namespace flashcore {

enum class Element : int { kF32, kF16, kBF16 };

// Compile-time problem facts: template argument of every kernel, next to its Config.
struct Traits {
  Element element = Element::kF16;
  int head_dim = 64;    // of q and k
  int head_dim_v = 64;  // of v and o
  // The mask (core/band.h): which sides of the band are bounded.
  bool bounded_left = false;
  bool bounded_right = false;
};

// What a family's why_invalid may depend on besides its Config and Traits. A freestanding copy of DeviceLimits.
struct Limits {
  int arch = 80;
  int multiprocessors = 1;
  int shared_bytes_per_block = 0;
  int shared_bytes_per_multiprocessor = 0;
  int registers_per_multiprocessor = 0;
  int max_threads_per_block = 0;
};

// Strides in elements; the column stride is 1.
struct Strides {
  long long batch, head, row;
};

// The one parameter of every forward kernel.
struct ForwardParams {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;  // [batch, heads_q, seqlen_q] or null
  Strides q_stride, k_stride, v_stride, o_stride;
  int batch, heads_q, heads_kv;
  int seqlen_q, seqlen_kv;
  int right_offset;  // bounded_right: row i sees keys j <= i + right_offset
  int left_offset;   // bounded_left: and keys j >= i + left_offset
  float scale_log2;  // softmax scale * log2(e), folded into exp2
};

}  // namespace flashcore
