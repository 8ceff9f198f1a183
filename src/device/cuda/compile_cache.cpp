#include "device/cuda/compile_cache.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

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

}  // namespace

std::filesystem::path CompileCache::path_of(const std::string& key) const {
  return folder_ / key.substr(0, 2) / (key + ".kernel");
}

std::optional<Artifact> CompileCache::find(const std::string& key) const {
  std::ifstream stream(path_of(key), std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string file{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  try {
    return decode(key, file);
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
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace flashcore::cuda
