#pragma once
// The host's side of quantising (kernel.cuh): what is compiled, how it is cut and launched, and the same work on a CPU.

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "kernels/family.h"
#include "kernels/program.h"
#include "kernels/quantise/params.h"

namespace flashcore::quantise {

// Kernels of the module, as LaunchSpec::kernel; each with and without 16-byte accesses.
enum class Entry : unsigned { kCodesVector, kCodesScalar, kLargestVector, kLargestScalar, kMeansVector, kMeansScalar };

KernelSource source_of(const Kind& kind);

// Sizes as the caller has them, before they are cut.
struct Sizes {
  int batch = 0, heads_q = 0, heads_kv = 0, seqlen_q = 0, seqlen_kv = 0, head_dim = 0, head_dim_v = 0;
  bool by_head = false;  // factors
  bool by_row = false;   // of q and k one for each row, or each so many rows of a head; of v by head
  int rows_of_q = 1, rows_of_k = 1;
  bool rotates = false;
  std::uint64_t seed = 0;  // of the rotation's signs
};

// Everything but addresses, strides and the layout of V: sizes, signs, and who takes which rows.
QuantiseParams params_of(const Sizes& sizes);

// Whether 16 bytes can be moved at once: rows are whole multiples of 16 columns, and so do rows of codes begin;
// addresses and strides of q, k and v are multiples of 16 bytes, and so is the address of the means.
bool fits_vectors(const Kind& kind, const QuantiseParams& params);

// In stream order, without their parameters, which are the QuantiseParams for all; none where there is nothing to do.
// No memory is allocated.
struct Launches {
  std::array<LaunchSpec, 3> all;
  std::size_t count = 0;
};
Launches launches_of(const Kind& kind, const QuantiseParams& params);

// Scratch and counters, for set_workspaces.
std::array<Workspace, 2> workspaces_of(const QuantiseParams& params);
void set_workspaces(QuantiseParams& params, void* scratch, void* counters);

// Waits until it is done. Addresses of the process; no workspaces.
void run_on_cpu(const Kind& kind, const QuantiseParams& params);

}  // namespace flashcore::quantise
