// flashcore peers: beside other attentions, interleaved, by one engine.

#include "lab/compare/peers.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/timing_flags.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "kernels/source_hash.h"
#include "lab/compare/bench.h"
#include "lab/compare/peer_rows.h"
#include "lab/compare/peer_sessions.h"
#include "lab/measure/race.h"
#include "lab/record/digest.h"
#include "lab/record/machine.h"

namespace flashcore::cli {

namespace {

struct PeersArguments {
  Common common;
  TimingFlags timing{.seconds = 0};
  std::vector<std::string> problems, programs, parties;
  std::string candidate, commit;
  int rounds = 24;
  double budget = 440;
  bool append = false;
};

Suite chosen_problems(const PeersArguments& options) {
  Suite suite = load_suite(options.common.suite.empty() ? "canonical" : options.common.suite);
  if (options.problems.empty()) return suite;
  Suite chosen{suite.name, {}};
  for (const std::string& name : options.problems) chosen.problems.push_back(find_problem(suite, name));
  return chosen;
}

std::string rate_of(const nlohmann::json& row) {
  const double tflops = row.at("tflops").get<double>();
  return tflops >= 1 ? fmt::format("{:7.1f} TFLOP/s", tflops) : fmt::format("{:7.1f} GFLOP/s", 1000 * tflops);
}

// "apart" is beside the peers over the laboratory; the laboratory is told against what is published.
double laboratory_percent(const nlohmann::json& laboratory) {
  return 100 * (1 / (1 + laboratory.at("apart").get<double>()) - 1);
}

// Who has no ratio here, and why. Who is absent from the whole run is told once, at its end.
void print_refused(Console& console, const nlohmann::json& row, const std::map<std::string, std::string>& absent) {
  if (!row.contains("refused")) return;
  for (const auto& [name, why] : row["refused"].items()) {
    const auto found = absent.find(name);
    if (found == absent.end() || nlohmann::json(found->second) != why)
      console.line("{:18s} refused {}: {}", "", name, why.get<std::string>());
  }
}

void print_load(Console& console, const nlohmann::json& rows) {
  std::vector<MachineReading> readings;
  for (const nlohmann::json& row : rows) {
    for (const nlohmann::json& session : row.value("measured", nlohmann::json::array())) {
      if (!session.contains("load_average")) continue;
      MachineReading& reading = readings.emplace_back();
      reading.load_before = session["load_average"].at(0).get<double>();
      reading.load_after = session["load_average"].at(1).get<double>();
      reading.cores = session.at("cores").get<int>();
      const nlohmann::json others = session.value("others_busy", nlohmann::json());
      if (others.is_number()) reading.others_busy = others.get<double>();
    }
  }
  if (const std::string load = load_words(readings); !load.empty()) console.line("{}", load);
  if (const std::string busy = busy_words(readings); !busy.empty())
    console.line(
        "warning: {}: times of a CPU are of a busy machine, and a GPU may have waited for its host; publish none of "
        "them "
        "without a quiet session",
        busy);
}

void print_row(Console& console, const nlohmann::json& row) {
  const auto name = row.at("name").get<std::string>();
  if (!row.at("time_us").is_object()) {
    console.line("{:18s} {}: {}", name, row.at("ended").get<std::string>(), row.value("message", ""));
    return;
  }
  std::string peers;
  for (const nlohmann::json& peer : row.at("peers")) {
    const nlohmann::json& interval = peer.at("ci95");
    peers += fmt::format("  {} {:.2f} us x{:.3f}{}", peer.at("name").get<std::string>(),
                         peer.at("time_us").at("p50").get<double>(), peer.at("speedup").get<double>(),
                         interval.is_null() ? " (no interval)" : "");
  }
  const std::string apart =
      row.contains("laboratory") ? fmt::format("  laboratory {:+.1f}%", laboratory_percent(row["laboratory"])) : "";
  console.line("{:18s} {:10.2f} us  {}{}  {}{}", name, row["time_us"]["p50"].get<double>(), rate_of(row), peers,
               row.at("family").get<std::string>(), apart);
}

void print_means(Console& console, const nlohmann::json& rows) {
  std::map<std::string, std::vector<double>> logs;
  for (const nlohmann::json& row : rows) {
    if (!row.at("time_us").is_object() || row.value("decode", false)) continue;
    for (const nlohmann::json& peer : row.at("peers"))
      logs[peer.at("name").get<std::string>()].push_back(std::log(peer.at("speedup").get<double>()));
  }
  for (const auto& [name, values] : logs) {
    double sum = 0;
    for (const double value : values) sum += value;
    console.line("geomean speed-up over {} on {} without decoding: {:.3f}", name,
                 plural(static_cast<std::int64_t>(values.size()), "problem"),
                 std::exp(sum / static_cast<double>(values.size())));
  }
}

// Rows of an earlier file, which --append keeps and adds sessions to. None if there is no such file.
nlohmann::json earlier_rows(const PeersArguments& options) {
  std::error_code error;
  if (!options.append || !std::filesystem::exists(options.common.json, error)) return nlohmann::json::array();
  const nlohmann::json document = parse_json(read_file(options.common.json), options.common.json);
  if (!document.is_object() || document.value("schema", nlohmann::json()) != kBenchSchema ||
      !document.contains("results") || !document["results"].is_array())
    throw_bad_input("--append: {} is not a results file of schema {}; give another --json", options.common.json,
                    kBenchSchema);
  if (const std::vector<std::string> edited = find_edited(document); !edited.empty())
    throw_bad_input("--append: {}: {}. Mend what was edited, or give another --json", options.common.json,
                    edited.front());
  return document["results"];
}

nlohmann::json* find_row(nlohmann::json& rows, const std::string& problem, const std::string& name) {
  for (nlohmann::json& row : rows)
    if (row.is_object() && row.value("problem", nlohmann::json()) == nlohmann::json(problem) &&
        row.value("name", nlohmann::json()) == nlohmann::json(name))
      return &row;
  return nullptr;
}

// Before hours of work that could not be added.
void require_another_session(const PeersArguments& options, const Suite& suite, nlohmann::json& rows) {
  const nlohmann::json now = {{"began_at", now_iso8601()}, {"run", ""}, {"boot", read_boot_id()}};
  for (const NamedProblem& named : suite.problems) {
    const nlohmann::json* row = find_row(rows, named.problem.id(), named.name);
    if (!row) continue;
    if (const std::string why = why_same_session(*row, now); !why.empty())
      throw_bad_input("--append: {} of {} has no room for this session: {}. Wait, or choose others with --problem",
                      named.name, options.common.json, why);
  }
}

// `row` in its place among `rows`: as another session of the same problem, or anew. False if that place has no time.
bool place_row(Console& console, nlohmann::json& rows, const nlohmann::json& row, double margin) {
  const auto name = row.at("name").get<std::string>();
  nlohmann::json* earlier = find_row(rows, row.at("problem").get<std::string>(), name);
  if (!earlier) {
    rows.push_back(row);
    seal(rows.back());
    return row.at("time_us").is_object();
  }
  std::string said;
  nlohmann::json appended = append_session(*earlier, row, margin, said);
  seal_appended(appended, *earlier, row);
  *earlier = std::move(appended);
  if (!said.empty()) console.line("{:18s} {}", name, said);
  return earlier->at("time_us").is_object();
}

void write_document(const PeersArguments& options, const Suite& suite, const nlohmann::json& rows, double seconds) {
  if (options.common.json.empty()) return;
  nlohmann::json noted = rows;
  note_silent_absences(noted);
  nlohmann::json document = {{"schema", kBenchSchema},
                             {"suite", suite.name},
                             {"measured_at", now_iso8601()},
                             {"source_hash", source_hash()},
                             {"seconds", std::round(seconds * 10) / 10},
                             {"interrupted", interrupted()},
                             {"results", noted}};
  seal_results(document, false);
  if (json_on_stdout(options.common)) write_json(options.common, document);
  else write_file_atomically(options.common.json, print_rows(document));
}

// A program is read again whenever it is started anew. A word that is the name of a file may be one too: of a script.
void keep_programs(const PeersArguments& options) {
  std::vector<NamedFile> programs;
  std::error_code error;
  for (const std::string& program : options.programs)
    for (const std::string& word : parse_peer_command(program))
      if (std::filesystem::is_regular_file(word, error)) programs.push_back({"--peer", word});
  require_distinct({{"--json", options.common.json}, {"--store", options.common.store}}, programs);
}

int run_peers_verb(const PeersArguments& options) {
  keep_programs(options);
  check_json_target(options.common);
  if (options.append && (options.common.json.empty() || json_on_stdout(options.common)))
    throw_bad_input("--append was given without a file to append to: name it with --json FILE");
  if (options.programs.empty())
    throw_bad_input(
        "no peer was given: --peer PROGRAM brings one (docs/peers.md), and `python -m flashcore.peers` those that "
        "Python imports");
  PeersOptions peers;
  peers.suite = chosen_problems(options);
  require_something_to_time(peers.suite);
  peers.spec() = spec_of(options.timing);
  const DeviceInfo device = describe_device(options.common.device);
  if (device.limits.emulated)
    throw_bad_input("--device {}: an emulated GPU has no time; use cuda or cpu", options.common.device);
  peers.device = device.id;
  peers.on_gpu = device.limits.kind == DeviceKind::kCuda;
  if (!options.candidate.empty()) peers.candidate = options.candidate;
  for (const std::string& program : options.programs) peers.programs.push_back(parse_peer_command(program));
  peers.parties = options.parties;
  peers.rounds = options.rounds;
  peers.budget_seconds = options.budget;
  peers.checkout = options.commit.empty() ? present_checkout() : Checkout{options.commit};
  nlohmann::json rows = earlier_rows(options);
  require_another_session(options, peers.suite, rows);
  Console console(options.common.quiet, json_on_stdout(options.common));
  std::optional<Store> store;
  if (!options.common.store.empty()) store.emplace(options.common.store);
  if (options.rounds < kMinRounds)
    console.line("{} rounds make no interval ({} do): medians only", options.rounds, kMinRounds);
  const double start = steady_seconds();
  int timed = 0;
  // After each problem: hours of work end with the machine otherwise.
  const PeersResult result = run_peers(
      peers, store ? &*store : nullptr,
      [&](const nlohmann::json& row, const std::map<std::string, std::string>& absent) {
        print_row(console, row);
        print_refused(console, row, absent);
        const bool has_place = place_row(console, rows, row, peers.margin);
        timed += has_place && row.at("time_us").is_object();
        if (!json_on_stdout(options.common)) write_document(options, peers.suite, rows, steady_seconds() - start);
      },
      interrupted);
  write_document(options, peers.suite, rows, steady_seconds() - start);
  for (const auto& [name, why] : result.absent) console.line("not here: {}: {}", name, why);
  print_means(console, result.rows);
  print_load(console, result.rows);
  const int failed = static_cast<int>(result.rows.size()) - timed;
  const bool all_stored = !store || tell_store_fault(*store);
  console.summary("{} timed, {} failed, in {:.0f} s; run {}{}", timed, failed, steady_seconds() - start, result.run,
                  result.interrupted ? stopped_by() : "");
  if (failed > 0) return kFailed;
  if (!all_stored) return kNoEnvironment;
  return unless_interrupted(timed > 0 ? kDone : kNotJudged);
}

}  // namespace

Run add_peers(CLI::App& app) {
  auto options = std::make_shared<PeersArguments>();
  options->common.store.clear();
  add_common(app, options->common, kDevice | kSuite | kJson);
  tell_default_suite(app, "canonical");
  app.add_option("--problem", options->problems, "only this problem, by id or name; may be repeated")
      ->type_name("ID")
      ->check(not_empty());
  app.add_option("--candidate", options->candidate, "family or family:k=v,... instead of what dispatch picks")
      ->check(not_empty());
  app.add_option(
         "--peer", options->programs,
         "a program that answers the peers' protocol (docs/peers.md), or a JSON list of it and its arguments; may "
         "be repeated")
      ->type_name("PROGRAM")
      ->check(not_empty())
      ->allow_extra_args(false);  // CLI11 would take the brackets off a list and split it itself
  app.add_option("--peers", options->parties, "only these of what the programs offer")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--rounds", options->rounds, "samples of each party; fewer than 12 make no interval")
      ->type_name("N")
      ->check(whole_between(2, 10000))
      ->capture_default_str();
  app.add_option("--condition", options->timing.condition,
                 "burst, or sustained: 100 ms of a party's own work before each of its samples, which last 200 ms")
      ->capture_default_str();
  app.add_option(
         "--budget", options->budget,
         "seconds; peers that are slow to set up are left out when it runs short, and no question waits longer than "
         "what is left of it, or 10 s")
      ->check(number_between(1, 1e6))
      ->capture_default_str();
  app.add_option("--seed", options->timing.seed, "of the data")->check(seed_number())->capture_default_str();
  app.add_flag("--append", options->append,
               "keep what --json holds, and add a session to rows of the same source and device");
  app.add_option("--commit", options->commit,
                 "of the measured sources, recorded with the results (default: HEAD of the checkout of flashcore that "
                 "this is started in, else what the program was built from, and that it is \"dirty\" where the sources "
                 "are not those of the commit)");
  app.add_option("--store", options->common.store, "also append trials to this file")->type_name("FILE");
  add_examples(app, {"peers --device cpu  # exit 3"});
  return [options] {
    watch_interrupts();
    return run_peers_verb(*options);
  };
}

}  // namespace flashcore::cli
