#pragma once
// Every TMA load takes its columns from the first rows of the first head: what it reads is in L2 after the first one.

#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/tma.cuh"

namespace flashcore::planted {

FC_DEVICE void tma_load_4d(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                           int column, int, int, int) {
  ptx::tma_load_4d(destination, map, barrier, column, 0, 0, 0);
}
FC_DEVICE void tma_load_4d_multicast(ptx::SharedAddress destination, const ptx::TensorMap& map,
                                     ptx::SharedAddress barrier, int column, int, int, int, unsigned short ctas) {
  ptx::tma_load_4d_multicast(destination, map, barrier, column, 0, 0, 0, ctas);
}

}  // namespace flashcore::planted
