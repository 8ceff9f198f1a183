#pragma once
// Which part of the problem a CTA works on.

#include "kernels/ptx/common.cuh"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

struct TileIndex {
  int batch, head_q, head_kv;
  int first_row;  // of block_m query rows
};

// Tiles of one head are neighbours, so that its K and V stay in L2. Rows run downwards: under a causal mask the last
// rows see the most keys, and long tiles first leaves the short ones to fill the end of the grid.
FC_DEVICE TileIndex tile_at(const ForwardParams& params, int index, int block_m) {
  const int row_tiles = (params.seqlen_q + block_m - 1) / block_m;
  const int head_index = index / row_tiles;
  const int batch = head_index / params.heads_q;
  const int head_q = head_index - batch * params.heads_q;
  const int row_tile = row_tiles - 1 - (index - head_index * row_tiles);
  return {batch, head_q, head_q / (params.heads_q / params.heads_kv), row_tile * block_m};
}

FC_DEVICE int tile_count(const ForwardParams& params, int block_m) {
  return (params.seqlen_q + block_m - 1) / block_m * params.heads_q * params.batch;
}

// A pointer to row 0 of one head of a tensor of 16-bit elements.
FC_DEVICE const unsigned short* head_pointer(const void* tensor, const Strides& strides, int batch, int head) {
  return static_cast<const unsigned short*>(tensor) + batch * strides.batch + head * strides.head;
}

}  // namespace flashcore::tile
