// The commits of a results file by git (lab/verify/claims.h).

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/foreign_text.h"
#include "lab/record/checkout.h"
#include "lab/record/trial.h"
#include "lab/verify/claims.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::size_t kShortestCommit = 7, kLongestCommit = 64;

struct Use {
  std::string row;
  std::size_t session;  // 0: of the row as a whole
  std::optional<double> began;
};

bool is_commit(const std::string& text) {
  return text.size() >= kShortestCommit && text.size() <= kLongestCommit &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::map<std::string, std::vector<Use>> uses_of_commits(const json& rows) {
  std::map<std::string, std::vector<Use>> uses;
  for (const json& row : rows) {
    if (!row.is_object()) continue;
    const std::string name = name_of_row(row);
    const json environment = part(row, "environment"), measured = part(row, "measured");
    if (environment.is_object() && environment.contains("commit"))
      uses[text_in(environment, "commit")].push_back({name, 0, time_in(environment, "measured_at")});
    for (std::size_t s = 0; measured.is_array() && s < measured.size(); ++s)
      if (measured[s].is_object() && measured[s].contains("commit"))
        uses[text_in(measured[s], "commit")].push_back({name, s + 1, began_at_of(measured[s])});
  }
  return uses;
}

std::optional<double> date_of_commit(const std::string& folder, const std::string& commit) {
  const ProgramResult answer = ask_git(folder, {"rev-list", "--max-count=1", "--timestamp", commit, "--"});
  if (!answer.started || answer.exit_code != 0) return std::nullopt;
  const std::optional<std::int64_t> seconds = parse_whole(answer.output.substr(0, answer.output.find(' ')));
  return seconds ? std::optional<double>(static_cast<double>(*seconds)) : std::nullopt;
}

std::size_t count_rows(const std::vector<Use>& uses) {
  std::vector<std::string> names;
  for (const Use& use : uses) names.push_back(use.row);
  std::sort(names.begin(), names.end());
  return static_cast<std::size_t>(std::unique(names.begin(), names.end()) - names.begin());
}

// Names of the rows with something that was measured beside changes.
std::vector<Use> dirty_uses(const json& rows) {
  std::vector<Use> uses;
  for (const json& row : rows) {
    if (!row.is_object()) continue;
    const json measured = part(row, "measured");
    bool dirty = part(part(row, "environment"), "dirty") == json(true);
    if (measured.is_array())
      for (const json& session : measured) dirty = dirty || part(session, "dirty") == json(true);
    if (dirty) uses.push_back({name_of_row(row), 0, std::nullopt});
  }
  return uses;
}

}  // namespace

Claims audit_commits(const json& document, const std::filesystem::path& file) {
  Claims claims;
  std::map<std::string, std::vector<Use>> uses = uses_of_commits(document.at("results"));
  std::vector<Use> nameless;
  for (const char* none : {"", kUnknownCommit})
    if (const auto found = uses.find(none); found != uses.end()) {
      nameless.insert(nameless.end(), found->second.begin(), found->second.end());
      uses.erase(found);
    }
  if (!nameless.empty())
    claims.remarks.push_back(fmt::format("{} of its results name no commit", count_rows(nameless)));
  if (const auto dirty = dirty_uses(document.at("results")); !dirty.empty())
    claims.remarks.push_back(
        fmt::format("{} of its results were measured on sources with changes beside their commit, which does not say "
                    "what ran",
                    count_rows(dirty)));
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  bool is_repository = false;
  if (!uses.empty()) {
    const ProgramResult inside = ask_git(folder, {"rev-parse", "--git-dir"});
    is_repository = inside.started && inside.exit_code == 0;
    if (!is_repository) claims.remarks.emplace_back("its commits are not looked up: no git repository is around it");
  }
  std::vector<std::string> absent;
  for (const auto& [commit, of] : uses) {
    if (!is_commit(commit)) {
      claims.wrong.push_back(fmt::format("{}: '{}' is no commit", of.front().row, excerpt(commit)));
      continue;
    }
    if (!is_repository) continue;
    const std::optional<double> date = date_of_commit(folder, commit);
    if (!date) {
      absent.push_back(fmt::format("{} of {} results", commit, count_rows(of)));
      continue;
    }
    for (const auto& [row, session, began] : of)
      if (began && *began < *date - kClockSkewSeconds)
        claims.wrong.push_back(fmt::format("{}: {} names the commit {}, which was made after it began", row,
                                           session == 0 ? "its environment" : fmt::format("session {}", session),
                                           commit));
  }
  if (!absent.empty())
    claims.remarks.push_back(fmt::format(
        "commits that this repository does not hold (rebased since, or a shallow clone): {}", fmt::join(absent, ", ")));
  return claims;
}

}  // namespace flashcore
