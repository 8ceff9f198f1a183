#pragma once
// Artifact: a compiled candidate and the facts the resource gate judges.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

// Device sources, path below src/kernels -> text; and core/band.h, the one file of another folder that they include.
using SourceMap = std::map<std::string, std::string>;

// A further kernel of a module.
struct KernelEntry {
  std::string name_expression;
  int dynamic_shared_bytes = 0;
  int threads_per_block = 0;
};

// What to hand to the run-time compiler. Headers are looked up among `sources` (path -> text), never on disk.
struct KernelSource {
  std::string file;             // "sm80_fwd/kernel.cuh", a key of the embedded sources
  std::string name_expression;  // "flashcore::sm80_fwd::forward<...>"
  int dynamic_shared_bytes = 0;
  int threads_per_block = 0;
  std::vector<std::string> options;  // beyond the defaults
  bool foreign = false;              // somebody else wrote it: no host compiler sees it outside of a sandbox
  // Kernels 1, 2, ... of the module (LaunchSpec::kernel), found in the same file.
  std::vector<KernelEntry> more_kernels = {};
  SourceMap headers = {};  // text made for this problem, in the place of the sources of the same paths

  // The last two, to be hashed by whatever knows a kernel by its file and name; empty where there are none.
  std::string extras() const;
};
// With the headers in their places.
SourceMap sources_of(const KernelSource& kernel, const SourceMap& sources);

// Of one kernel, as its compiler reports it.
struct KernelFacts {
  std::string symbol;  // mangled name
  int registers = 0;   // per thread
  int spill_store_bytes = 0, spill_load_bytes = 0;
  int stack_bytes = 0;  // a register array indexed at run time shows here with zero spills
  int static_shared_bytes = 0, dynamic_shared_bytes = 0;
  int barriers = 0;
  int threads_per_block = 0;
};

// The module's facts are those of its first kernel, which does the work.
struct Artifact : KernelFacts {
  std::string cubin;                      // ELF image; empty for a CPU candidate
  std::string arch;                       // "sm_90a"; "cpu"
  std::vector<KernelFacts> more_kernels;  // as in KernelSource
  std::vector<std::string> warnings;      // ptxas warnings, C7508/C7510/... included
  // Of a foreign kernel for a real GPU: variables that a launch leaves changed (device/cuda/ptx_state.h), mangled.
  std::vector<std::string> kept_variables = {};
  std::string code_hash;  // of the machine code (.text sections): equal code, equal hash, whatever the config
  std::string compiler;   // Compiler::identity() of who made it; empty: an older flashcore, which did not say
  double compile_ms = 0;  // of the compilation, also when it came from the cache
  bool from_cache = false;
  bool foreign = false;  // as KernelSource: on the host it runs in a sandbox alone
};
// Facts only: no cubin.
void to_json(nlohmann::json& json, const Artifact& artifact);
void from_json(const nlohmann::json& json, Artifact& artifact);

}  // namespace flashcore
