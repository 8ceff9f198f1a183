#include "lab/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"

namespace flashcore {
namespace {

constexpr std::size_t kKeptStderr = 4096;
// An answer is a trial: some hundred samples. A child that writes on and on without a newline is broken.
constexpr std::size_t kMaxLine = std::size_t{64} << 20;
constexpr int kPollMs = 50;  // how often `cancelled` is asked

void close_if_open(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// Between fork and exec of a process that may have threads, only async-signal-safe calls: no allocation in here.
[[noreturn]] void become(const char* const* argv, int in, int out, int err) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
  close_range(3, ~0u, 0);
  execv(argv[0], const_cast<char* const*>(argv));
  constexpr char kMessage[] = "cannot be executed";
  (void)!write(2, kMessage, sizeof kMessage - 1);
  _exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& argv) {
  std::vector<const char*> raw;
  for (const std::string& arg : argv) raw.push_back(arg.c_str());
  raw.push_back(nullptr);

  // stdin is a socket, because send() can be told not to raise SIGPIPE when the child has died and write() cannot.
  int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
  const bool made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) == 0 && pipe2(out, O_CLOEXEC) == 0 &&
                    pipe2(err, O_CLOEXEC) == 0;
  if (made) pid_ = fork();
  if (pid_ == 0) become(raw.data(), in[1], out[1], err[1]);
  const int error = errno;
  close_if_open(in[1]);
  close_if_open(out[1]);
  close_if_open(err[1]);
  to_ = in[0];
  from_ = out[0];
  errors_ = err[0];
  if (pid_ < 0) {
    close_if_open(to_);
    close_if_open(from_);
    close_if_open(errors_);
    throw_environment(
        "cannot start a worker process: {}; candidates are compiled and run in processes of their own: raise the "
        "limits (ulimit -u, -n) or free memory",
        strerror(error));
  }
  fcntl(errors_, F_SETFL, O_NONBLOCK);
}

ChildProcess::~ChildProcess() {
  kill();
  close_if_open(to_);
  close_if_open(from_);
  close_if_open(errors_);
}

bool ChildProcess::send_line(const std::string& line) {
  const std::string whole = line + "\n";
  std::size_t sent = 0;
  while (sent < whole.size()) {
    const ssize_t n = send(to_, whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

bool ChildProcess::take_line(std::string& line) {
  const std::size_t end = pending_.find('\n');
  if (end == std::string::npos) return false;
  line = pending_.substr(0, end);
  pending_.erase(0, end + 1);
  return true;
}

void ChildProcess::drain_stderr() {
  char chunk[4096];
  for (;;) {
    const ssize_t n = read(errors_, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    stderr_.append(chunk, static_cast<std::size_t>(n));
    if (stderr_.size() > 2 * kKeptStderr) stderr_.erase(0, stderr_.size() - kKeptStderr);
  }
}

ChildProcess::Read ChildProcess::read_line(std::string& line, Clock::time_point deadline,
                                           const std::function<bool()>& cancelled) {
  bool stderr_open = true;
  for (;;) {
    if (take_line(line)) return Read::kLine;
    if (pending_.size() > kMaxLine) return Read::kEnd;
    if (cancelled && cancelled()) return Read::kCancelled;
    if (Clock::now() >= deadline) return Read::kTimeout;
    pollfd fds[2] = {{from_, POLLIN, 0}, {stderr_open ? errors_ : -1, POLLIN, 0}};
    if (poll(fds, 2, kPollMs) <= 0) continue;
    if (fds[1].revents) {
      drain_stderr();
      if (fds[1].revents & POLLHUP) stderr_open = false;
    }
    if (!fds[0].revents) continue;
    char chunk[1 << 16];
    const ssize_t n = read(from_, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Read::kEnd;
    pending_.append(chunk, static_cast<std::size_t>(n));
  }
}

void ChildProcess::kill() {
  if (pid_ < 0 || status_) return;
  ::kill(pid_, SIGKILL);
  how_it_ended();
}

std::string ChildProcess::how_it_ended() {
  if (!status_) {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = status;
    drain_stderr();
  }
  if (WIFSIGNALED(*status_)) {
    const int signal = WTERMSIG(*status_);
    const char* name = sigabbrev_np(signal);
    return fmt::format("was ended by signal SIG{} ({})", name ? name : "?", strsignal(signal));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(*status_));
}

std::string ChildProcess::last_words() const {
  const std::size_t from = stderr_.size() > kKeptStderr ? stderr_.size() - kKeptStderr : 0;
  const std::size_t end = stderr_.find_last_not_of(" \n\r\t");
  return end == std::string::npos || end < from ? "" : stderr_.substr(from, end + 1 - from);
}

}  // namespace flashcore
