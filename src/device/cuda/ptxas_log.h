#pragma once
// What ptxas says about one kernel under --ptxas-options=-v.

#include <string>
#include <string_view>
#include <vector>

namespace flashcore::cuda {

struct PtxasReport {
  bool found = false;  // the log speaks of this kernel
  int registers = 0, spill_store_bytes = 0, spill_load_bytes = 0;
  int stack_bytes = 0;  // with what its callees use, where ptxas gives the sum
  int static_shared_bytes = 0, barriers = 0;
  std::vector<std::string> warnings;  // of the whole compilation, trimmed, each once
};

// Only the lines of entry `symbol` count: a device function that was not inlined has figures of its own. Its stack
// still shows, in the entry's cumulative stack size.
PtxasReport parse_ptxas_log(std::string_view log, std::string_view symbol);

}  // namespace flashcore::cuda
