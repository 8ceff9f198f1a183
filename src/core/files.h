#pragma once
// Reading and writing files so that a failure loses nothing.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace flashcore {

// Error kBadInput naming the path and the reason (missing, a directory, no permission).
std::string read_file(const std::filesystem::path& path);
// Temporary file in the same folder, write, fsync, rename: the old file stands until the new one is whole. A full disk
// or an unwritable folder is Error kEnvironment and leaves the old file as it was and no temporary behind.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
// $FLASHCORE_CACHE, else $XDG_CACHE_HOME/flashcore, else ~/.cache/flashcore. Not created.
std::filesystem::path cache_directory();

}  // namespace flashcore
