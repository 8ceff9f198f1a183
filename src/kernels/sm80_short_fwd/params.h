#pragma once
// What the host hands to sm80_short_fwd: little of it, for a launch waits for every line of it, and offsets in units of
// 16 bytes, of which 32 bits reach through 64 GB. Read by g++ and by NVRTC.

#include "kernels/tile/fast_divide.h"

namespace flashcore::sm80_short_fwd {

// A tensor of 16-bit elements; strides in units of 16 bytes.
struct Tensor {
  void* address;
  unsigned batch, head, row;
};

struct Params {
  Tensor q, k, v, o;
  float* lse;  // [batch, heads_q, seqlen_q] or null
  int heads_q, seqlen_q, seqlen_kv;
  int right_offset;  // bounded_right: row i sees keys j <= i + right_offset
  float scale_log2;  // softmax scale * log2(e)
  int group_size;    // query heads of a key head
  int head_tiles;    // tiles of pack_heads that they make
  tile::FastDivide by_head_tiles;
  int left_offset;  // bounded_left: and keys j >= i + left_offset
};

}  // namespace flashcore::sm80_short_fwd
