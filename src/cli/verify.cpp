// flashcore verify: does a committed results file describe the source as it stands.

#include <algorithm>
#include <set>

#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "kernels/embedded.h"

namespace flashcore::cli {

namespace {

// Every source_hash a results file carries. Error kBadInput if it is not such a file.
std::set<std::string> hashes_in(const std::string& path) {
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw_bad_input("{}: not JSON ({}); verify reads what `flashcore bench --json FILE` writes", path, error.what());
  }
  if (!document.is_object() || !document.contains("results") || !document["results"].is_array()) {
    throw_bad_input("{}: no \"results\" array; verify reads what `flashcore bench --json FILE` writes", path);
  }
  std::set<std::string> hashes;
  for (const auto& result : document["results"]) {
    if (!result.is_object() || !result.contains("source_hash") || !result["source_hash"].is_string()) {
      throw_bad_input("{}: result {} has no \"source_hash\"; measure again with `flashcore bench --json FILE`", path, hashes.size());
    }
    hashes.insert(result["source_hash"].get<std::string>());
  }
  if (hashes.empty()) throw_bad_input("{}: \"results\" is empty, so there is nothing to verify", path);
  return hashes;
}

int verify(const Common& common, const std::vector<std::string>& files) {
  check_json_target(common);
  Console console(common.quiet, json_on_stdout(common));
  const std::string current = source_hash();
  nlohmann::json results = nlohmann::json::array();
  std::size_t stale = 0;
  // All are read before any is judged: an unreadable one must not hide behind a verdict.
  std::vector<std::set<std::string>> found;
  for (const std::string& file : files) found.push_back(hashes_in(file));
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool fresh = found[i] == std::set<std::string>{current};
    stale += fresh ? 0 : 1;
    const bool mixed = found[i].size() > 1;
    console.line("{}  {}{}", console.paint(fresh ? "fresh" : "STALE", fresh ? Tone::kGood : Tone::kBad), files[i],
                 fresh ? "" : mixed ? "  (measured on several sources)" : fmt::format("  (measured on source {}, this is {})", *found[i].begin(), current));
    results.push_back({{"file", files[i]}, {"fresh", fresh}, {"source_hashes", found[i]}});
  }
  write_json(common, {{"schema", "flashcore.verify/1"}, {"source_hash", current}, {"results", results}});
  console.summary("{} fresh, {} stale", files.size() - stale, stale);
  return stale == 0 ? kDone : kFailed;
}

}  // namespace

Run add_verify(CLI::App& app) {
  auto common = std::make_shared<Common>();
  auto files = std::make_shared<std::vector<std::string>>();
  app.add_option("files", *files, "results files, as results/h200/canonical.json")->required()->type_name("FILE");
  add_common(app, *common, kJson);
  add_examples(app, {"verify fresh.json", "verify stale.json  # exit 1"});
  return [common, files] { return verify(*common, *files); };
}

}  // namespace flashcore::cli
