#pragma once
// Reading and writing files so that a failure loses nothing.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace flashcore {

// Enough for every text we read; what is larger was not meant.
constexpr std::uint64_t kMaxTextFile = std::uint64_t{1} << 30;
// Error kBadInput naming the path and the reason: missing, a directory, no permission, larger than `max_bytes`, or a
// pipe, socket or device, whose reading may never end. Only what was handed to the process may be a pipe: /dev/stdin,
// and /dev/fd/N as the shell's <(command) gives it.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes = kMaxTextFile);
// Temporary file in the same folder, write, fsync, rename: the old file stays until the new one is whole. The new one
// has the mode of the old one; a symbolic link stays, and what it names is replaced. A full disk or an unwritable
// folder is Error kEnvironment and leaves the old file as it was and no temporary behind. Neither does a kill while it
// writes, where the file system has files without a name (O_TMPFILE).
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
// Would write_file_atomically begin? Tried, not guessed: a file is made in the folder and is gone again. None if so,
// else why not.
std::optional<std::string> why_not_writable(const std::filesystem::path& path);

// Of all processes that lock the same file, one at a time; the file is made, and stays. Held while the object lives.
// Error kEnvironment if it cannot be made, or is not had within half a minute.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};
// $FLASHCORE_CACHE, else $XDG_CACHE_HOME/flashcore, else ~/.cache/flashcore. Not created.
std::filesystem::path cache_directory();

}  // namespace flashcore
