#include "device/cuda/compile_cache.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"

namespace flashcore::cuda {
namespace {

// A file is: kFormat, checksum (32 hex digits), size of the JSON (8 hex digits), '\n', JSON, cubin. The checksum covers
// everything after it. A change of what an entry holds gets a new format word, and old entries become misses.
constexpr std::string_view kFormat = "flashcore-artifact-1 ";
constexpr std::size_t kChecksum = 32, kLength = 8;
constexpr std::size_t kHeader = kFormat.size() + kChecksum + 1 + kLength + 1;

std::string encode(const std::string& key, const Artifact& artifact) {
  nlohmann::json facts = artifact;
  const std::string text = nlohmann::json{{"key", key}, {"artifact", facts}}.dump();
  const std::string rest = fmt::format("{:08x}\n", text.size()) + text + artifact.cubin;
  return std::string(kFormat) + hash128(rest) + " " + rest;
}

std::optional<Artifact> decode(const std::string& key, std::string_view file) {
  if (file.size() < kHeader || !file.starts_with(kFormat)) return std::nullopt;
  const std::string_view checksum = file.substr(kFormat.size(), kChecksum);
  const std::string_view rest = file.substr(kFormat.size() + kChecksum + 1);
  if (hash128(rest) != checksum) return std::nullopt;
  const std::size_t length = std::stoul(std::string(rest.substr(0, kLength)), nullptr, 16);
  const std::string_view body = rest.substr(kLength + 1);
  if (length > body.size()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(body.substr(0, length));
  if (json.at("key") != key) return std::nullopt;
  auto artifact = json.at("artifact").get<Artifact>();
  artifact.cubin = std::string(body.substr(length));
  artifact.from_cache = true;
  return artifact;
}

// Keys are hashes, so each of the 256 folders (path_of) holds its share, and looking at one is enough: removes the
// files that were not used for longest, but for `newest`, once they are more than `max_bytes` together. Another process
// may remove them at the same time, and a reader keeps what it has opened.
void prune(const std::filesystem::path& folder, const std::filesystem::path& newest, std::uintmax_t max_bytes) {
  struct File {
    std::filesystem::file_time_type used;
    std::uintmax_t bytes;
    std::filesystem::path path;
  };
  std::vector<File> files;
  std::uintmax_t total = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    File file{entry->last_write_time(gone), 0, entry->path()};
    if (!gone) file.bytes = entry->file_size(gone);
    if (gone) continue;
    total += file.bytes;
    if (file.path != newest) files.push_back(std::move(file));
  }
  if (total <= max_bytes) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  // Down to three quarters: not again at the next store.
  for (auto file = files.begin(); file != files.end() && total > max_bytes / 4 * 3; ++file) {
    std::filesystem::remove(file->path, error);
    total -= file->bytes;
  }
}

}  // namespace

std::filesystem::path CompileCache::path_of(const std::string& key) const {
  return folder_ / key.substr(0, 2) / (key + ".kernel");
}

std::optional<Artifact> CompileCache::find(const std::string& key) const {
  std::ifstream stream(path_of(key), std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string file{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  try {
    auto artifact = decode(key, file);
    std::error_code ignored;  // a folder that cannot be written
    if (artifact)
      std::filesystem::last_write_time(path_of(key), std::filesystem::file_time_type::clock::now(), ignored);
    return artifact;
  } catch (const std::exception&) {  // checksum right but contents not: written by another version
    return std::nullopt;
  }
}

bool CompileCache::store(const std::string& key, const Artifact& artifact) const {
  const std::filesystem::path path = path_of(key);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) return false;
  try {
    write_file_atomically(path, encode(key, artifact));
    prune(path.parent_path(), path, max_bytes_ / 256);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace flashcore::cuda
