#include "lab/record/checkout.h"

#include <algorithm>

#include "core/files.h"
#include "device/compiler.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

namespace fs = std::filesystem;

constexpr double kGitSeconds = 20;
constexpr const char* kOurs = "src/kernels/embedded.h";  // a repository without it is not flashcore's

std::optional<std::string> answer_of(const fs::path& folder, const std::vector<std::string>& command) {
  const ProgramResult answer = ask_git(folder, command);
  if (!answer.started || answer.exit_code != 0 || !answer.stopped.empty()) return std::nullopt;
  return answer.output.substr(0, answer.output.find_last_not_of("\r\n") + 1);
}

// A program is often older than the tree that it is started in.
bool is_built_from(const fs::path& root) {
  const SourceMap& sources = all_sources();
  return std::all_of(sources.begin(), sources.end(), [&](const auto& source) {
    const fs::path file = root / "src" / included_as(source.first);
    return fs::exists(file) && read_file(file) == source.second;
  });
}

}  // namespace

ProgramResult ask_git(const fs::path& folder, const std::vector<std::string>& command) {
  std::vector<std::string> argv = {"env",          "GIT_ALLOW_PROTOCOL=none", "git", "-c", "core.fsmonitor=false", "-C",
                                   folder.string()};
  argv.insert(argv.end(), command.begin(), command.end());
  return run_program(argv, {.seconds = kGitSeconds});
}

std::optional<Checkout> read_checkout(const fs::path& folder) {
  const auto root = answer_of(folder, {"rev-parse", "--show-toplevel"});
  if (!root || !fs::exists(fs::path(*root) / kOurs)) return std::nullopt;
  const auto head = answer_of(folder, {"rev-parse", "--verify", "HEAD"});
  if (!head) return std::nullopt;
  // Not results/ and docs/: a run writes the first, and neither decides what runs.
  const auto changes = answer_of(*root, {"status", "--porcelain", "--untracked-files=no", "--", "src", "include",
                                         "python", "cmake", "CMakeLists.txt"});
  return Checkout{.commit = *head, .dirty = !changes || !changes->empty() || !is_built_from(*root)};
}

void put_checkout(nlohmann::json& record, const Checkout& checkout) {
  record["commit"] = checkout.commit;
  if (checkout.dirty) record["dirty"] = true;
}

}  // namespace flashcore
