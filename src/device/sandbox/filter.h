#pragma once
// Which system calls a confined process may make: seccomp programs.

#include <linux/filter.h>

#include <vector>

namespace flashcore::sandbox {

// A compiler and what it starts: all calls but those that reach other processes, the network, or the kernel's inside.
// `by_paths`: what must also be refused where no namespace holds the process (Landlock does not cover these).
std::vector<sock_filter> tool_filter(bool by_paths);
// Foreign kernels: computing, memory, threads of its own, reading, writing what is open. Anything that runs a program,
// opens for writing, or speaks to somebody ends the process with SIGSYS. `own_pid`: the caller's, which may signal
// itself.
std::vector<sock_filter> executor_filter(int own_pid);

}  // namespace flashcore::sandbox
