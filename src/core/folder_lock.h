#pragma once
// A folder for one process at a time.

#include <filesystem>

namespace flashcore {

// Held while the object lives, and gone with its process however that ends. Unlike FileLock it waits for nobody.
class FolderLock {
 public:
  // Locks the file `name` of the folder, which is made and stays. Error kEnvironment if it cannot be made.
  FolderLock(const std::filesystem::path& folder, const char* name);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  // False: another process has it.
  bool held() const { return held_; }

 private:
  int fd_ = -1;
  bool held_ = false;
};

}  // namespace flashcore
