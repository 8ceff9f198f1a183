#pragma once
// Artifact: a compiled candidate and the facts the resource gate judges.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore {

// What to hand to the run-time compiler. Headers are looked up among `sources` (path -> text), never on disk.
struct KernelSource {
  std::string file;             // "sm80_fwd/kernel.cuh", a key of the embedded sources
  std::string name_expression;  // "flashcore::sm80_fwd::forward<...>"
  int dynamic_shared_bytes = 0;
  int threads_per_block = 0;
  std::vector<std::string> options;  // beyond the defaults
  bool foreign = false;              // somebody else wrote it: no host compiler sees it outside of a sandbox
};

struct Artifact {
  std::string cubin;   // ELF image; empty for a CPU candidate
  std::string symbol;  // mangled kernel name
  std::string arch;    // "sm_90a"; "cpu"
  int registers = 0;   // per thread
  int spill_store_bytes = 0, spill_load_bytes = 0;
  int stack_bytes = 0;  // a register array indexed at run time shows here with zero spills
  int static_shared_bytes = 0, dynamic_shared_bytes = 0;
  int barriers = 0;
  int threads_per_block = 0;
  std::vector<std::string> warnings;  // ptxas warnings, C7508/C7510/... included
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
