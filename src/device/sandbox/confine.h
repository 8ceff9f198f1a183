#pragma once
// What a process does to itself before it runs others' code. All of it is called between fork and exec of a process
// that may have threads, so no function here allocates, locks or throws: each returns null, or the name of the step
// that failed, with errno set.

#include <linux/filter.h>

#include <cstddef>

namespace flashcore::sandbox {

struct ReadableFolder {
  const char* path;    // absolute
  const char* target;  // the same without the leading '/'
};

// In new user and mount namespaces: makes the outer user `uid` and group `gid` this one's root.
const char* map_to_root(const char* uid_map, const char* gid_map);
// A root of its own: `readable` at their own paths, those that exist, and `work` as /work, which is all that can be
// written. `parents`: folders to make first, in order, null at the end.
const char* build_root(const ReadableFolder* readable, std::size_t count, const char* const* parents, const char* work);
// A root that holds `image` alone, as /kernel.so.
const char* build_root_of(const void* image, std::size_t bytes);
// Truncation by path is confined from this version of Landlock on; looking into other processes from the first.
constexpr int kLandlockForTruncation = 3;
// Landlock: reads `readable`, writes `work` (null: nothing at all). `version`: the kernel's, of which no more than the
// above is used.
const char* restrict_paths(const ReadableFolder* readable, std::size_t count, const char* work,
                           int version = kLandlockForTruncation);
// The version of Landlock's interface; 0 if the kernel has none.
int landlock_version();

const char* drop_privileges();
const char* install_filter(const sock_filter* code, std::size_t count);

}  // namespace flashcore::sandbox
