#include "lab/process/isolate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include "core/error.h"
#include "core/guarded_process.h"

namespace flashcore {

namespace {

using Clock = std::chrono::steady_clock;

// One message of a child per item: a status byte ('+' returned, '!' threw), 8 bytes of length, the text.
constexpr std::size_t kHeaderBytes = 9;
// An artifact or a compiler's log. A child that announces or writes more is broken.
constexpr std::size_t kMaxMessage = std::size_t{256} << 20;
// Between a child's closing of its pipe and its end.
constexpr std::chrono::seconds kGrace{5};

struct Batch {
  std::int64_t begin = 0, end = 0;
};

struct Child {
  GuardedProcess process;
  int fd = -1;
  Batch batch;  // begin: the item in hand
  std::string received;
  Clock::time_point item_started;
};

bool write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

void child_main(int fd, const Batch& batch, const std::function<std::string(std::int64_t)>& body) {
  std::signal(SIGINT, SIG_IGN);  // the parent decides when a child ends
  std::signal(SIGTERM, SIG_IGN);
  for (std::int64_t i = batch.begin; i < batch.end; ++i) {
    char status = '+';
    std::string text;
    try {
      text = body(i);
    } catch (const std::exception& error) {
      status = '!';
      text = error.what();
    }
    const std::uint64_t size = text.size();
    std::string message(kHeaderBytes, status);
    std::memcpy(message.data() + 1, &size, sizeof size);
    message += text;
    if (!write_all(fd, message.data(), message.size())) return;
  }
}

Child start_child(const Batch& batch, const std::vector<Child>& others,
                  const std::function<std::string(std::int64_t)>& body) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0)
    throw_environment("cannot open a pipe for a compile process: {}", std::strerror(errno));
  try {
    Child child{GuardedProcess(GuardedProcess::Body::kRunsOn,
                               [&] {
                                 close(fds[0]);
                                 for (const Child& other : others) close(other.fd);
                                 child_main(fds[1], batch, body);
                               }),
                fds[0],
                batch,
                {},
                Clock::now()};
    close(fds[1]);
    return child;
  } catch (...) {
    close(fds[0]);
    close(fds[1]);
    throw;
  }
}

// Hands over every whole message in `child.received`. False if it is none of ours.
bool pass_on_results(Child& child, const std::function<void(std::int64_t, const Isolated&)>& done) {
  while (child.received.size() >= kHeaderBytes) {
    std::uint64_t size = 0;
    std::memcpy(&size, child.received.data() + 1, sizeof size);
    if (size > kMaxMessage || child.batch.begin >= child.batch.end) return false;
    if (child.received.size() < kHeaderBytes + size) return true;
    const std::string text = child.received.substr(kHeaderBytes, size);
    const Isolated result = child.received[0] == '+' ? Isolated{true, text, {}} : Isolated{false, {}, "threw: " + text};
    child.received.erase(0, kHeaderBytes + size);
    child.item_started = Clock::now();
    done(child.batch.begin++, result);
  }
  return child.received.empty() || child.batch.begin < child.batch.end;
}

// Of a child that has closed its pipe.
std::string describe_death(GuardedProcess& process) {
  if (!process.wait(Clock::now() + kGrace)) {
    process.end();
    return "closed its pipe but lived on, and was ended";
  }
  const int status = process.status().value_or(0);
  if (WIFSIGNALED(status)) {
    const char* name = sigabbrev_np(WTERMSIG(status));
    return name != nullptr ? fmt::format("crashed with SIG{}", name)
                           : fmt::format("crashed with signal {}", WTERMSIG(status));
  }
  return fmt::format("ended by itself with exit code {}", WEXITSTATUS(status));
}

void end_all(std::vector<Child>& children) {
  for (Child& child : children) {
    child.process.end();
    close(child.fd);
  }
  children.clear();
}

// Reads what is there. False once the child has closed its end.
bool receive(Child& child) {
  char buffer[65536];
  const ssize_t got = ::read(child.fd, buffer, sizeof buffer);
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  child.received.append(buffer, static_cast<std::size_t>(got));
  return got > 0;
}

}  // namespace

void run_isolated(std::int64_t count, const IsolateOptions& options,
                  const std::function<std::string(std::int64_t)>& body,
                  const std::function<void(std::int64_t, const Isolated&)>& done, const std::function<bool()>& stop) {
  FC_CHECK(options.parallel > 0 && options.batch > 0);
  std::deque<Batch> waiting;
  for (std::int64_t begin = 0; begin < count; begin += options.batch)
    waiting.push_back({begin, std::min(count, begin + options.batch)});
  std::vector<Child> children;
  try {
    while (!waiting.empty() || !children.empty()) {
      if (stop && stop()) break;
      while (!waiting.empty() && children.size() < static_cast<std::size_t>(options.parallel)) {
        children.push_back(start_child(waiting.front(), children, body));
        waiting.pop_front();
      }
      std::vector<pollfd> polls;
      for (const Child& child : children) polls.push_back({child.fd, POLLIN, 0});
      ::poll(polls.data(), polls.size(), 100);
      for (std::size_t i = children.size(); i-- > 0;) {
        Child& child = children[i];
        std::string failure;
        bool open = true;
        if (polls[i].revents != 0) {
          open = receive(child);
          if (!pass_on_results(child, done)) {
            open = false;
            failure = "wrote what is no result, and was ended";
          }
        }
        const double seconds = std::chrono::duration<double>(Clock::now() - child.item_started).count();
        if (open && seconds > options.timeout_seconds && child.batch.begin < child.batch.end) {
          open = false;
          failure = fmt::format("still running after {:.0f} s, stopped", seconds);
        }
        if (open) continue;
        Batch rest = child.batch;
        if (failure.empty()) failure = describe_death(child.process);
        child.process.end();
        close(child.fd);
        children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
        if (rest.begin >= rest.end) continue;
        done(rest.begin++, {false, {}, failure});
        if (rest.begin < rest.end) waiting.push_front(rest);
      }
    }
  } catch (...) {
    end_all(children);
    throw;
  }
  end_all(children);
}

}  // namespace flashcore
