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
  std::size_t stale = 0, unconfirmed = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Verification& v = verifications[i];
    const bool checked = v.without_samples.empty();
    stale += v.fresh ? 0 : 1;
    unconfirmed += v.fresh && !checked ? 1 : 0;
    const Painted verdict = !v.wrong.empty() ? console.paint("WRONG", Tone::kBad)
                            : !v.fresh
                                ? console.paint("STALE", Tone::kBad)
                                : console.paint(checked ? "fresh" : "UNCONFIRMED", checked ? Tone::kGood : Tone::kBad);
    if (v.fresh && checked) {
      console.line("{}  {}: {}", verdict, files[i], v.reason);
    } else {
      console.summary("{}  {}: {}", verdict, files[i], v.reason);
    }
    nlohmann::json stale_rows = nlohmann::json::array();
    for (const auto& [row, name, why] : v.stale) {
      if (v.stale.size() > 1) console.line("  {}: {}", name, why);
      stale_rows.push_back({{"row", row}, {"name", name}, {"why", why}});
    }
    for (std::size_t w = 1; w < v.wrong.size(); ++w) console.line("  {}", v.wrong[w]);
    results.push_back({{"file", files[i]},
                       {"fresh", v.fresh},
                       {"reason", v.reason},
                       {"stale", std::move(stale_rows)},
                       {"wrong", v.wrong},
                       {"without_samples", v.without_samples}});
  }
  write_json(common, {{"schema", "flashcore.verify/1"}, {"results", results}});
  console.summary("{} fresh, {} stale or wrong, {} not confirmed", files.size() - stale - unconfirmed, stale,
                  unconfirmed);
  return stale > 0 ? kFailed : unconfirmed > 0 ? kNotJudged : kDone;
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
