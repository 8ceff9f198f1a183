#include "core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"
#include "core/process_end.h"

namespace flashcore {
namespace {

constexpr std::size_t kKeptStderr = 4096;
constexpr int kPollMs = 50;  // how often `cancelled` is asked
constexpr const char* kWasInterrupted = "was interrupted and ended";
// Of a child that has closed its streams: a process with a GPU context or a core to dump takes a moment.
constexpr std::chrono::seconds kGrace{5};

void close_if_open(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// The pipes of a child, closed with the object.
struct Pipe {
  int read = -1, write = -1;
  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  ~Pipe() {
    close_if_open(read);
    close_if_open(write);
  }
};

std::vector<const char*> raw_arguments(const std::vector<std::string>& argv) {
  std::vector<const char*> raw;
  for (const std::string& argument : argv) raw.push_back(argument.c_str());
  raw.push_back(nullptr);
  return raw;
}

[[noreturn]] void throw_no_pipe() {
  throw_environment("cannot open a pipe to a child process: {}; raise the limit of open files (ulimit -n)",
                    strerror(errno));
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& argv, std::size_t max_line) : max_line_(max_line) {
  const std::vector<const char*> raw = raw_arguments(argv);
  // stdin is a socket, because send() can be told not to raise SIGPIPE when the child has died and write() cannot.
  int in[2] = {-1, -1};
  Pipe out, err;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0) throw_no_pipe();
  Pipe input{in[0], in[1]};
  if (!out.open() || !err.open()) throw_no_pipe();
  process_ = std::make_unique<GuardedProcess>(GuardedProcess::Body::kBecomesProgram, [&] {
    exec_program(raw[0], raw.data(), input.write, out.write, err.write);
  });
  to_ = std::exchange(input.read, -1);
  from_ = std::exchange(out.read, -1);
  errors_ = std::exchange(err.read, -1);
  for (const int fd : {to_, from_, errors_}) fcntl(fd, F_SETFL, O_NONBLOCK);
}

ChildProcess::~ChildProcess() {
  kill();
  close_if_open(to_);
  close_if_open(from_);
  close_if_open(errors_);
}

// One look at all three streams, one read of each that has something: a flood of one must not keep the caller from its
// deadline, nor a full pipe keep the child from reading.
void ChildProcess::pump(bool want_write) {
  const bool room = pending_.size() <= max_line_;
  pollfd fds[3] = {{from_open_ && room ? from_ : -1, POLLIN, 0},
                   {errors_open_ ? errors_ : -1, POLLIN, 0},
                   {want_write ? to_ : -1, POLLOUT, 0}};
  if (poll(fds, 3, kPollMs) <= 0) return;
  if (fds[1].revents != 0) read_stderr();
  if (fds[0].revents != 0) read_stdout();
}

void ChildProcess::read_stdout() {
  char chunk[1 << 16];
  const ssize_t n = read(from_, chunk, sizeof chunk);
  if (n > 0) pending_.append(chunk, static_cast<std::size_t>(n));
  else if (n == 0 || (errno != EINTR && errno != EAGAIN)) from_open_ = false;
}

// False once there is nothing more for now.
bool ChildProcess::read_stderr() {
  char chunk[1 << 16];
  const ssize_t n = read(errors_, chunk, sizeof chunk);
  if (n <= 0) {
    if (n == 0 || (errno != EINTR && errno != EAGAIN)) errors_open_ = false;
    return false;
  }
  stderr_.append(chunk, static_cast<std::size_t>(n));
  if (stderr_.size() > 2 * kKeptStderr) {
    stderr_cut_ += stderr_.size() - kKeptStderr;
    stderr_.erase(0, stderr_.size() - kKeptStderr);
  }
  return true;
}

ChildProcess::Talk ChildProcess::send_line(const std::string& line, Clock::time_point deadline,
                                           const std::function<bool()>& cancelled) {
  const std::string whole = line + "\n";
  for (std::size_t sent = 0; sent < whole.size();) {
    if (cancelled && cancelled()) return Talk::kCancelled;
    const ssize_t n = send(to_, whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    if (n == 0 || (errno != EINTR && errno != EAGAIN)) return Talk::kClosed;
    if (Clock::now() >= deadline) return Talk::kTimeout;
    pump(true);
  }
  return Talk::kDone;
}

bool ChildProcess::take_line(std::string& line) {
  const std::size_t end = pending_.find('\n', searched_);
  searched_ = pending_.size();
  if (end == std::string::npos) return false;
  line = pending_.substr(0, end);
  pending_.erase(0, end + 1);
  searched_ = 0;
  return true;
}

ChildProcess::Talk ChildProcess::read_line(std::string& line, Clock::time_point deadline,
                                           const std::function<bool()>& cancelled) {
  for (;;) {
    // Before a line is handed out: a child that writes lines on and on must not outwrite its deadline either.
    if (cancelled && cancelled()) return Talk::kCancelled;
    if (Clock::now() >= deadline) return Talk::kTimeout;
    if (take_line(line)) return Talk::kDone;
    if (pending_.size() > max_line_) return Talk::kFlood;
    if (!from_open_) return Talk::kClosed;
    pump(false);
  }
}

std::string ChildProcess::take_unfinished_line() {
  searched_ = 0;
  return std::exchange(pending_, {});
}

void ChildProcess::interrupt() { process_->interrupt(); }

void ChildProcess::kill() { process_->end(); }

std::string ChildProcess::how_it_ended() {
  // It may be blocked on a full stderr: read on while it is given its moment.
  const auto deadline = Clock::now() + kGrace;
  while (!process_->wait(Clock::now() + std::chrono::milliseconds(kPollMs))) {
    read_stderr();
    if (Clock::now() < deadline) continue;
    process_->end();
    outlived_ = true;
  }
  return outlived_ ? "closed its streams but lived on, and was ended" : process_->how_it_ended();
}

int ChildProcess::exit_code() const { return exit_code_of(process_->status()); }

std::string ChildProcess::stderr_tail() {
  // What a pipe holds, and no more: a descendant that cannot be killed may still be writing.
  for (int i = 0; i < 32 && errors_open_ && read_stderr(); ++i) {
  }
  const std::size_t end = stderr_.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "";
  const std::size_t from = end + 1 > kKeptStderr ? end + 1 - kKeptStderr : 0;
  const std::size_t cut = stderr_cut_ + from;
  return (cut > 0 ? fmt::format("[{} bytes of its stderr cut] ", cut) : "") + stderr_.substr(from, end + 1 - from);
}

ProgramOutput::ProgramOutput(int fd, const ProgramLimits& limits)
    : fd_(fd),
      limits_(limits),
      deadline_(GuardedProcess::Clock::now() + std::chrono::duration_cast<GuardedProcess::Clock::duration>(
                                                   std::chrono::duration<double>(limits.seconds))) {}

void ProgramOutput::read_to_its_end(ProgramResult& result) {
  std::size_t total = 0;
  for (bool closed = false; !closed && result.stopped.empty();) {
    pollfd fd{fd_, POLLIN, 0};
    if (poll(&fd, 1, kPollMs) > 0) {
      char chunk[4096];  // small: the emulator calls this on the stack of one of its fibers
      const ssize_t got = read(fd_, chunk, sizeof chunk);
      if (got == 0 || (got < 0 && errno != EINTR)) closed = true;
      if (got > 0) {
        total += static_cast<std::size_t>(got);
        const std::size_t room = limits_.kept_output - std::min(limits_.kept_output, result.output.size());
        result.output.append(chunk, std::min(room, static_cast<std::size_t>(got)));
      }
    }
    if (!closed && limits_.cancelled && limits_.cancelled()) result.stopped = kWasInterrupted;
    else if (total > limits_.max_output)
      result.stopped = fmt::format("wrote more than {} bytes and was ended", limits_.max_output);
    else if (!closed && GuardedProcess::Clock::now() >= deadline_) {
      result.stopped = fmt::format("was still running after {:g} s and was ended", limits_.seconds);
      result.out_of_time = true;
    }
  }
  if (total > result.output.size())
    result.output += fmt::format("\n[{} bytes more of its output cut]", total - result.output.size());
}

void ProgramOutput::wait_for_its_program(ProgramResult& result,
                                         const std::function<bool(GuardedProcess::Clock::time_point)>& wait) const {
  if (!result.stopped.empty()) return;
  // Closed, but alive: it has the rest of its time, and at least a moment.
  const auto until = std::max(deadline_, GuardedProcess::Clock::now() + kGrace);
  const auto soon = [] { return GuardedProcess::Clock::now() + std::chrono::milliseconds(kPollMs); };
  while (!wait(limits_.cancelled ? std::min(until, soon()) : until)) {
    if (limits_.cancelled && limits_.cancelled()) result.stopped = kWasInterrupted;
    else if (!limits_.cancelled || GuardedProcess::Clock::now() >= until)
      result.stopped = fmt::format("closed its output but lived on for {:g} s, and was ended", limits_.seconds);
    if (!result.stopped.empty()) return;
  }
}

ProgramResult run_program(const std::vector<std::string>& argv, const ProgramLimits& limits) {
  ProgramResult result;
  const std::string path = argv.empty() ? "" : find_program(argv[0]);
  if (path.empty()) return result;
  const std::vector<const char*> raw = raw_arguments(argv);
  Pipe out;
  if (!out.open()) throw_no_pipe();
  Pipe nothing;  // closed on our side: an empty stdin
  if (!nothing.open()) throw_no_pipe();
  GuardedProcess process(GuardedProcess::Body::kBecomesProgram,
                         [&] { exec_program(path.c_str(), raw.data(), nothing.read, out.write, out.write); });
  result.started = true;
  close_if_open(out.write);
  close_if_open(nothing.write);
  ProgramOutput output(out.read, limits);
  output.read_to_its_end(result);
  output.wait_for_its_program(result, [&](auto deadline) { return process.wait(deadline); });
  process.end();
  result.exit_code = exit_code_of(process.status());
  return result;
}

}  // namespace flashcore
