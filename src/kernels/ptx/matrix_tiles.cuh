#pragma once
// PTX ISA, "ldmatrix" and "stmatrix": one tile, two tiles, and transposed stores. As in ldmatrix.cuh; lane 8i+r gives
// the address of row r of tile i, and the addresses of lanes beyond the last tile are not looked at.

#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void ldmatrix_x1(unsigned (&tiles)[1], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(tiles[0]) : "r"(row) : "memory");
}
FC_DEVICE void ldmatrix_x1_trans(unsigned (&tiles)[1], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(tiles[0]) : "r"(row) : "memory");
}
FC_DEVICE void ldmatrix_x2(unsigned (&tiles)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(tiles[0]), "=r"(tiles[1])
               : "r"(row)
               : "memory");
}
FC_DEVICE void ldmatrix_x2_trans(unsigned (&tiles)[2], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(tiles[0]), "=r"(tiles[1])
               : "r"(row)
               : "memory");
}

// sm_90.
FC_DEVICE void stmatrix_x1(SharedAddress row, unsigned tile0) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(row), "r"(tile0) : "memory");
}
FC_DEVICE void stmatrix_x1_trans(SharedAddress row, unsigned tile0) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row), "r"(tile0) : "memory");
}
FC_DEVICE void stmatrix_x2(SharedAddress row, unsigned tile0, unsigned tile1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(tile0), "r"(tile1)
               : "memory");
}
FC_DEVICE void stmatrix_x2_trans(SharedAddress row, unsigned tile0, unsigned tile1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(tile0), "r"(tile1)
               : "memory");
}
FC_DEVICE void stmatrix_x4_trans(SharedAddress row, unsigned tile0, unsigned tile1, unsigned tile2, unsigned tile3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(tile0),
               "r"(tile1), "r"(tile2), "r"(tile3)
               : "memory");
}

}  // namespace flashcore::ptx
