#include "core/scratch_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <string_view>

#include "core/error.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

// No other name of ours begins so: what does may be removed.
constexpr std::string_view kPrefix = "flashcore-scratch-";

// A lock says that somebody lives: process ids say nothing between containers that share a folder. -1 if the folder is
// locked, no folder, or of a file system without locks.
int lock_folder(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  ::close(fd);
  return -1;
}

bool is_ours(int folder) {
  struct stat info {};
  return ::fstat(folder, &info) == 0 && info.st_uid == ::geteuid();
}

}  // namespace

ScratchFolder::ScratchFolder() {
  static std::atomic<bool> looked = false;  // no lock: a fork may come while another thread is here
  if (!looked.exchange(true)) remove_left_scratch_folders();
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error)
    throw_environment("the folder for temporary files is not there: {}; set TMPDIR to one that can be written",
                      error.message());
  const auto check = [&](bool fine) {
    if (!fine)
      throw_environment("cannot make a folder in {}: {}; set TMPDIR to one that can be written", parent.string(),
                        ::strerror(errno));
  };
  while (lock_ < 0) {
    std::string name = (parent / kPrefix).string() + "XXXXXX";
    check(::mkdtemp(name.data()) != nullptr);
    // Before it is locked, somebody may take it for one that was left, and remove it.
    const int fd = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    check(fd >= 0 || errno == ENOENT);
    while (fd >= 0 && ::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    if (fd >= 0 && ::access(name.c_str(), F_OK) == 0) path_ = name, lock_ = fd;
    else if (fd >= 0) ::close(fd);
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

fs::path ScratchFolder::write(const fs::path& name, std::string_view bytes) const {
  fs::path file = path_ / name;
  std::error_code ignored;  // the file says what is wrong
  if (name.has_parent_path()) fs::create_directories(file.parent_path(), ignored);
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out)
    throw_environment("cannot write {}: {}; make room there, or set TMPDIR to another folder", file.string(),
                      errno ? ::strerror(errno) : "not all of it was taken");
  return file;
}

void remove_left_scratch_folders() noexcept {
  try {
    std::error_code error;
    for (fs::directory_iterator at(fs::temp_directory_path(error), error), end; !error && at != end;
         at.increment(error)) {
      if (!at->path().filename().string().starts_with(kPrefix)) continue;
      const int fd = lock_folder(at->path());
      if (fd < 0) continue;
      std::error_code ignored;
      if (is_ours(fd)) fs::remove_all(at->path(), ignored);
      ::close(fd);
    }
  } catch (...) {  // no memory: they stay until the next time
  }
}

}  // namespace flashcore
