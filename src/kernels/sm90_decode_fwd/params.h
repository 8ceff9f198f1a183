#pragma once
// What the host hands to sm90_decode_fwd. Read by g++ and by NVRTC.

#include "kernels/tile/traits.h"

namespace flashcore::sm90_decode_fwd {

// `Map` is ptx::TensorMap on the device and 128 bytes to be encoded on the host.
template <class Map>
struct Params {
  Map q, k, v;  // 4-D: column, row, head, batch; boxes of 64 columns
  ForwardParams problem;
  int group_size;      // query heads of a key head
  int head_tiles;      // tiles of pack_heads that they make
  int tiles;           // of all sequences and key heads
  int tile_blocks;     // of block_n keys, of one tile
  int share, rest;     // of all blocks: CTA i works on share + (i < rest) of them, in order
  int warps;           // that have rows
  unsigned* counters;  // the workspace. Of a tile: parts that have arrived; zero between launches
  int parts_offset;    // bytes from there to two parts of each CTA: of the tile that it starts in the middle of, of the
                       // one that it does not finish
};

}  // namespace flashcore::sm90_decode_fwd
