// flashcore explain: which candidate dispatch picks for a problem, why, what it should take, and the floor.

#include <algorithm>
#include <filesystem>

#include "cli/common.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/diagnose/expectation.h"

namespace flashcore::cli {

namespace {

struct ExplainArguments {
  Common common;
  std::string arch, key;
};

struct Explained {
  NamedProblem named;
  std::optional<Choice> choice;  // none if no family runs it: `why` says so
  std::string why;
  std::vector<Choice> others;
  std::vector<std::string> refused;
  Expectation expectation;
  std::vector<std::optional<ModelledTime>> modelled;  // of the choice, and of the others
};

// A device that need not be here: limits from NVIDIA's tables, the tuned table and results of `key`.
Explained explain_one(const NamedProblem& named, const DeviceInfo& device, const std::vector<Trial>& stored,
                      const std::optional<Ceilings>& measured) {
  Explained explained{named, std::nullopt, {}, {}, {}, {}, {}};
  supporting_families(named.problem, device.limits, &explained.refused);
  std::vector<Choice> choices = ranked_choices(named.problem, device);
  if (choices.empty()) {
    explained.why = "no family runs it";
    return explained;
  }
  explained.choice = choices.front();
  explained.why = choices.front().reason;
  explained.others.assign(choices.begin() + 1, choices.end());
  for (const Choice& choice : choices)
    explained.modelled.push_back(modelled_time(choice.candidate, named.problem, device.limits));
  explained.expectation = expect_time(named.problem, explained.choice->candidate.print(), device, stored, measured,
                                      explained.modelled.front());
  return explained;
}

// What the model of a choice says, and no less than the floor.
std::optional<double> modelled_us(const Explained& e, std::size_t choice) {
  if (!e.modelled[choice]) return std::nullopt;
  return std::max(e.modelled[choice]->us, e.expectation.floor_us.value_or(0));
}

nlohmann::json to_json_entry(const Explained& e, const DeviceInfo& device) {
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
  };
  nlohmann::json alternatives = nlohmann::json::array();
  for (std::size_t i = 0; i < e.others.size(); ++i)
    alternatives.push_back({{"candidate", e.others[i].candidate.print()},
                            {"reason", e.others[i].reason},
                            {"modelled_us", number(modelled_us(e, i + 1))}});
  nlohmann::json json = {
      {"problem", e.named.problem.id()},
      {"name", e.named.name},
      {"device", device.id},
      {"reason", e.why},
      {"alternatives", alternatives},
      {"refused", e.refused},
      {"expected_us", number(e.expectation.time_us)},
      {"expected_from", e.expectation.basis},
      {"carried_over_from",
       e.expectation.carried_over_from ? nlohmann::json(*e.expectation.carried_over_from) : nlohmann::json()},
      {"modelled_us", number(e.choice ? modelled_us(e, 0) : std::nullopt)},
      {"floor_us", number(e.expectation.floor_us)},
      {"floor_from", e.expectation.floor_basis}};
  if (e.choice) {
    const Candidate& candidate = e.choice->candidate;
    json["family"] = candidate.family->name();
    json["config"] = candidate.family->space().to_json(candidate.config);
    json["candidate"] = candidate.print();
  }
  return json;
}

std::string time_text(const std::optional<double>& time_us) { return time_us ? human_time_us(*time_us) : "not known"; }

void print_one(Console& console, const Explained& e) {
  console.line("problem   {}", e.named.problem.id());
  console.line("candidate {}", e.choice ? e.choice->candidate.print() : "none");
  console.line("because   {}", e.why);
  if (e.choice) {
    console.line("expected  {} ({})", time_text(e.expectation.time_us), e.expectation.basis);
    console.line(
        "floor     {} ({})", time_text(e.expectation.floor_us),
        e.expectation.floor_us ? e.expectation.floor_basis : "the device is not here, and no results of it ship");
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(e.others.size(), 3); ++i)
    console.line("next      {}: {}{}", e.others[i].candidate.print(), e.others[i].reason,
                 modelled_us(e, i + 1) ? fmt::format(" ({} by its model)", time_text(modelled_us(e, i + 1))) : "");
  for (const std::string& reason : e.refused) console.line("refused   {}", reason);
}

// Of a model that nothing was measured of, all that is said rests on models.
std::string note_on_key(const std::string& key, const std::vector<Trial>& stored) {
  std::vector<std::string> measured = tuned_device_keys();
  for (std::string& shipped : shipped_device_keys())
    if (std::find(measured.begin(), measured.end(), shipped) == measured.end()) measured.push_back(std::move(shipped));
  if (key.empty() || !stored.empty() || std::find(measured.begin(), measured.end(), key) != measured.end()) return "";
  std::erase_if(measured, [](const std::string& other) { return !is_gpu_key(other); });
  return fmt::format(
      "no tuned table, no shipped result and no trial of --store is of '{}': expectations are by models; measured are "
      "{}",
      excerpt(key), fmt::join(measured, ", "));
}

int run_explain(const ExplainArguments& options) {
  check_json_target(options.common);
  const Suite suite = select_problems(options.common, "quick");
  const DeviceInfo device = device_for_dispatch(options.common.device, options.arch, options.key);
  check_gpu_key(options.key, options.common.store);
  // A store that is not there yet is no trials, and must not be made by asking.
  const std::vector<Trial> stored = std::filesystem::exists(options.common.store)
                                        ? stored_trials(options.common.store, {.device_key = device.key})
                                        : std::vector<Trial>();
  std::optional<Ceilings> measured;
  if (options.arch.empty() && !device.limits.emulated && !shipped_ceilings(device.key))
    measured = open_device(device.id)->ceilings();
  Console console(options.common.quiet, json_on_stdout(options.common));
  Table table({"problem", "expected", "floor", "candidate", "because"});
  nlohmann::json results = nlohmann::json::array();
  std::size_t found = 0;
  for (const NamedProblem& named : suite.problems) {
    const Explained e = explain_one(named, device, stored, measured);
    results.push_back(to_json_entry(e, device));
    found += e.choice ? 1 : 0;
    if (suite.problems.size() == 1) print_one(console, e);
    else
      table.add({named.name, time_text(e.expectation.time_us), time_text(e.expectation.floor_us),
                 e.choice ? Cell(e.choice->candidate.print()) : Cell("none", Tone::kBad), e.why});
  }
  if (!table.empty()) console.table(table);
  const std::string note = note_on_key(options.key, stored);
  if (!note.empty()) console.summary("note: {}", note);
  write_json(options.common,
             {{"schema", "flashcore.explain/1"}, {"device", device.key}, {"note", note}, {"results", results}});
  const auto total = static_cast<std::int64_t>(suite.problems.size());
  if (total == 1) console.summary("{} kernel for it on {}", found == 1 ? "one" : "no", device.key);
  else console.summary("{} of {} have a kernel on {}", found, plural(total, "problem"), device.key);
  return found == suite.problems.size() ? kDone : kFailed;
}

}  // namespace

Run add_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kStore | kJson);
  tell_default_suite(app, "quick");
  app.add_option("--arch", options->arch, "as on a GPU of this architecture, which need not be here")
      ->type_name("sm_90");
  app.add_option("--key", options->key, "with --arch: whose tuned table and results to use, as h200")->type_name("KEY");
  add_examples(app, {"explain --problem b1_h32_hk8_s4096_d128_bf16_causal --arch sm_90 --key h200",
                     "explain --suite canonical --arch sm_90 --key h200 --json explain.json",
                     "explain --device cpu --problem b1_h8_s512_d64_fp32"});
  return [options] { return run_explain(*options); };
}

}  // namespace flashcore::cli
