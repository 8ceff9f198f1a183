#include "core/trusted_path.h"

#include <dlfcn.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "core/error.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kGroupMayWrite = S_IWGRP, kAllMayWrite = S_IWOTH;
// Groups below this have a fixed number and are the system's own ("staff" owns /usr/local on some systems).
constexpr gid_t kFirstOrdinaryGroup = 100;

// Who owns `file` or a folder on the way to it: each could exchange it.
void add_owners(std::set<uid_t>& owners, const std::string& file) {
  std::error_code error;
  const fs::path whole = fs::canonical(file, error);
  if (error) return;
  fs::path above;
  for (const fs::path& part : whole) {
    above /= part;
    struct stat info {};
    if (lstat(above.c_str(), &info) == 0) owners.insert(info.st_uid);
  }
}

// In full, or nothing: of the program itself it is argv[0], which may be the name of some file in the current
// directory.
std::string file_of(const void* address) {
  Dl_info info{};
  const bool found = dladdr(address, &info) != 0 && info.dli_fname && info.dli_fname[0] == '/';
  return found ? info.dli_fname : "";
}

// Whose code this process runs anyway. In a user namespace root has another number, and libc is still root's.
const std::set<uid_t>& trusted_owners() {
  static const std::set<uid_t> owners = [] {
    std::set<uid_t> all = {0, geteuid()};
    add_owners(all, "/proc/self/exe");
    add_owners(all, file_of(reinterpret_cast<const void*>(&trusted_owners)));
    add_owners(all, file_of(reinterpret_cast<const void*>(&std::malloc)));
    return all;
  }();
  return owners;
}

struct Group {
  std::string name;
  std::vector<std::string> members;
};

Group group_of(gid_t gid) {
  std::vector<char> buffer(1 << 16);
  group entry{};
  group* found = nullptr;
  Group result;
  if (getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found) != 0 || !found) return result;
  result.name = found->gr_name;
  for (char** member = found->gr_mem; *member; ++member) result.members.emplace_back(*member);
  return result;
}

std::string user_name() {
  std::vector<char> buffer(1 << 16);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || !found) return "";
  return found->pw_name;
}

// A user's private group has the user's name, and nobody else in it.
bool is_own_group(gid_t gid) {
  if (gid == 0) return true;
  const Group group = group_of(gid);
  const std::string user = user_name();
  if (group.name.empty() || (group.name != user && gid >= kFirstOrdinaryGroup)) return false;
  return std::all_of(group.members.begin(), group.members.end(),
                     [&](const std::string& member) { return member == user || member == "root"; });
}

}  // namespace

std::string why_untrusted(const struct stat& info, const std::string& name) {
  if (!trusted_owners().contains(info.st_uid))
    return fmt::format("{} belongs to user {}, who is neither you nor root", name, info.st_uid);
  // Whoever may write to a sticky folder cannot exchange what others have in it.
  if (S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX)) return "";
  if (info.st_mode & kAllMayWrite)
    return fmt::format("everybody may write to {} (mode {:04o})", name, info.st_mode & 07777);
  if ((info.st_mode & kGroupMayWrite) && !is_own_group(info.st_gid)) {
    const Group group = group_of(info.st_gid);
    return fmt::format("group {} may write to {} (mode {:04o})",
                       group.name.empty() ? std::to_string(info.st_gid) : group.name, name, info.st_mode & 07777);
  }
  return "";
}

std::string why_untrusted(const std::filesystem::path& path) {
  std::error_code error;
  const fs::path whole = fs::canonical(path, error);
  if (error) return fmt::format("{} cannot be looked at: {}", path.string(), error.message());
  fs::path above;
  for (const fs::path& part : whole) {
    above /= part;
    struct stat info {};
    if (lstat(above.c_str(), &info) != 0) return fmt::format("{} cannot be looked at", above.string());
    // Exchanged since canonical() by somebody who can.
    if (S_ISLNK(info.st_mode)) return fmt::format("{} is a symbolic link that just came", above.string());
    if (auto why = why_untrusted(info, above.string()); !why.empty()) return why;
  }
  return "";
}

}  // namespace flashcore
