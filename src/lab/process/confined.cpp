#include "lab/process/confined.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/process_end.h"
#include "device/sandbox/confine.h"
#include "device/sandbox/filter.h"

extern char** environ;

namespace flashcore {
namespace {

constexpr rlim_t kProposerMemoryBytes = rlim_t{8} << 30, kProposerFileBytes = rlim_t{256} << 20;
constexpr rlim_t kProposerCpuSeconds = 3600, kProposerFiles = 256;

void set_limit(__rlimit_resource what, rlim_t value, const char* name) {
  rlimit now{};
  getrlimit(what, &now);
  if (now.rlim_max != RLIM_INFINITY && now.rlim_max < value) value = now.rlim_max;
  const rlimit both{value, value};
  if (setrlimit(what, &both) != 0) throw_environment("the limit of {} cannot be set: {}", name, std::strerror(errno));
}

// Without a network a key of some service is of no use to it, and need not be in its reach.
std::vector<std::string> kept_environment(const std::string& work) {
  constexpr std::array<std::string_view, 7> kKept = {"PATH=",        "LANG=",      "LC_", "PYTHON",
                                                     "VIRTUAL_ENV=", "FLASHCORE_", "TZ="};
  std::vector<std::string> kept = {"HOME=" + work, "TMPDIR=" + work};
  for (char** variable = environ; *variable; ++variable)
    for (const std::string_view prefix : kKept)
      if (std::string_view(*variable).starts_with(prefix)) kept.emplace_back(*variable);
  return kept;
}

// Whoever has a terminal could type into it. A leader of a process group cannot begin a session.
void leave_terminal() {
  if (setsid() >= 0) return;
  const int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return;
  ioctl(terminal, TIOCNOTTY);
  close(terminal);
}

void require_step(const char* failed) {
  if (failed)
    throw_environment("a proposer cannot be confined here: {}: {}; leave --confine-proposer out if you trust it",
                      failed, std::strerror(errno));
}

}  // namespace

std::vector<std::string> confined_command(const std::string& command, const std::string& work,
                                          const std::string& executable) {
  return {executable, "confine", work, "--", "/bin/sh", "-c", command};
}

ConfinementReport describe_confinement(const std::string& work, int landlock_version) {
  ConfinementReport report;
  report.confined = fmt::format(
      "no sockets and so no network, {} GiB of memory and {} s of processor time for each process, files of {} MiB",
      kProposerMemoryBytes >> 30, kProposerCpuSeconds, kProposerFileBytes >> 20);
  report.left_open = "reading what you may read, the number of its processes and what they take together";
  if (landlock_version > 0) report.confined += ", no look into other processes, writing in " + work + " alone";
  else
    report.left_open =
        "writing files, looking into your other processes (there is no Landlock here), " + report.left_open;
  if (landlock_version > 0 && landlock_version < sandbox::kLandlockForTruncation)
    report.left_open = fmt::format("emptying files that you may write (Landlock version {} is here, {} is needed), ",
                                   landlock_version, sandbox::kLandlockForTruncation) +
                       report.left_open;
  return report;
}

void become_confined(const std::string& work, const std::vector<std::string>& argv) {
  FC_CHECK(!argv.empty());
  const std::string program = find_program(argv.front());
  if (program.empty()) throw_bad_input("{} is no program on PATH", argv.front());
  const std::vector<std::string> environment = kept_environment(work);
  std::vector<char*> words, variables;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& variable : environment) variables.push_back(const_cast<char*>(variable.c_str()));
  words.push_back(nullptr);
  variables.push_back(nullptr);
  set_limit(RLIMIT_CORE, 0, "core files");
  set_limit(RLIMIT_AS, kProposerMemoryBytes, "memory");
  set_limit(RLIMIT_FSIZE, kProposerFileBytes, "file sizes");
  set_limit(RLIMIT_CPU, kProposerCpuSeconds, "processor time");
  set_limit(RLIMIT_NOFILE, kProposerFiles, "open files");
  leave_terminal();
  // All that it may read, this program's user may: what it reads has no way out but its answers.
  const sandbox::ReadableFolder everything{"/", ""};
  if (const int version = sandbox::landlock_version(); version > 0)
    require_step(sandbox::restrict_paths(&everything, 1, work.c_str(), version));
  require_step(sandbox::drop_privileges());
  const auto filter = sandbox::tool_filter(true);
  require_step(sandbox::install_filter(filter.data(), filter.size()));
  execve(program.c_str(), words.data(), variables.data());
  throw_environment("{} cannot be executed: {}", program, std::strerror(errno));
}

}  // namespace flashcore
