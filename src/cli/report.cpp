// flashcore report: the store as .html, .md, .json or .csv.

#include "lab/report/report.h"

#include <filesystem>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"

namespace flashcore::cli {

namespace {

using Render = std::string (*)(const std::vector<Trial>&);

std::string render_json(const std::vector<Trial>& trials) {
  return report_json(trials).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Render renderer_for(const std::string& out) {
  const std::string extension = std::filesystem::path(out).extension().string();
  if (extension == ".html") return [](const std::vector<Trial>& trials) { return report_html(trials); };
  if (extension == ".md") return [](const std::vector<Trial>& trials) { return report_markdown(trials); };
  if (extension == ".csv") return report_csv;
  if (extension == ".json") return render_json;
  throw_bad_input("--out {}: the extension '{}' names no format; use .html, .md, .json or .csv", out, extension);
}

int report(const Common& common, const std::string& out, const std::string& run) {
  const Render render = renderer_for(out);
  require_distinct({{"--out", out}}, {{"--store", common.store}});
  // A folder that is not there yet is made below, once there is something to put into it.
  if (const auto parent = std::filesystem::path(out).parent_path(); parent.empty() || std::filesystem::exists(parent))
    check_output_file("--out", out);
  Console console(common.quiet, false);
  TrialQuery query;
  if (!run.empty()) query.run = run;
  const std::vector<Trial> trials = stored_trials(common.store, query);
  if (trials.empty()) {
    print_error(
        run.empty()
            ? fmt::format("{} holds no trials yet: nothing to report; run flashcore tune or bench first", common.store)
            : fmt::format("{} holds no trials of run '{}': nothing to report; leave --run out to take all",
                          common.store, run));
    return kNotJudged;
  }
  const std::string text = render(trials);
  const std::filesystem::path folder = std::filesystem::path(out).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw_environment("--out {}: cannot create the folder {}: {}", out, folder.string(), error.message());
  write_file_atomically(out, text);
  console.summary("{}: {}, {}", out, plural(static_cast<std::int64_t>(trials.size()), "trial"),
                  human_bytes(static_cast<double>(text.size())));
  return kDone;
}

}  // namespace

Run add_report(CLI::App& app) {
  auto common = std::make_shared<Common>();
  auto out = std::make_shared<std::string>("out/report.html");
  auto run = std::make_shared<std::string>();
  add_common(app, *common, kStore);
  app.add_option("--out", *out, "the file to write; its extension is the format: .html .md .json .csv")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--run", *run, "only the trials of this run")->type_name("ID");
  add_examples(app, {"report --out report.html", "report --store .flashcore/trials.db --out report.md"});
  return [common, out, run] { return report(*common, *out, *run); };
}

}  // namespace flashcore::cli
