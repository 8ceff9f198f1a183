#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void ldmatrix_x4(unsigned (&tiles)[4], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, 4, row, false);
}
FC_DEVICE void ldmatrix_x4_trans(unsigned (&tiles)[4], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, 4, row, true);
}
FC_DEVICE void stmatrix_x4(SharedAddress row, unsigned tile0, unsigned tile1, unsigned tile2, unsigned tile3) {
  const unsigned tiles[] = {tile0, tile1, tile2, tile3};
  flashcore_services->stmatrix(row, tiles, 4, false);
}

}  // namespace flashcore::ptx
