#pragma once
// The git checkout that something is measured in: which state of the sources its results are of.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/child_process.h"

namespace flashcore {

struct Checkout {
  std::string commit;  // HEAD
  // Sources in the tree are not those of the commit, or not those that this program was built from: the commit alone
  // does not say what ran.
  bool dirty = false;
};

// In place of a commit where neither the run nor the build was in a git checkout.
inline constexpr const char* kUnknownCommit = "unknown (no git)";

// Of flashcore's own repository around `folder`. None: another's, none at all, or git is not here.
std::optional<Checkout> read_checkout(const std::filesystem::path& folder);

// Writes "commit", and "dirty" where it is, into a record of where something was measured.
void put_checkout(nlohmann::json& record, const Checkout& checkout);

// A foreign repository's configuration names programs: this runs none of them, unless git fetches what is absent,
// which it may not.
ProgramResult ask_git(const std::filesystem::path& folder, const std::vector<std::string>& command);

}  // namespace flashcore
