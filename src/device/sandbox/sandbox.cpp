#include "device/sandbox/sandbox.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/foreign_text.h"
#include "core/process_end.h"
#include "core/scratch_folder.h"
#include "device/sandbox/confine.h"
#include "device/sandbox/filter.h"

namespace flashcore::sandbox {
namespace {

namespace fs = std::filesystem;

constexpr unsigned long kNamespaceFlags =
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
// Truncation by path is confined from this version on.
constexpr int kLeastLandlock = 3;
constexpr rlim_t kToolMemoryBytes = rlim_t{16} << 30, kToolFileBytes = rlim_t{1} << 30, kToolSeconds = 600;

struct Failure {
  char step[40];
  int error;
};

// Everything that the child needs, made before the fork.
struct Plan {
  Means means = Means::kNone;
  std::vector<const char*> argv, environment;  // with the null
  int output = -1, channel = -1;
  bool tool = true;  // confined here; else it confines itself
  std::string work;
  std::vector<ReadableFolder> readable;
  std::vector<const char*> parents;
  std::vector<sock_filter> filter;
  std::string uid_map, gid_map;
};

void limit(__rlimit_resource what, rlim_t value) {
  const rlimit both{value, value};
  setrlimit(what, &both);
}

// Between fork and exec: see confine.h.
const char* become(const Plan& plan) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction ignored_by_parent {};
  ignored_by_parent.sa_handler = SIG_DFL;
  for (int signal = 1; signal < 32; ++signal) sigaction(signal, &ignored_by_parent, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const bool namespaces = plan.means == Means::kNamespaces;
  if (namespaces)
    if (const char* failed = map_to_root(plan.uid_map.c_str(), plan.gid_map.c_str())) return failed;
  const int null = open("/dev/null", O_RDWR);
  const int output = plan.output >= 0 ? plan.output : null;
  if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) return "dup2";
  if (plan.channel >= 0 && plan.channel != kChannel && dup2(plan.channel, kChannel) < 0) return "dup2";
  if (plan.channel >= 0) fcntl(kChannel, F_SETFD, 0);
  limit(RLIMIT_CORE, 0);
  // The first to go when memory runs out.
  const int oom = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (oom >= 0) (void)!write(oom, "1000", 4), close(oom);
  if (!plan.tool) return nullptr;
  limit(RLIMIT_AS, kToolMemoryBytes);
  limit(RLIMIT_FSIZE, kToolFileBytes);
  limit(RLIMIT_CPU, kToolSeconds);
  if (namespaces) {
    if (const char* failed =
            build_root(plan.readable.data(), plan.readable.size(), plan.parents.data(), plan.work.c_str()))
      return failed;
  } else {
    if (chdir(plan.work.c_str()) != 0) return "chdir";
    if (const char* failed = restrict_paths(plan.readable.data(), plan.readable.size(), plan.work.c_str()))
      return failed;
  }
  if (const char* failed = drop_privileges()) return failed;
  return install_filter(plan.filter.data(), plan.filter.size());
}

[[noreturn]] void child_main(const Plan& plan, int status) {
  // Above the channel, where close_range leaves it.
  const int kept = fcntl(status, F_DUPFD_CLOEXEC, 64);
  if (kept < 0) _exit(125);
  Failure failure{};
  const char* failed = become(plan);
  if (!failed) {
    const unsigned first = plan.channel >= 0 ? kChannel + 1 : 3;
    close_range(first, static_cast<unsigned>(kept) - 1, 0);
    close_range(static_cast<unsigned>(kept) + 1, ~0u, 0);
    execve(plan.argv[0], const_cast<char* const*>(plan.argv.data()), const_cast<char* const*>(plan.environment.data()));
    failed = "exec";
  }
  failure.error = errno;
  strncpy(failure.step, failed, sizeof failure.step - 1);
  (void)!write(kept, &failure, sizeof failure);
  _exit(125);
}

// The child, once it is what it was to become; else why not.
pid_t start(const Plan& plan, std::string& why) {
  int status[2];
  if (pipe2(status, O_CLOEXEC) != 0) {
    why = strerror(errno);
    return -1;
  }
  const unsigned long flags = SIGCHLD | (plan.means == Means::kNamespaces ? kNamespaceFlags : 0);
  const long pid = syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) child_main(plan, status[1]);
  const int error = errno;
  close(status[1]);
  if (pid < 0) {
    close(status[0]);
    why = fmt::format("clone: {}", strerror(error));
    return -1;
  }
  Failure failure{};
  ssize_t got = 0;
  while ((got = read(status[0], &failure, sizeof failure)) < 0 && errno == EINTR) {
  }
  close(status[0]);
  if (got == 0) return static_cast<pid_t>(pid);
  wait_for(static_cast<pid_t>(pid));
  why = got == sizeof failure ? fmt::format("{}: {}", failure.step, strerror(failure.error)) : "no answer";
  return -1;
}

void use_namespaces(Plan& plan) {
  plan.uid_map = fmt::format("0 {} 1", geteuid());
  plan.gid_map = fmt::format("0 {} 1", getegid());
}

// Folders that hold nothing of the user's. What the program is installed in comes too, unless that is the home or the
// root itself: then only the folder that it lies in.
std::vector<std::string> readable_for(const std::string& program) {
  std::vector<std::string> all = {
      "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache"};
  const auto covered = [&](const fs::path& path) {
    return std::any_of(all.begin(), all.end(), [&](const std::string& folder) {
      return path.string() == folder || path.string().starts_with(folder + "/");
    });
  };
  const char* home = std::getenv("HOME");
  std::error_code error;
  const fs::path real = fs::canonical(program, error);
  for (const fs::path& path : {fs::path(program), real}) {
    if (path.empty() || covered(path)) continue;
    const fs::path folder = path.parent_path(), prefix = folder.parent_path();
    const bool too_much = prefix == prefix.root_path() || (home && fs::equivalent(prefix, home, error));
    all.push_back((too_much ? folder : prefix).string());
  }
  return all;
}

// "/opt/gcc/13" -> "opt", "opt/gcc"
void add_parents(const std::string& path, std::vector<std::string>& parents) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    parents.push_back(path.substr(1, slash - 1));
}

// Calls body(plan) with all that run_tool's child needs.
template <class Body>
void with_tool_plan(Means how, const std::string& program, const std::vector<std::string>& arguments,
                    const std::string& work, int output, Body body) {
  const bool namespaces = how == Means::kNamespaces;
  const std::vector<std::string> folders = readable_for(program);
  std::vector<std::string> parents;
  for (const std::string& folder : folders) add_parents(folder, parents);
  const std::string path = "PATH=" + fs::path(program).parent_path().string() + ":/usr/bin:/bin";
  const std::string temporary = std::string("TMPDIR=") + (namespaces ? "/work" : work);
  Plan plan;
  plan.means = how;
  plan.argv.push_back(program.c_str());
  for (std::size_t i = 1; i < arguments.size(); ++i) plan.argv.push_back(arguments[i].c_str());
  plan.argv.push_back(nullptr);
  plan.environment = {path.c_str(), temporary.c_str(), "LC_ALL=C", "HOME=/nonexistent", "CCACHE_DISABLE=1", nullptr};
  plan.output = output;
  plan.work = work;
  for (const std::string& folder : folders) plan.readable.push_back({folder.c_str(), folder.c_str() + 1});
  for (const std::string& parent : parents) plan.parents.push_back(parent.c_str());
  plan.parents.push_back(nullptr);
  plan.filter = tool_filter(!namespaces);
  if (namespaces) use_namespaces(plan);
  body(plan);
}

// Tries it: /bin/true in the very sandbox.
std::string why_not(Means how) try {
  if (how == Means::kLandlock && landlock_version() < kLeastLandlock)
    return fmt::format("Landlock {} (version {} is needed)", landlock_version(), kLeastLandlock);
  std::string why;
  const ScratchFolder work;
  with_tool_plan(how, find_program("true"), {"true"}, work.path().string(), -1, [&](const Plan& plan) {
    const pid_t pid = start(plan, why);
    if (pid <= 0) return;
    if (const std::optional<int> status = wait_for(pid); status != 0) why = "a program in it " + describe_end(status);
  });
  return why;
} catch (const Error& error) {  // no folder for it
  return error.what();
}

bool asked_for_none() {
  const char* asked = std::getenv("FLASHCORE_SANDBOX");
  return asked != nullptr && std::string_view(asked) == "none";
}

struct Found {
  Means means = Means::kNone;
  std::string why;
};

const Found& found() {
  static const Found result = [] {
    const char* asked = std::getenv("FLASHCORE_SANDBOX");
    const std::string most = asked ? asked : "";
    if (!most.empty() && most != "landlock" && most != "none")
      throw_bad_input("FLASHCORE_SANDBOX is '{}'; give landlock or none, or unset it", excerpt(most));
    if (most == "none") return Found{Means::kNone, "FLASHCORE_SANDBOX=none"};
    std::string why;
    if (most != "landlock") {
      why = why_not(Means::kNamespaces);
      if (why.empty()) return Found{Means::kNamespaces, ""};
      why = "namespaces: " + why + "; ";
    }
    const std::string landlock = why_not(Means::kLandlock);
    if (landlock.empty()) return Found{Means::kLandlock, ""};
    return Found{Means::kNone, why + "Landlock: " + landlock};
  }();
  return result;
}

}  // namespace

Means means() { return found().means; }

void require(const std::string& what, const std::string& how_to_trust) {
  if (means() != Means::kNone) return;
  const std::string trust = "or " + how_to_trust + " if you have read that code: it then runs with all of your rights";
  if (asked_for_none())
    throw_environment("{} is code of somebody else, and FLASHCORE_SANDBOX=none refuses such code; unset it, {}", what,
                      trust);
  throw_environment(
      "{} is code of somebody else, and this machine lets no sandbox be made for it ({}); allow unprivileged user "
      "namespaces (sysctl kernel.unprivileged_userns_clone=1, or a container with them) or run a kernel with Landlock, "
      "{}",
      what, found().why, trust);
}

ProgramResult run_tool(const std::vector<std::string>& arguments, const std::string& work, double timeout_seconds) {
  FC_CHECK(means() != Means::kNone);
  ProgramResult result;
  const std::string program = find_program(arguments.at(0));
  if (program.empty()) return result;
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return result;
  pid_t pid = -1;
  std::string why;
  with_tool_plan(means(), program, arguments, work, fds[1], [&](const Plan& plan) { pid = start(plan, why); });
  close(fds[1]);
  if (pid < 0) {
    close(fds[0]);
    throw_environment("{} cannot be started in its sandbox: {}", program, why);
  }
  result.started = true;
  ProgramOutput output(fds[0], {.seconds = timeout_seconds});
  output.read_to_its_end(result);
  close(fds[0]);
  std::optional<int> status;
  bool ended = false;
  output.wait_for_its_program(result, [&](auto deadline) { return ended = wait_until(pid, deadline, status); });
  // Whoever lives on is ended, and in namespaces its children with it.
  if (!ended) status = kill_and_wait(pid);
  result.exit_code = exit_code_of(status);
  return result;
}

pid_t start_executor(const std::string& program, const std::vector<std::string>& arguments, int channel) {
  Plan plan;
  plan.means = means();
  plan.tool = false;
  plan.channel = channel;
  plan.argv.push_back(program.c_str());
  for (const std::string& argument : arguments) plan.argv.push_back(argument.c_str());
  plan.argv.push_back(nullptr);
  plan.environment = {"LC_ALL=C", nullptr};
#if defined(FLASHCORE_SANITIZED)
  // A sanitizer would turn crashes into exits, and look for leaks with calls that end the process.
  plan.environment.insert(plan.environment.begin(), "ASAN_OPTIONS=handle_segv=0:handle_abort=0:detect_leaks=0");
#endif
  if (plan.means == Means::kNamespaces) use_namespaces(plan);
  std::string why;
  const pid_t pid = start(plan, why);
  if (pid < 0) throw_environment("the process that runs others' kernels cannot be started: {}", why);
  return pid;
}

std::string enter_executor(std::string_view image, Means how) {
  const auto check = [](const char* failed) {
    if (failed) throw_environment("the sandbox cannot be entered: {}: {}", failed, strerror(errno));
  };
  std::string path = "/kernel.so";
  if (how == Means::kNamespaces) {
    check(build_root_of(image.data(), image.size()));
  } else {
    const int fd = memfd_create("kernel.so", MFD_CLOEXEC);
    if (fd < 0) throw_environment("no memory for the kernel's image: {}", strerror(errno));
    for (std::size_t done = 0; done < image.size();) {
      const ssize_t n = write(fd, image.data() + done, image.size() - done);
      if (n <= 0) throw_environment("no memory for the kernel's image: {}", strerror(errno));
      done += static_cast<std::size_t>(n);
    }
    path = fmt::format("/proc/self/fd/{}", fd);
    check(restrict_paths(nullptr, 0, nullptr));
  }
  limit(RLIMIT_FSIZE, 0);
  limit(RLIMIT_NOFILE, 64);
  limit(RLIMIT_MEMLOCK, 0);
  const std::vector<sock_filter> filter = executor_filter(getpid());
  check(drop_privileges());
  check(install_filter(filter.data(), filter.size()));
  return path;
}

}  // namespace flashcore::sandbox
