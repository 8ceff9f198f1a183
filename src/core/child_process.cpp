#include "core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr std::size_t kKeptStderr = 4096;
constexpr int kPollMs = 50;  // how often `cancelled` is asked
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

// As execvp would look, but before the fork: afterwards nothing may be allocated. Empty if it is not there.
std::string find_on_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) == 0 ? name : "";
  const char* set = std::getenv("PATH");
  const std::string path = set != nullptr ? set : "/usr/bin:/bin";
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t colon = std::min(path.find(':', at), path.size());
    // An empty entry means the current folder; nobody's compiler is looked for there.
    if (colon > at) {
      const std::string file = path.substr(at, colon - at) + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
    }
    at = colon + 1;
  }
  return "";
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
    become_program(raw[0], raw.data(), input.write, out.write, err.write);
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

std::string ChildProcess::last_words() {
  // What a pipe holds, and no more: a descendant that cannot be killed may still be writing.
  for (int i = 0; i < 32 && errors_open_ && read_stderr(); ++i) {
  }
  const std::size_t end = stderr_.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "";
  const std::size_t from = end + 1 > kKeptStderr ? end + 1 - kKeptStderr : 0;
  const std::size_t cut = stderr_cut_ + from;
  return (cut > 0 ? fmt::format("[{} bytes of its stderr cut] ", cut) : "") + stderr_.substr(from, end + 1 - from);
}

ProgramResult run_program(const std::vector<std::string>& argv, const ProgramLimits& limits) {
  ProgramResult result;
  const std::string path = argv.empty() ? "" : find_on_path(argv[0]);
  if (path.empty()) return result;
  const std::vector<const char*> raw = raw_arguments(argv);
  Pipe out;
  if (!out.open()) throw_no_pipe();
  Pipe nothing;  // closed on our side: an empty stdin
  if (!nothing.open()) throw_no_pipe();
  GuardedProcess process(GuardedProcess::Body::kBecomesProgram,
                         [&] { become_program(path.c_str(), raw.data(), nothing.read, out.write, out.write); });
  result.started = true;
  close_if_open(out.write);
  close_if_open(nothing.write);

  const auto deadline = GuardedProcess::Clock::now() + std::chrono::duration_cast<GuardedProcess::Clock::duration>(
                                                           std::chrono::duration<double>(limits.seconds));
  std::size_t total = 0;
  bool closed = false;
  while (!closed && result.stopped.empty()) {
    pollfd fd{out.read, POLLIN, 0};
    if (poll(&fd, 1, kPollMs) > 0) {
      char chunk[4096];  // small: the emulator calls this on the stack of one of its fibers
      const ssize_t got = read(out.read, chunk, sizeof chunk);
      if (got == 0 || (got < 0 && errno != EINTR)) closed = true;
      if (got > 0) {
        total += static_cast<std::size_t>(got);
        const std::size_t room = limits.kept_output - std::min(limits.kept_output, result.output.size());
        result.output.append(chunk, std::min(room, static_cast<std::size_t>(got)));
      }
    }
    if (total > limits.max_output)
      result.stopped = fmt::format("wrote more than {} bytes and was ended", limits.max_output);
    else if (!closed && GuardedProcess::Clock::now() >= deadline)
      result.stopped = fmt::format("was still running after {:g} s and was ended", limits.seconds);
  }
  // Closed, but alive: it has the rest of its time, and at least a moment.
  if (result.stopped.empty() && !process.wait(std::max(deadline, GuardedProcess::Clock::now() + kGrace)))
    result.stopped = fmt::format("closed its output but lived on for {:g} s, and was ended", limits.seconds);
  process.end();
  if (total > result.output.size())
    result.output += fmt::format("\n[{} bytes more of its output cut]", total - result.output.size());
  const int status = process.status().value_or(127 << 8);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace flashcore
