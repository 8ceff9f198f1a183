// flashcore report: the store as .html, .md, .json or .csv.

#include "lab/report/report.h"

#include <filesystem>
#include <functional>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/json_text.h"
#include "lab/campaign/plan.h"
#include "lab/report/diagnoses.h"

namespace flashcore::cli {

namespace {

struct ReportArguments {
  Common common;
  std::string out = "out/report.html", run, campaign, price;
  std::vector<std::string> with;
  bool gives_store = false;
};

// A page of Nsight Compute's hundreds of counters and a timeline's lanes is some megabytes.
constexpr std::size_t kMaxDiagnosis = std::size_t{256} << 20;

using Render = std::function<std::string(const std::vector<Trial>&)>;

std::string render_json(const std::vector<Trial>& trials, std::optional<double> price) {
  return report_json(trials, is_current, price).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string losses(const std::vector<std::string>& phases) {
  std::string all;
  for (const std::string& name : phases) {
    const PhasePlan* phase = find_phase_plan(name);
    all += fmt::format("{}{}{}", all.empty() ? "" : ", ", name, phase ? fmt::format(" ({})", phase->lost) : "");
  }
  return all;
}

// A page without its trials would read as if nothing had been timed. What is lost of the diagnoses the page says.
void require_files(const ReportArguments& options, const CampaignState& state) {
  for (const MissingFile& missing : missing_files(options.campaign, state)) {
    const bool is_store = missing.name == kCampaignStore;
    if (is_store && !options.gives_store)
      throw_bad_input(
          "--campaign {}: there is no {} in it, which held the trials of {}: put it back, give the store with --store, "
          "or run these phases again with `flashcore campaign --resume`",
          options.campaign, missing.name, losses(missing.phases));
    if (!is_store)
      print_warning(fmt::format("--campaign {}: {}; the page lacks what it held: {}", options.campaign,
                                missing.damaged
                                    ? fmt::format("{} in it is damaged (cut short, or no JSON)", missing.name)
                                    : fmt::format("there is no {} in it", missing.name),
                                losses(missing.phases)));
  }
}

Diagnoses diagnoses_of(const ReportArguments& options) {
  Diagnoses found;
  if (!options.campaign.empty()) {
    const std::optional<CampaignState> state = load_state(options.campaign);
    if (!state)
      throw_bad_input("--campaign {}: there is no {} in it; name the --out folder of a `flashcore campaign`",
                      options.campaign, kCampaignFile);
    require_files(options, *state);
    const std::filesystem::path page = std::filesystem::absolute(options.out).parent_path();
    found = diagnoses_of_campaign(options.campaign, *state, page);
  }
  for (const std::string& file : options.with)
    add_diagnosis(found, parse_json(read_file(file, kMaxDiagnosis), file), "--with " + file);
  return found;
}

Render renderer_for(const ReportArguments& options) {
  const std::string extension = std::filesystem::path(options.out).extension().string();
  std::optional<double> price = parse_finite(options.price);
  if (extension == ".html") {
    Diagnoses diagnoses = diagnoses_of(options);
    if (!price && diagnoses.campaign) price = diagnoses.campaign->price_per_hour;
    return [price, diagnoses = std::move(diagnoses)](const std::vector<Trial>& trials) {
      return report_html(trials, is_current, diagnoses, price);
    };
  }
  if (!options.campaign.empty() || !options.with.empty())
    throw_bad_input("--out {}: only a page shows what {} gives; use .html, or leave it out", options.out,
                    options.campaign.empty() ? "--with" : "--campaign");
  if (extension == ".md")
    return [price](const std::vector<Trial>& trials) { return report_markdown(trials, is_current, price); };
  if (extension == ".csv" && price)
    throw_bad_input(
        "--out {}: rows of trials have no money, and --price would change nothing: leave it out, or use "
        ".html, .md or .json",
        options.out);
  if (extension == ".csv") return report_csv;
  if (extension == ".json") return [price](const std::vector<Trial>& trials) { return render_json(trials, price); };
  throw_bad_input("--out {}: the extension '{}' names no format; use .html, .md, .json or .csv", options.out,
                  extension);
}

// Of a campaign those in its folder; a campaign on an emulated GPU has timed nothing, and its page says so.
std::vector<Trial> trials_of(const ReportArguments& options) {
  TrialQuery query;
  if (!options.run.empty()) query.run = options.run;
  if (options.campaign.empty() || options.gives_store) return stored_trials(options.common.store, query);
  const std::filesystem::path store = std::filesystem::path(options.campaign) / kCampaignStore;
  std::error_code error;
  return std::filesystem::exists(store, error) ? stored_trials(store.string(), query) : std::vector<Trial>{};
}

int report(const ReportArguments& options) {
  const std::string& out = options.out;
  std::vector<NamedFile> inputs = {{"--store", options.common.store}};
  for (const std::string& file : options.with) inputs.push_back({"--with", file});
  require_distinct({{"--out", out}}, inputs);
  const Render render = renderer_for(options);
  // A folder that is not there yet is made below, once there is something to put into it.
  if (const auto parent = std::filesystem::path(out).parent_path(); parent.empty() || std::filesystem::exists(parent))
    check_output_file("--out", out);
  Console console(options.common.quiet, false);
  const std::vector<Trial> trials = trials_of(options);
  if (trials.empty() && options.campaign.empty()) {
    print_error(options.run.empty()
                    ? fmt::format("{} holds no trials yet: nothing to report; run flashcore tune or bench first",
                                  options.common.store)
                    : fmt::format("{} holds no trials of run '{}': nothing to report; leave --run out to take all",
                                  options.common.store, options.run));
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
  auto options = std::make_shared<ReportArguments>();
  add_common(app, options->common, kStore);
  app.add_option("--out", options->out, "the file to write; its extension is the format: .html .md .json .csv")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--run", options->run, "only the trials of this run")->type_name("ID");
  app.add_option("--with", options->with, "what profile, invert or timeline wrote with --json, to show on the page")
      ->type_name("FILE,...")
      ->delimiter(',')
      ->check(not_empty());
  app.add_option("--campaign", options->campaign,
                 "the folder of a campaign: its trials, and its profiles, inversions and timeline on the page")
      ->type_name("DIR")
      ->check(not_empty());
  app.add_option("--price", options->price,
                 "of an hour of the machine with the device, in any currency (default: the campaign's)")
      ->type_name("X")
      ->check(number_between(0, 1e9));
  add_examples(app, {"report --out report.html", "report --store .flashcore/trials.db --out report.md"});
  return [options, &app] {
    options->gives_store = app.count("--store") > 0;
    return report(*options);
  };
}

}  // namespace flashcore::cli
