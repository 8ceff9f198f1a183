#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void ldmatrix_x1(unsigned (&tiles)[1], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, 1, row, false);
}
FC_DEVICE void ldmatrix_x1_trans(unsigned (&tiles)[1], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, 1, row, true);
}
FC_DEVICE void ldmatrix_x2(unsigned (&tiles)[2], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, 2, row, false);
}
FC_DEVICE void ldmatrix_x2_trans(unsigned (&tiles)[2], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, 2, row, true);
}
FC_DEVICE void stmatrix_x1(SharedAddress row, unsigned tile0) {
  const unsigned tiles[] = {tile0};
  flashcore_services->stmatrix(row, tiles, 1, false);
}
FC_DEVICE void stmatrix_x1_trans(SharedAddress row, unsigned tile0) {
  const unsigned tiles[] = {tile0};
  flashcore_services->stmatrix(row, tiles, 1, true);
}
FC_DEVICE void stmatrix_x2(SharedAddress row, unsigned tile0, unsigned tile1) {
  const unsigned tiles[] = {tile0, tile1};
  flashcore_services->stmatrix(row, tiles, 2, false);
}
FC_DEVICE void stmatrix_x2_trans(SharedAddress row, unsigned tile0, unsigned tile1) {
  const unsigned tiles[] = {tile0, tile1};
  flashcore_services->stmatrix(row, tiles, 2, true);
}
FC_DEVICE void stmatrix_x4_trans(SharedAddress row, unsigned tile0, unsigned tile1, unsigned tile2, unsigned tile3) {
  const unsigned tiles[] = {tile0, tile1, tile2, tile3};
  flashcore_services->stmatrix(row, tiles, 4, true);
}

}  // namespace flashcore::ptx
