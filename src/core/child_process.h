#pragma once
// A child process spoken to in lines, with its stderr kept; and a program run to its end. Every read, write and wait
// has a deadline, what a child writes is bounded, and its descendants end with it (core/guarded_process.h).

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/guarded_process.h"

namespace flashcore {

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;
  // A worker's answer is a trial with some hundred samples. A child that writes on and on without a newline is broken.
  static constexpr std::size_t kMaxLine = std::size_t{64} << 20;

  // Starts argv[0] (a path) with only stdin, stdout and stderr open. Error kEnvironment if no process can be started; a
  // program that cannot be executed is a child that exits with code 127.
  explicit ChildProcess(const std::vector<std::string>& argv, std::size_t max_line = kMaxLine);
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  enum class Talk {
    kDone,
    kClosed,     // the child no longer reads, or has closed its stdout: it has ended, is about to, or misbehaves
    kTimeout,    // the deadline has passed
    kCancelled,  // `cancelled` said so; asked 20 times a second
    kFlood,      // it wrote more than `max_line` bytes without a newline
  };
  // Adds the newline. What the child writes meanwhile is kept for read_line.
  Talk send_line(const std::string& line, Clock::time_point deadline, const std::function<bool()>& cancelled);
  Talk read_line(std::string& line, Clock::time_point deadline, const std::function<bool()>& cancelled);

  // What it wrote behind its last newline. Of a worker that is half an answer; of a program with a log, its last words.
  std::string take_unfinished_line();

  void interrupt();  // SIGINT for it and its process group, so that it may save what it has
  void kill();       // and all that descends from it
  // Waits a few seconds for a child that should have ended, then ends it: "was ended by signal SIGSEGV (Segmentation
  // fault)", "exited with code 3", "closed its streams but lived on, and was ended".
  std::string how_it_ended();
  int exit_code() const;      // after how_it_ended(); 128 + the signal if one ended it
  std::string stderr_tail();  // the end of its stderr, trimmed; says how much was cut

 private:
  void pump(bool want_write);
  bool take_line(std::string& line);
  void read_stdout();
  bool read_stderr();

  int to_ = -1, from_ = -1, errors_ = -1;
  std::size_t max_line_;
  bool from_open_ = true, errors_open_ = true;
  std::string pending_;  // stdout read, not yet handed out
  std::size_t searched_ = 0;
  std::string stderr_;
  std::size_t stderr_cut_ = 0;
  bool outlived_ = false;
  std::unique_ptr<GuardedProcess> process_;
};

struct ProgramResult {
  bool started = false;  // found on PATH, and a process could be made
  int exit_code = -1;    // 128 + the signal if one ended it
  std::string output;    // stdout and stderr together, its head if it was long
  std::string stopped;   // why it was ended before its time: "was still running after 240 s and was ended"; else empty
  bool out_of_time = false;  // it was ended after the seconds that it had
};
struct ProgramLimits {
  double seconds = 60;
  std::size_t kept_output = std::size_t{1} << 20;
  std::size_t max_output = std::size_t{256} << 20;  // more is a flood: it is ended
  std::function<bool()> cancelled = {};             // asked 20 times a second; once true, the program is ended
};

// The stdout and stderr of a program on one pipe. The limits hold from here on.
class ProgramOutput {
 public:
  ProgramOutput(int fd, const ProgramLimits& limits);
  // Into result.output, until the program closes it or a limit is met: result.stopped then says which.
  void read_to_its_end(ProgramResult& result);
  // `wait(deadline)` is true once the program has ended, and may be called again. Whoever closed its output and lives
  // on is `stopped`.
  void wait_for_its_program(ProgramResult& result,
                            const std::function<bool(GuardedProcess::Clock::time_point)>& wait) const;

 private:
  int fd_;
  ProgramLimits limits_;
  GuardedProcess::Clock::time_point deadline_;
};

// Runs a program found on PATH, stdin empty, and waits for it. No shell, so no quoting.
ProgramResult run_program(const std::vector<std::string>& argv, const ProgramLimits& limits);

}  // namespace flashcore
