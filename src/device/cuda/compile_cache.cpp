#include "device/cuda/compile_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/sha256.h"
#include "core/trusted_path.h"

namespace flashcore::cuda {
namespace {

namespace fs = std::filesystem;

// A file is: kFormat, checksum (64 hex digits), size of the JSON (8 hex digits), '\n', JSON, cubin. The checksum covers
// everything after it. A change of what an entry holds gets a new format word, and old entries become misses.
constexpr std::string_view kFormat = "flashcore-artifact-2 ";
constexpr std::size_t kChecksum = 64, kLength = 8;
constexpr std::size_t kHeader = kFormat.size() + kChecksum + 1 + kLength + 1;

std::string encode(const std::string& key, const Artifact& artifact) {
  nlohmann::json facts = artifact;
  const std::string text = nlohmann::json{{"key", key}, {"artifact", facts}}.dump();
  const std::string rest = fmt::format("{:08x}\n", text.size()) + text + artifact.cubin;
  return std::string(kFormat) + sha256(rest) + " " + rest;
}

std::optional<Artifact> decode(const std::string& key, std::string_view file) {
  if (file.size() < kHeader || !file.starts_with(kFormat)) return std::nullopt;
  const std::string_view checksum = file.substr(kFormat.size(), kChecksum);
  const std::string_view rest = file.substr(kFormat.size() + kChecksum + 1);
  if (sha256(rest) != checksum) return std::nullopt;
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

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // Some file systems report a full disk only here.
  bool close_now() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

// The first of `folder` and those above it that exists.
fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  while (!fs::exists(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

// As create_directories, but what is created is the user's alone whatever the umask.
void create_private_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::exists(folder, ignored)) return;
  create_private_folders(folder.parent_path());
  ::mkdir(folder.c_str(), 0700);
}

std::string name_of(const std::string& key) { return key + ".kernel"; }
std::string bucket_of(const std::string& key) { return key.substr(0, 2); }

bool is_ours(int fd, mode_t kind) {
  struct stat info {};
  return fd >= 0 && ::fstat(fd, &info) == 0 && (info.st_mode & S_IFMT) == kind && why_untrusted(info, "").empty();
}

// The folder for `key`, or -1 if it is not there or not to be trusted.
int open_bucket(const fs::path& folder, const std::string& key) {
  if (!why_untrusted(folder).empty()) return -1;
  std::error_code error;
  const Descriptor root(::open(fs::canonical(folder, error).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (error || root.get() < 0) return -1;
  const int bucket = ::openat(root.get(), bucket_of(key).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (is_ours(bucket, S_IFDIR)) return bucket;
  if (bucket >= 0) ::close(bucket);
  return -1;
}

std::optional<std::string> read_all(int fd) {
  std::string bytes;
  char piece[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return bytes;
    bytes.append(piece, static_cast<std::size_t>(got));
  }
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// No name that another process, in another container too, may have left.
std::string temporary_name(const std::string& key) {
  static std::atomic<unsigned> serial{0};
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}.{}.tmp", key, random(), random(), serial++);
}

}  // namespace

std::filesystem::path CompileCache::path_of(const std::string& key) const {
  return folder_ / bucket_of(key) / name_of(key);
}

std::string CompileCache::why_unused() const {
  const fs::path existing = nearest_existing(fs::absolute(folder_));
  const std::string why = why_untrusted(existing);
  if (why.empty()) return "";
  return fmt::format(
      "compiled kernels are neither read from {} nor kept there: {}, and could put others in their place. Make it "
      "yours "
      "alone (chown, chmod go-w), or set FLASHCORE_CACHE to a folder of your own",
      folder_.string(), why);
}

std::optional<Artifact> CompileCache::find(const std::string& key) const {
  const Descriptor bucket(open_bucket(folder_, key));
  if (bucket.get() < 0) return std::nullopt;
  // Not blocking: it may be a fifo.
  const Descriptor file(::openat(bucket.get(), name_of(key).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!is_ours(file.get(), S_IFREG)) return std::nullopt;
  const std::optional<std::string> bytes = read_all(file.get());
  if (!bytes) return std::nullopt;
  try {
    auto artifact = decode(key, *bytes);
    if (artifact) ::futimens(file.get(), nullptr);  // used now; a folder that cannot be written stays as it is
    return artifact;
  } catch (const std::exception&) {  // checksum right but contents not: written by another version
    return std::nullopt;
  }
}

bool CompileCache::store(const std::string& key, const Artifact& artifact) const {
  if (!why_unused().empty()) return false;
  create_private_folders(fs::absolute(path_of(key)).parent_path());
  const Descriptor bucket(open_bucket(folder_, key));
  if (bucket.get() < 0) return false;
  const std::string temporary = temporary_name(key);
  Descriptor file(
      ::openat(bucket.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) return false;
  const bool written = write_all(file.get(), encode(key, artifact)) && ::fsync(file.get()) == 0 && file.close_now();
  if (!written || ::renameat(bucket.get(), temporary.c_str(), bucket.get(), name_of(key).c_str()) != 0) {
    ::unlinkat(bucket.get(), temporary.c_str(), 0);
    return false;
  }
  const fs::path path = path_of(key);
  prune(path.parent_path(), path, max_bytes_ / 256);
  return true;
}

}  // namespace flashcore::cuda
