#include "core/process_end.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace flashcore {

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(name, error);
    return !error && access(whole.c_str(), X_OK) == 0 ? whole.string() : "";
  }
  const char* set = std::getenv("PATH");
  const std::string path = set != nullptr && *set != '\0' ? set : "/usr/local/bin:/usr/bin:/bin";
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t colon = std::min(path.find(':', at), path.size());
    if (path[at] == '/') {
      const std::string file = path.substr(at, colon - at) + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
    }
    at = colon + 1;
  }
  return "";
}

bool wait_until(pid_t pid, std::chrono::steady_clock::time_point deadline, std::optional<int>& status) {
  for (auto pause = std::chrono::microseconds(200);;) {
    int one = 0;
    const pid_t ended = waitpid(pid, &one, WNOHANG);
    if (ended == pid) status = one;
    if (ended == pid || (ended < 0 && errno == ECHILD)) return true;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(pause, left));
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
}

std::optional<int> wait_for(pid_t pid) {
  for (;;) {
    int status = 0;
    if (waitpid(pid, &status, 0) == pid) return status;
    if (errno != EINTR) return std::nullopt;
  }
}

std::optional<int> kill_and_wait(pid_t pid) {
  kill(-pid, SIGKILL);
  kill(pid, SIGKILL);
  return wait_for(pid);
}

std::string describe_end(std::optional<int> status) {
  if (!status) return "ended, nobody knows how";
  if (WIFSIGNALED(*status)) {
    const int number = WTERMSIG(*status);
    const char* name = sigabbrev_np(number);
    return fmt::format("was ended by signal SIG{} ({})", name ? name : "?", strsignal(number));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(*status));
}

int exit_code_of(std::optional<int> status) {
  if (!status) return 127;
  return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
}

}  // namespace flashcore
