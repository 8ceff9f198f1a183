#pragma once
// Which machine code a CPU candidate runs: the same sources, compiled with other flags or linked with another library,
// are other code.

#include <string>

namespace flashcore {

// What tells the loaded module (program or library) that holds `address` from every other build of it: its GNU build
// id, or a hash of its file if it was linked without one. Error kEnvironment if there is neither.
std::string module_identity(const void* address);

// Of what computes a CPU candidate in this process: the module that holds flashcore (compiler, flags, families and
// thread pool), Highway's, the OpenMP runtime whose threads it runs on if the process has one (openmp.h), the
// instruction sets that this machine runs, and the number of threads.
std::string cpu_code_identity();

}  // namespace flashcore
