#pragma once
// How processes end: finding the program, waiting for it with a deadline, ending it, and saying how it went.

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace flashcore {

// Where execvp would find it, as an absolute path; empty if nowhere. Relative entries of PATH are passed over, for
// nobody's compiler is looked for in the current folder. Asked before a fork, after which nothing may be allocated.
std::string find_program(const std::string& name);

// Until the child `pid` has ended or the deadline; true if it is gone. `status` is then as waitpid gives it, or none
// if somebody else has reaped it (SIGCHLD ignored by the program).
bool wait_until(pid_t pid, std::chrono::steady_clock::time_point deadline, std::optional<int>& status);
// However long it takes.
std::optional<int> wait_for(pid_t pid);
// Kills the child `pid`, and the process group that it leads if it leads one, and waits for it.
std::optional<int> kill_and_wait(pid_t pid);

// What a verb that SIGINT ended adds to its last line. Another process may have sent it: whoever did says that instead.
inline constexpr const char* kStoppedByCtrlC = "; stopped by Ctrl-C";

// "was ended by signal SIGSEGV (Segmentation fault)", "exited with code 3", "ended, nobody knows how".
std::string describe_end(std::optional<int> status);
// As a shell has it: 128 + the signal if one ended it.
int exit_code_of(std::optional<int> status);

}  // namespace flashcore
