#pragma once
// Compiled kernels on disk, one file each, shared by every process of the user.

#include <filesystem>
#include <optional>
#include <string>

#include "device/artifact.h"

namespace flashcore::cuda {

class CompileCache {
 public:
  explicit CompileCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // None if there is no entry, or if the file is not wholly what store() wrote for this key (cut short, flipped bits,
  // another key's file, another format): the caller compiles and its store() replaces it.
  std::optional<Artifact> find(const std::string& key) const;
  // Atomic: a reader or a concurrent writer sees the old file or the new one. A folder that cannot be written, or a
  // full disk, only means no cache; returns whether the entry was written.
  bool store(const std::string& key, const Artifact& artifact) const;

  std::filesystem::path path_of(const std::string& key) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace flashcore::cuda
