#include "device/emulator/service_table.h"

#include "device/emulator/instructions.h"

namespace flashcore::emulator {

const Services& service_table() {
  static const Services table = {
      .tid = tid,
      .ctaid = ctaid,
      .nctaid = nctaid,
      .load_global = load_global,
      .store_global = store_global,
      .shared_base = shared_base,
      .load_shared = load_shared,
      .store_shared = store_shared,
      .cp_async = cp_async,
      .cp_async_commit = cp_async_commit,
      .cp_async_wait = cp_async_wait,
      .ldmatrix = ldmatrix,
      .mma_m16n8k16 = mma_m16n8k16,
      .shuffle_xor = shuffle_xor,
      .bar_warp_sync = bar_warp_sync,
      .bar_sync = bar_sync,
      .bar_arrive = bar_arrive,
      .ex2 = ex2,
      .lg2 = lg2,
  };
  return table;
}

}  // namespace flashcore::emulator
