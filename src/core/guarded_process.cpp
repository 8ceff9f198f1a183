#include "core/guarded_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/process_end.h"

namespace flashcore {
namespace {

// What the guard tells once: the child's pid, or why there is none.
struct Started {
  int error = 0;
  pid_t child = -1;
};

// A process that does not go when killed is stuck in the kernel (a dead disk, a driver): nobody waits longer for it.
constexpr int kGuardPatienceMs = 10000;
constexpr std::chrono::seconds kParentPatience{13};

// --- in the guard: async-signal-safe calls only, because it is a fork of a process that may have threads ------------

long now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// The guard's own children: the child, and orphans that came to it. A list longer than the buffer has its rest killed
// in the next round.
void kill_children() {
  const int file = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char text[4096];
  const ssize_t size = read(file, text, sizeof text);
  close(file);
  pid_t pid = 0;
  for (ssize_t i = 0; i < size; ++i) {
    if (text[i] >= '0' && text[i] <= '9') {
      pid = pid * 10 + (text[i] - '0');
    } else {
      if (pid > 1) kill(pid, SIGKILL);
      pid = 0;
    }
  }
}

// The child is not reaped before: its pid still names its process group, and nobody else's.
int end_all(pid_t child) {
  int status = SIGKILL;
  const long deadline = now_ms() + kGuardPatienceMs;
  for (bool group = true;;) {
    if (group) kill(-child, SIGKILL);
    kill_children();
    for (;;) {
      int one = 0;
      const pid_t ended = waitpid(-1, &one, WNOHANG);
      if (ended < 0 && errno != EINTR) return status;  // ECHILD: nobody is left
      if (ended == 0) break;
      if (ended == child) {
        status = one;
        group = false;
      }
    }
    if (now_ms() > deadline) return status;
    const timespec pause{0, 2000000};
    nanosleep(&pause, nullptr);
  }
}

// Returns when the child has ended, not yet reaped, or when the guard was told to end it.
void await(pid_t child, const sigset_t& signals) {
  for (;;) {
    siginfo_t ended{};
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR) return;
    if (ended.si_pid == child) return;
    if (ended.si_pid != 0) {
      waitpid(ended.si_pid, nullptr, WNOHANG);  // an orphan
      continue;
    }
    // SIGCHLD is blocked and stays pending, so that none is lost between the look and the wait.
    const int number = sigwaitinfo(&signals, nullptr);
    if (number == SIGTERM) return;
    if (number == SIGINT) kill(-child, SIGINT);
  }
}

[[noreturn]] void end_as(int status) {
  if (WIFSIGNALED(status)) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    prctl(PR_SET_DUMPABLE, 0);
    const int number = WTERMSIG(status);
    signal(number, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    kill(getpid(), number);
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
    _exit(128 + number);
  }
  _exit(WEXITSTATUS(status));
}

void write_started(int fd, const Started& started) {
  while (write(fd, &started, sizeof started) < 0 && errno == EINTR) {
  }
}

[[noreturn]] void guard_main(pid_t parent, int told, const sigset_t& callers_mask, const std::function<void()>& body) {
  setpgid(0, 0);
  prctl(PR_SET_NAME, "flashcore-guard");
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signal(SIGCHLD, SIG_DFL);  // ignored, it would take the child's status away
  if (getppid() != parent) _exit(127);
  const pid_t guard = getpid();
  // _Fork runs no atfork handlers: those ran for the guard, and the child is its copy.
  const pid_t child = _Fork();
  if (child == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != guard) _exit(127);
    close(told);
    sigprocmask(SIG_SETMASK, &callers_mask, nullptr);
    body();
    _exit(0);
  }
  if (child > 0) setpgid(child, child);  // whoever of the two comes first
  // Inherited as ignored (a background job of a shell) it would never arrive.
  signal(SIGINT, SIG_DFL);
  write_started(told, {child < 0 ? errno : 0, child});
  // The other ends of the child's pipes among them: they must close when the child closes its own.
  close_range(0, ~0u, 0);
  if (child < 0) _exit(127);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  await(child, signals);
  end_as(end_all(child));
}

}  // namespace

GuardedProcess::GuardedProcess(Body kind, const std::function<void()>& body) {
  int told[2] = {-1, -1};
  int error = pipe2(told, O_CLOEXEC) == 0 ? 0 : errno;
  Started started;
  if (error == 0) {
    // A signal that meets the guard before it is ready would run this program's handler there, and be lost.
    sigset_t all, callers;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &callers);
    const pid_t parent = getpid();
    guard_ = kind == Body::kBecomesProgram ? _Fork() : fork();
    if (guard_ == 0) guard_main(parent, told[1], callers, body);
    error = guard_ < 0 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &callers, nullptr);
    close(told[1]);
    ssize_t got = 0;
    while (guard_ > 0 && (got = read(told[0], &started, sizeof started)) < 0 && errno == EINTR) {
    }
    close(told[0]);
    if (guard_ > 0 && got != sizeof started) started.error = ESRCH;  // the guard was killed
    if (started.error != 0) error = started.error;
  }
  child_ = started.child;
  if (error == 0) return;
  end();
  throw_environment(
      "cannot start a process: {}; candidates are compiled and run in processes of their own: raise the limits (ulimit "
      "-u, -n) or free memory",
      strerror(error));
}

GuardedProcess::~GuardedProcess() { end(); }

GuardedProcess::GuardedProcess(GuardedProcess&& other) noexcept
    : guard_(std::exchange(other.guard_, -1)), child_(std::exchange(other.child_, -1)), status_(other.status_) {}

GuardedProcess& GuardedProcess::operator=(GuardedProcess&& other) noexcept {
  if (this != &other) {
    end();
    guard_ = std::exchange(other.guard_, -1);
    child_ = std::exchange(other.child_, -1);
    status_ = other.status_;
  }
  return *this;
}

bool GuardedProcess::wait(Clock::time_point deadline) {
  if (guard_ > 0 && wait_until(guard_, deadline, status_)) guard_ = -1;
  return guard_ <= 0;
}

// By way of the guard, which alone knows that the child's pid is still the child's.
void GuardedProcess::interrupt() {
  if (guard_ > 0) ::kill(guard_, SIGINT);
}

void GuardedProcess::end() {
  if (guard_ <= 0) return;
  ::kill(guard_, SIGTERM);
  if (wait(Clock::now() + kParentPatience)) return;
  // Stopped by a hostile child, or stuck with it. The child has PR_SET_PDEATHSIG and goes with its guard.
  if (child_ > 1) ::kill(-child_, SIGKILL);
  ::kill(guard_, SIGKILL);
  wait(Clock::now() + kParentPatience);
  guard_ = -1;
}

std::string GuardedProcess::how_it_ended() const { return guard_ > 0 ? "is still running" : describe_end(status_); }

void exec_program(const char* path, const char* const* argv, int in, int out, int err) {
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // Above 2 first: where this program runs without standard streams, a pipe may have one of their numbers.
  in = fcntl(in, F_DUPFD, 3);
  out = fcntl(out, F_DUPFD, 3);
  err = fcntl(err, F_DUPFD, 3);
  if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
  close_range(3, ~0u, 0);
  execv(path, const_cast<char* const*>(argv));
  const char* reason = strerrordesc_np(errno);
  constexpr char kMessage[] = "cannot be executed: ";
  (void)!write(2, kMessage, sizeof kMessage - 1);
  if (reason != nullptr) (void)!write(2, reason, strlen(reason));
  _exit(127);
}

}  // namespace flashcore
