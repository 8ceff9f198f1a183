#pragma once
// A thread writes one entry of the table. Entries without a page become -1, which is nobody's.

#include "kernels/csr/params.h"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"

namespace flashcore::csr {

struct DeviceInts {
  FC_DEVICE int operator()(const int* address) const {
    return static_cast<int>(ptx::bits_of_float(ptx::ld_global_f32(reinterpret_cast<const float*>(address))));
  }
};

FC_DEVICE void store(int* address, int value) {
  ptx::st_global_u32(reinterpret_cast<unsigned*>(address), static_cast<unsigned>(value));
}

FC_KERNEL(kThreads, 1)
make_table(const __grid_constant__ CsrParams params) {
  const int sequence = ptx::ctaid_x() / params.row_ctas, first = ptx::ctaid_x() % params.row_ctas * kThreads;
  const int column = first + ptx::tid_x();
  if (column == 0) store(params.seqused_kv + sequence, keys_of(params, sequence, DeviceInts{}));
  if (column < params.max_pages)
    store(params.block_table + sequence * params.table_stride + column,
          page_of(params, sequence, column, DeviceInts{}));
}

}  // namespace flashcore::csr
