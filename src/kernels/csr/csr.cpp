#include "kernels/csr/csr.h"

namespace flashcore::csr {

KernelSource source_of() {
  KernelSource source;
  source.file = "csr/kernel.cuh";
  source.name_expression = "flashcore::csr::make_table";
  source.threads_per_block = kThreads;
  return source;
}

LaunchSpec launch_of(const CsrParams& params) {
  LaunchSpec launch;
  launch.grid.x = static_cast<unsigned>(params.batch) * static_cast<unsigned>(params.row_ctas);
  launch.block.x = kThreads;
  return launch;
}

void run_on_cpu(const CsrParams& params) {
  const auto load = [](const int* address) { return *address; };
  for (int sequence = 0; sequence < params.batch; ++sequence) {
    params.seqused_kv[sequence] = keys_of(params, sequence, load);
    for (int column = 0; column < params.max_pages; ++column)
      params.block_table[sequence * params.table_stride + column] = page_of(params, sequence, column, load);
  }
}

}  // namespace flashcore::csr
