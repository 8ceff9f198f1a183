#pragma once
// PTX ISA, "ldmatrix". Four 8×8 tiles of 16-bit elements; lane 8i+r gives the address of row r of tile i, a multiple of
// 16 bytes. Lane l receives elements (l/4, 2(l%4)) and the next of each tile; .trans of the transposed tile.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void ldmatrix_x4(unsigned (&tiles)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(row));
}

FC_DEVICE void ldmatrix_x4_trans(unsigned (&tiles)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(row));
}

// stmatrix, sm_90: the reverse of ldmatrix_x4.
FC_DEVICE void stmatrix_x4(SharedAddress row, unsigned tile0, unsigned tile1, unsigned tile2, unsigned tile3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(tile0), "r"(tile1),
               "r"(tile2), "r"(tile3)
               : "memory");
}

}  // namespace flashcore::ptx
