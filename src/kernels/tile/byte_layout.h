#pragma once
// Bytes of a tile of 8-bit elements (byte_tile.cuh). Read by g++ and by NVRTC: includes nothing.

namespace flashcore::tile {

constexpr int byte_tile_bytes(int rows, int columns, int width) { return (columns + width - 1) / width * rows * width; }

}  // namespace flashcore::tile
