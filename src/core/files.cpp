#include "core/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { close_now(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  // 0, or errno: some file systems report a full disk only here.
  int close_now() { return fd_ < 0 ? 0 : (::close(std::exchange(fd_, -1)) == 0 ? 0 : errno); }

 private:
  int fd_;
};

constexpr std::chrono::seconds kLockPatience{30};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// Not the process id: in containers everybody has the same few. Not the target's name with something added: that may be
// as long as a name can be.
std::string random_name(const std::filesystem::path& folder) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) number = std::random_device()();
  return (folder / fmt::format(".flashcore-{:016x}.tmp", number)).string();
}

// A file that is gone with this object unless it is put into its place: without a name where the file system has that,
// so that not even a kill leaves it behind.
class NewFile {
 public:
  // 0, or errno.
  int create(const std::filesystem::path& folder, bool named) {
    folder_ = folder;
    if (!named) {
      fd_ = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
      return fd_ < 0 ? errno : 0;
    }
    do {
      name_ = random_name(folder_);
      fd_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd_ < 0 && errno == EEXIST);
    if (fd_ >= 0) return 0;
    name_.clear();
    return errno;
  }
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  NewFile() = default;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int fd() const { return fd_; }
  // 0, or errno. Needs /proc for a file that has no name.
  int give_name() {
    if (!name_.empty()) return 0;
    const std::string self = fmt::format("/proc/self/fd/{}", fd_);
    std::string name;
    int error = 0;
    do {
      name = random_name(folder_);
      error = ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
    } while (error == EEXIST);
    if (error == 0) name_ = name;
    return error;
  }
  // Some file systems report a full disk only here.
  int close_now() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }
  int move_to(const std::filesystem::path& target) {
    if (::rename(name_.c_str(), target.c_str()) != 0) return errno;
    name_.clear();
    return 0;
  }

 private:
  std::filesystem::path folder_;
  std::string name_;
  int fd_ = -1;
};

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// Whether the path names what was open when the process started.
bool is_inherited(const std::filesystem::path& path) {
  const std::string text = path.string();
  return text == "/dev/stdin" || text.starts_with("/dev/fd/") || text.starts_with("/proc/self/fd/");
}

[[noreturn]] void throw_not_written(const std::filesystem::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw_environment("cannot write {}: {}; {}", path.string(), reason(error),
                    full ? "free some space or choose another folder (an earlier file there is as it was)"
                         : "check that the folder exists and may be written to, or choose another");
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const std::string name = excerpt(path.string());
  // O_NONBLOCK: opening a named pipe would wait for its other end.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  const int failed = file.get() < 0 || ::fstat(file.get(), &info) != 0 ? errno : 0;
  if (failed != 0) throw_bad_input("cannot read {}: {}; give the path of a readable file", name, reason(failed));
  if (S_ISDIR(info.st_mode)) throw_bad_input("cannot read {}: it is a directory; give the path of a file", name);
  const bool is_regular = S_ISREG(info.st_mode);
  if (!is_regular && !(is_inherited(path) && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))))
    throw_bad_input("cannot read {}: it is a pipe, a socket or a device; give the path of a regular file", name);
  if (!is_regular) ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  const auto known = is_regular ? static_cast<std::uint64_t>(info.st_size) : 0;
  const auto check_size = [&](std::uint64_t size) {
    if (size > max_bytes)
      throw_bad_input("cannot read {}: it holds more than {} bytes, the most that is allowed here; give a smaller file",
                      name, max_bytes);
  };
  check_size(known);
  std::string bytes(known, '\0');
  for (std::size_t size = 0;;) {
    // st_size is 0 for pipes and for files of /proc, and a file may grow: whether it ends there is seen only by reading
    // on, which a large file's string need not grow for.
    char beyond[4096];
    const bool full = size == bytes.size();
    const ssize_t got =
        ::read(file.get(), full ? beyond : bytes.data() + size, full ? sizeof beyond : bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_bad_input("cannot read {}: {}; give the path of a readable file", name, reason(errno));
    if (got == 0) {
      bytes.resize(size);
      return bytes;
    }
    if (full) bytes.append(beyond, static_cast<std::size_t>(got));
    size += static_cast<std::size_t>(got);
    check_size(size);
  }
}

namespace {

// Through symbolic links: the link stays, the file it names is replaced.
std::filesystem::path target_of(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  return error ? path : resolved;
}

// 0, or errno.
int write_new(NewFile& file, std::string_view bytes, const std::optional<struct stat>& old) {
  if (old) {
    (void)!::fchown(file.fd(), old->st_uid, old->st_gid);  // allowed where it matters: to root writing a user's file
    (void)!::fchmod(file.fd(), old->st_mode & 0777);
  }
  if (const int error = write_all(file.fd(), bytes)) return error;
  return ::fsync(file.fd()) != 0 ? errno : 0;
}

constexpr const char* kNoRegularFile = "it exists and is not a regular file; choose another path";

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path target = target_of(path), folder = folder_of(target);
  std::optional<struct stat> old;
  if (struct stat info{}; ::stat(target.c_str(), &info) == 0) old = info;
  if (old && !S_ISREG(old->st_mode)) throw_environment("cannot write {}: {}", path.string(), kNoRegularFile);
  // Not every file system has files without a name, and naming one needs /proc.
  auto file = std::make_unique<NewFile>();
  if (file->create(folder, false) != 0) {
    file = std::make_unique<NewFile>();
    if (const int error = file->create(folder, true)) throw_not_written(path, error);
  }
  if (const int error = write_new(*file, bytes, old)) throw_not_written(path, error);
  if (file->give_name() != 0) {
    file = std::make_unique<NewFile>();
    if (const int error = file->create(folder, true)) throw_not_written(path, error);
    if (const int error = write_new(*file, bytes, old)) throw_not_written(path, error);
  }
  if (const int error = file->close_now()) throw_not_written(path, error);
  if (const int error = file->move_to(target)) throw_not_written(path, error);
  // Makes the rename itself survive a power cut. The data is safe either way, so a file system that cannot is no error.
  const FileDescriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() >= 0) ::fsync(parent.get());
}

std::optional<std::string> why_not_writable(const std::filesystem::path& path) {
  const std::filesystem::path target = target_of(path), folder = folder_of(target);
  struct stat info {};
  if (::stat(target.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return "it is a folder; give the name of a file";
    if (!S_ISREG(info.st_mode)) return kNoRegularFile;
  } else if (errno == ENAMETOOLONG) {
    return "the name is too long; give a shorter one";
  }
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return fmt::format("the folder {} does not exist; create it first", folder.string());
  NewFile file;
  if (const int error = file.create(folder, true))
    return fmt::format("cannot write in {}: {}; choose another folder", folder.string(), reason(error));
  return std::nullopt;
}

FileLock::FileLock(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
  if (fd_ < 0) throw_not_written(path, errno);
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == ENOLCK || error == EOPNOTSUPP) return;  // a file system without locks: as good as it gets
    if (error != EWOULDBLOCK && error != EINTR) {
      ::close(fd_);
      throw_not_written(path, error);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      ::close(fd_);
      throw_environment("{} has been locked by another process for {} s; end that process and run again", path.string(),
                        kLockPatience.count());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

FileLock::~FileLock() { ::close(fd_); }

std::filesystem::path cache_directory() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (auto own = variable("FLASHCORE_CACHE"); !own.empty()) return own;
  // The XDG specification: a relative path there is invalid and to be ignored.
  if (const auto xdg = variable("XDG_CACHE_HOME"); xdg.is_absolute()) return xdg / "flashcore";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".cache" / "flashcore";
  throw_environment(
      "no folder for the cache: neither FLASHCORE_CACHE, XDG_CACHE_HOME nor HOME is set; set FLASHCORE_CACHE to a "
      "folder");
}

}  // namespace flashcore
