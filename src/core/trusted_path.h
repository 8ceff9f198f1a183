#pragma once
// Who else could have written a file: asked before code is loaded from it.

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace flashcore {

// Why others than root, the user, and who owns the code that runs in this process already (the program, this library,
// libc, and the folders they lie in) could have put something else there: the sentence names the first folder or file
// that they own or may write to. Every folder from the root on counts, behind symbolic links; the sticky bit of /tmp
// protects what is in it. A group may write if nobody else is in it. Empty: nobody else could have.
std::string why_untrusted(const std::filesystem::path& path);
// The same for one file or folder that is open, without those above it. `name` is for the sentence.
std::string why_untrusted(const struct stat& info, const std::string& name);

}  // namespace flashcore
