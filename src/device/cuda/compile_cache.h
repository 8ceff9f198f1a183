#pragma once
// Compiled kernels on disk, one file each, shared by every process of the user. Bounded: what was not used for longest
// goes first.
//
// What is found here is run, so it is used only where nobody else can have put it (core/trusted_path.h): a folder that
// others own or may write to is neither read nor written, and no symbolic link inside it is followed.

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
  // another key's file, another format, another user's): the caller compiles and its store() replaces it. A key is the
  // SHA-256 of everything that the kernel is made from.
  std::optional<Artifact> find(const std::string& key) const;
  // Atomic: a reader or a concurrent writer sees the old file or the new one. A folder that cannot be written or that
  // others can write to, or a full disk, only means no cache; returns whether the entry was written. New folders are
  // the user's alone.
  bool store(const std::string& key, const Artifact& artifact) const;

  std::filesystem::path path_of(const std::string& key) const;
  // Why nothing is kept, and what to do; empty if it is, or will be once there is a folder.
  std::string why_unused() const;

 private:
  std::filesystem::path folder_;
  std::uintmax_t max_bytes_;
};

}  // namespace flashcore::cuda
