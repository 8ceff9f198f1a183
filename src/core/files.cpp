#include "core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <system_error>
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

// Takes its file away again unless the write got as far as the rename.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  ~Temporary() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::string path_;
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

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  // Through symbolic links: the link stays, the file it names is replaced.
  std::error_code ignored;
  std::filesystem::path target = path;
  if (std::filesystem::is_symlink(path, ignored)) {
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, ignored);
    if (!ignored) target = resolved;
  }
  struct stat info {};
  const bool exists = ::stat(target.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    throw_environment("cannot write {}: it exists and is not a regular file; choose another path", path.string());
  }
  static std::atomic<unsigned> serial{0};
  const std::string name = fmt::format("{}.{}.{}.tmp", target.string(), ::getpid(), serial++);
  FileDescriptor file(
      ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, exists ? info.st_mode & 0777 : 0666));
  if (file.get() < 0) throw_not_written(path, errno);
  Temporary temporary(name);
  if (const int error = write_all(file.get(), bytes)) throw_not_written(path, error);
  if (::fsync(file.get()) != 0) throw_not_written(path, errno);
  if (const int error = file.close_now()) throw_not_written(path, error);
  if (::rename(temporary.path().c_str(), target.c_str()) != 0) throw_not_written(path, errno);
  temporary.keep();
  // Makes the rename itself survive a power cut. The data is safe either way, so a file system that cannot is no error.
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  const FileDescriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() >= 0) ::fsync(parent.get());
}

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
