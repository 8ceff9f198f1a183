#pragma once
// A child process that outlives neither its parent nor its use, and leaves nothing running behind it.
//
// Between this process and the child there is a guard: a fork that only waits. It is the reaper of all that descends
// from the child (PR_SET_CHILD_SUBREAPER). When the child ends, when end() asks, or when this process dies, the guard
// kills the child's process group and every orphan that comes to it, and ends as the child did (exit code or signal).
// The guard shares the memory of the moment of its fork: start one before filling memory that changes.
//
// HACKING.md ("Why our own") says what the libraries for it lack.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace flashcore {

class GuardedProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // Runs `body` in the child, in a process group of its own (Ctrl-C is for the parent to handle) and with the caller's
  // descriptors. A body that returns ends the child with exit code 0; no destructors run there. In a process that has
  // threads the body may make async-signal-safe calls only. The child is killed when the calling *thread* ends.
  // Error kEnvironment if no process can be started.
  // A body that becomes a program need not wait, as fork() does, for other threads to leave what fork handlers guard: a
  // kernel of the emulator asks for a program while its launch is inside the library (api/fork_gate.h).
  enum class Body { kBecomesProgram, kRunsOn };
  GuardedProcess(Body kind, const std::function<void()>& body);
  ~GuardedProcess();  // end()
  GuardedProcess(GuardedProcess&& other) noexcept;
  GuardedProcess& operator=(GuardedProcess&& other) noexcept;

  // Until the child has ended or the deadline: true if it has ended.
  bool wait(Clock::time_point deadline);
  // SIGINT for the child's process group, as Ctrl-C on a terminal would send. Returns at once.
  void interrupt();
  // Kills the child and what descends from it. Returns within seconds, whatever they do.
  void end();
  // "was ended by signal SIGSEGV (Segmentation fault)", "exited with code 3"; after wait() or end().
  std::string how_it_ended() const;
  // As waitpid gives it; none while it runs, and none if somebody else has reaped it (SIGCHLD ignored by the program).
  std::optional<int> status() const { return status_; }

 private:
  pid_t guard_ = -1, child_ = -1;  // guard_ < 0: nothing to wait for
  std::optional<int> status_;
};

// In the child, before exec: standard streams from these descriptors, every other one closed, signals as a fresh
// program expects them. Then `path` runs; a failure is a line on `err` and exit code 127. Async-signal-safe.
[[noreturn]] void exec_program(const char* path, const char* const* argv, int in, int out, int err);

}  // namespace flashcore
