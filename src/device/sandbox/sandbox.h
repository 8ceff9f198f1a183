#pragma once
// A sandbox of the platform's own making, for compilers that read others' sources and for others' kernels on the
// emulator. docs/security.md says what it holds.

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/child_process.h"

namespace flashcore::sandbox {

// Seccomp, dropped privileges and limits come with both of the last two.
enum class Means {
  kNone,
  kLandlock,    // no namespaces here: the file system is confined by Landlock alone
  kNamespaces,  // of users, mounts, processes, network and IPC: a root of its own
};

// The best that this machine allows, found out once by trying. FLASHCORE_SANDBOX=landlock or =none asks for less.
Means means();
// Error kEnvironment, with the fix, if means() is kNone. `what` begins the sentence: "the patched kernel tall_tiles".
// `how_to_trust` is what else to do, for whoever has read that code: "give --trust-code".
void require(const std::string& what, const std::string& how_to_trust = "clear KernelSource::foreign");

// Runs a compiler or its like, found on PATH, and waits for it. It reads the system's folders and those it is installed
// in, writes `work` alone, in which it starts, and has neither network nor home nor environment.
ProgramResult run_tool(const std::vector<std::string>& arguments, const std::string& work, double timeout_seconds);

// Starts `program` with `arguments` where it may confine itself by enter_executor(): `channel` becomes its descriptor
// kChannel, the only one open beyond an empty stdin, stdout and stderr. It dies with the calling thread.
constexpr int kChannel = 3;
pid_t start_executor(const std::string& program, const std::vector<std::string>& arguments, int channel);

// In that process: gives up files, network, other processes and most system calls, for good. Returns a path under
// which `image`, a shared object, can still be opened: the only file there is. Error kEnvironment if it cannot.
std::string enter_executor(std::string_view image, Means how);

}  // namespace flashcore::sandbox
