#pragma once
// A child process spoken to in lines, with its stderr kept.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace flashcore {

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts argv[0] with only stdin, stdout and stderr open, in a process group of its own (Ctrl-C is for the parent to
  // handle), to be killed when the calling thread ends. Error kEnvironment if it cannot be started.
  explicit ChildProcess(const std::vector<std::string>& argv);
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // False if the child no longer reads. Adds the newline.
  bool send_line(const std::string& line);

  enum class Read { kLine, kEnd, kTimeout, kCancelled };
  // Waits for a line of its stdout. kEnd: stdout closed; the child has ended or is about to.
  Read read_line(std::string& line, Clock::time_point deadline, const std::function<bool()>& cancelled);

  void kill();                     // and waits for it
  std::string how_it_ended();      // waits: "was ended by signal SIGSEGV (Segmentation fault)", "exited with code 3"
  std::string last_words() const;  // the end of its stderr, trimmed

 private:
  void drain_stderr();
  bool take_line(std::string& line);

  int pid_ = -1;
  int to_ = -1, from_ = -1, errors_ = -1;
  std::optional<int> status_;
  std::string pending_;  // stdout read, not yet handed out
  std::string stderr_;
};

}  // namespace flashcore
