#include "device/sandbox/confine.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace flashcore::sandbox {
namespace {

constexpr int kMaxReadable = 32;

// mount_setattr(2); the C library of Debian 12 has no function for it. It only adds: a remount would have to repeat the
// flags that an outer namespace has locked.
struct MountAttributes {
  std::uint64_t attr_set, attr_clr, propagation, userns_fd;
};
constexpr long kMountSetattr = 442;
constexpr std::uint64_t kReadOnly = 1, kNoSuid = 2, kNoDev = 4;

bool set_mount_attributes(const char* path, bool recursive, std::uint64_t attributes) {
  MountAttributes set{};
  set.attr_set = attributes;
  return syscall(kMountSetattr, AT_FDCWD, path, recursive ? 0x8000 /* AT_RECURSIVE */ : 0, &set, sizeof set) == 0;
}

bool write_text(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const auto size = static_cast<ssize_t>(strlen(text));
  const bool whole = write(fd, text, static_cast<std::size_t>(size)) == size;
  const int error = errno;
  close(fd);
  errno = error;
  return whole;
}

// "/proc/self/fd/<n>"
struct DescriptorPath {
  char text[32] = "/proc/self/fd/";
  explicit DescriptorPath(int fd) {
    char digits[12];
    int n = 0;
    do digits[n++] = static_cast<char>('0' + fd % 10);
    while ((fd /= 10) > 0);
    char* to = text + strlen(text);
    while (n > 0) *to++ = digits[--n];
    *to = '\0';
  }
};

bool bind_to(int fd, const char* target) {
  return mount(DescriptorPath(fd).text, target, nullptr, MS_BIND | MS_REC, nullptr) == 0;
}

// The working folder becomes the root, and nothing of the old one stays reachable.
const char* change_root() {
  if (syscall(SYS_pivot_root, ".", ".") == 0) {
    if (umount2(".", MNT_DETACH) != 0) return "umount of the old root";
  } else {
    // The first root of a machine cannot be exchanged; what it is moved under cannot be left without privileges.
    if (errno != EINVAL || mount(".", "/", nullptr, MS_MOVE, nullptr) != 0 || chroot(".") != 0) return "pivot_root";
  }
  return chdir("/") == 0 ? nullptr : "chdir";
}

const char* make_mounts_private() {
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 ? nullptr : "private mounts";
}

constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/urandom"};

}  // namespace

const char* map_to_root(const char* uid_map, const char* gid_map) {
  if (!write_text("/proc/self/setgroups", "deny")) return "setgroups";
  if (!write_text("/proc/self/uid_map", uid_map)) return "uid_map";
  if (!write_text("/proc/self/gid_map", gid_map)) return "gid_map";
  return nullptr;
}

const char* build_root(const ReadableFolder* readable, std::size_t count, const char* const* parents,
                       const char* work) {
  if (const char* failed = make_mounts_private()) return failed;
  // Before the new root hides any of them.
  int fds[kMaxReadable];
  if (count > kMaxReadable) return "too many folders";
  for (std::size_t i = 0; i < count; ++i) fds[i] = open(readable[i].path, O_PATH | O_CLOEXEC);
  int devices[3];
  for (int i = 0; i < 3; ++i) devices[i] = open(kDevices[i], O_PATH | O_CLOEXEC);
  const int work_fd = open(work, O_PATH | O_CLOEXEC);
  if (work_fd < 0) return "work folder";
  if (mount("tmpfs", work, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") != 0) return "tmpfs";
  if (chdir(work) != 0) return "chdir";
  for (; *parents; ++parents)
    if (mkdir(*parents, 0755) != 0 && errno != EEXIST) return "mkdir";
  for (std::size_t i = 0; i < count; ++i) {
    if (fds[i] < 0) continue;  // not every system has every folder
    struct stat what;
    if (fstat(fds[i], &what) != 0) return "stat";
    if (S_ISDIR(what.st_mode)) {
      if (mkdir(readable[i].target, 0755) != 0 && errno != EEXIST) return "mkdir";
    } else {
      close(open(readable[i].target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    }
    if (!bind_to(fds[i], readable[i].target)) return "bind";
    if (!set_mount_attributes(readable[i].target, true, kReadOnly | kNoSuid | kNoDev)) return "read-only bind";
    close(fds[i]);
  }
  if (mkdir("dev", 0755) != 0) return "mkdir";
  for (int i = 0; i < 3; ++i) {
    if (devices[i] < 0) continue;
    const char* target = kDevices[i] + 1;
    close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (!bind_to(devices[i], target)) return "bind of /dev";
    close(devices[i]);
  }
  // Without what is mounted on it: that is the new root itself.
  if (mkdir("work", 0755) != 0 || mount(DescriptorPath(work_fd).text, "work", nullptr, MS_BIND, nullptr) != 0)
    return "bind of the work folder";
  if (!set_mount_attributes("work", true, kNoSuid | kNoDev)) return "work folder";
  close(work_fd);
  if (const char* failed = change_root()) return failed;
  if (!set_mount_attributes("/", false, kReadOnly)) return "read-only root";
  return chdir("/work") == 0 ? nullptr : "chdir";
}

const char* build_root_of(const void* image, std::size_t bytes) {
  if (const char* failed = make_mounts_private()) return failed;
  const char* place = nullptr;
  for (const char* folder : {"/tmp", "/usr", "/etc", "/var"})
    if (!place && mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=256m,mode=755") == 0) place = folder;
  if (!place) return "tmpfs";
  if (chdir(place) != 0) return "chdir";
  const int fd = open("kernel.so", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return "kernel.so";
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = write(fd, static_cast<const char*>(image) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return "kernel.so";
    done += static_cast<std::size_t>(n);
  }
  close(fd);
  if (const char* failed = change_root()) return failed;
  return set_mount_attributes("/", false, kReadOnly) ? nullptr : "read-only root";
}

int landlock_version() {
  const long version = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version > 0 ? static_cast<int>(version) : 0;
}

const char* restrict_paths(const ReadableFolder* readable, std::size_t count, const char* work, int version) {
  constexpr std::uint64_t kReads =
      LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
  constexpr std::uint64_t kOfFiles = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE;
  // Version 1 has 13 rights; 2 adds moves between folders, 3 truncation.
  const int defined = version >= kLandlockForTruncation ? 15 : version == 2 ? 14 : 13;
  const std::uint64_t all = (1ull << defined) - 1;
  // Before rights of later versions.
  struct {
    std::uint64_t handled_access_fs;
  } rules{all};
  const int ruleset = static_cast<int>(syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0));
  if (ruleset < 0) return "landlock_create_ruleset";
  const auto allow = [ruleset](const char* path, std::uint64_t rights) {
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR;
    struct stat what;
    if (fstat(fd, &what) != 0) return false;
    if (!S_ISDIR(what.st_mode)) rights &= kOfFiles | LANDLOCK_ACCESS_FS_WRITE_FILE;
    landlock_path_beneath_attr rule{rights, fd};
    const bool added = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    close(fd);
    return added;
  };
  for (std::size_t i = 0; i < count; ++i)
    if (!allow(readable[i].path, kReads)) return "landlock_add_rule";
  if (work) {
    if (!allow(work, all)) return "landlock_add_rule";
    for (const char* device : kDevices)
      if (!allow(device, LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE)) return "landlock_add_rule";
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "no_new_privs";
  if (syscall(SYS_landlock_restrict_self, ruleset, 0) != 0) return "landlock_restrict_self";
  close(ruleset);
  return nullptr;
}

const char* drop_privileges() {
  // Root of a user namespace would get them back at exec, out of the bounding set.
  for (unsigned long capability = 0; capability < 64; ++capability)
    if (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1 && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 &&
        errno != EPERM)
      return "capability bounding set";
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (syscall(SYS_capset, &header, none) != 0) return "capset";
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? nullptr : "no_new_privs";
}

const char* install_filter(const sock_filter* code, std::size_t count) {
  const sock_fprog program{static_cast<unsigned short>(count), const_cast<sock_filter*>(code)};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0 ? nullptr : "seccomp";
}

}  // namespace flashcore::sandbox
