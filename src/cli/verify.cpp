// flashcore verify: does a committed results file describe the source as it stands.

#include "cli/common.h"
#include "cli/verbs.h"
#include "lab/compare/bench.h"

namespace flashcore::cli {

namespace {

int verify(const Common& common, const std::vector<std::string>& files) {
  check_json_target(common);
  Console console(common.quiet, json_on_stdout(common));
  // All are read before any verdict is printed: an unreadable file must not hide behind one.
  std::vector<Verification> verifications;
  for (const std::string& file : files) verifications.push_back(verify_results(file));
  nlohmann::json results = nlohmann::json::array();
  std::size_t stale = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Verification& v = verifications[i];
    stale += v.fresh ? 0 : 1;
    const Painted verdict = console.paint(v.fresh ? "fresh" : "STALE", v.fresh ? Tone::kGood : Tone::kBad);
    if (v.fresh) {
      console.line("{}  {}: {}", verdict, files[i], v.reason);
    } else {
      console.summary("{}  {}: {}", verdict, files[i], v.reason);
    }
    nlohmann::json stale_rows = nlohmann::json::array();
    for (const auto& [row, name, why] : v.stale) {
      if (v.stale.size() > 1) console.line("  {}: {}", name, why);
      stale_rows.push_back({{"row", row}, {"name", name}, {"why", why}});
    }
    results.push_back({{"file", files[i]},
                       {"fresh", v.fresh},
                       {"reason", v.reason},
                       {"stale", std::move(stale_rows)},
                       {"wrong", v.wrong}});
  }
  write_json(common, {{"schema", "flashcore.verify/1"}, {"results", results}});
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
