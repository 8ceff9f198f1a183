#include "core/folder_lock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.h"

namespace flashcore {

FolderLock::FolderLock(const std::filesystem::path& folder, const char* name)
    : fd_(::open((folder / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) {
  if (fd_ < 0)
    throw_environment("cannot open {}: {}; choose another folder", (folder / name).string(), strerror(errno));
  int failed = 0;
  while ((failed = ::flock(fd_, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
  }
  // A file system without locks: as good as it gets.
  held_ = failed == 0 || errno == ENOLCK || errno == EOPNOTSUPP;
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace flashcore
