#pragma once
// Compiled kernels on disk, one file each, shared by every process of the user. Bounded: what was not used for longest
// goes first.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "device/artifact.h"

namespace flashcore::cuda {

class CompileCache {
 public:
  static constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 30;  // some 25,000 kernels

  explicit CompileCache(std::filesystem::path folder, std::uintmax_t max_bytes = kMaxBytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}

  // None if there is no entry, or if the file is not wholly what store() wrote for this key (cut short, flipped bits,
  // another key's file, another format): the caller compiles and its store() replaces it.
  std::optional<Artifact> find(const std::string& key) const;
  // Atomic: a reader or a concurrent writer sees the old file or the new one. A folder that cannot be written, or a
  // full disk, only means no cache; returns whether the entry was written.
  bool store(const std::string& key, const Artifact& artifact) const;

  std::filesystem::path path_of(const std::string& key) const;

 private:
  std::filesystem::path folder_;
  std::uintmax_t max_bytes_;
};

}  // namespace flashcore::cuda
