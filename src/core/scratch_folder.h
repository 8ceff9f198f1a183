#pragma once
// A temporary folder that does not stay behind: not after a crash, not after a kill.

#include <filesystem>
#include <string>
#include <string_view>

namespace flashcore {

// In TMPDIR or /tmp, for this user alone. Gone with the object. A process that is killed leaves its folder; whoever
// makes the next one removes it. Error kEnvironment if none can be made.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Path of the file `name` in it, which holds `bytes` now; folders of `name` are made. Nobody keeps it, so nothing
  // waits for the disk: sixty headers of an emulated kernel took a tenth of its compilation with write_file_atomically.
  // Error kEnvironment if it cannot be written.
  std::filesystem::path write(const std::filesystem::path& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

// Removes the scratch folders whose processes are gone. For a program that has just killed its workers.
void remove_left_scratch_folders() noexcept;

}  // namespace flashcore
