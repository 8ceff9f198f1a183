#pragma once
#include <SQLiteCpp/Exception.h>

#include <filesystem>
#include <string>

namespace flashcore {

// What SQLite's failure means for the user: Error kEnvironment (disk full, not writable, locked) or kBadInput (not a
// database, damaged). `doing`: "open", "read", "write to".
[[noreturn]] void throw_store_error(const std::filesystem::path& path, const std::string& doing,
                                    const SQLite::Exception& e);

}  // namespace flashcore
