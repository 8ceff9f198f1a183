#pragma once
#include "kernels/ptx/common.cuh"

namespace flashcore::ptx {

FC_DEVICE void ldmatrix_x4(unsigned (&tiles)[4], SharedAddress row) { flashcore_services->ldmatrix(tiles, row, false); }
FC_DEVICE void ldmatrix_x4_trans(unsigned (&tiles)[4], SharedAddress row) {
  flashcore_services->ldmatrix(tiles, row, true);
}

}  // namespace flashcore::ptx
