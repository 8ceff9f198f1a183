// flashcore verify: does a committed results file describe the source as it stands.

#include <fmt/ranges.h>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json_text.h"
#include "lab/compare/aa.h"
#include "lab/compare/bench.h"
#include "lab/diagnose/diagnosis_files.h"

namespace flashcore::cli {

namespace {

nlohmann::json rows_json(const std::vector<Verification::StaleRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [row, name, why] : rows) list.push_back({{"row", row}, {"name", name}, {"why", why}});
  return list;
}

Painted verdict_of(const Verification& v, const Console& console) {
  if (!v.wrong.empty()) return console.paint("WRONG", Tone::kBad);
  if (!v.stale.empty()) return console.paint("STALE", Tone::kBad);
  if (!v.unknown.empty()) return console.paint("UNKNOWN", Tone::kBad);
  if (!v.incomplete.empty()) return console.paint("INCOMPLETE", Tone::kBad);
  if (v.timed == 0) return console.paint("EMPTY", Tone::kBad);
  if (!v.without_samples.empty()) return console.paint("UNCONFIRMED", Tone::kBad);
  return console.paint("fresh", Tone::kGood);
}

// Tables of times by all that their rows rest on; other files by what their schema has them say.
Verification verify_any(const std::string& file, bool recompute) {
  const nlohmann::json document = parse_json(read_file(file), file);
  const auto schema = document.is_object() ? document.value("schema", nlohmann::json()) : nlohmann::json();
  if (schema == kBenchSchema || schema == kAaSelfTestSchema) return verify_results(file, recompute);
  FileJudges judges = check_file_judges();
  judges.merge(diagnosis_file_judges());
  return judge_by_schema(document, file, judges);
}

// The first of them: of a file of thousands of rows most may say the same.
void tell_rows(const std::vector<Verification::StaleRow>& rows, Console& console) {
  constexpr std::size_t kMost = 20;
  for (std::size_t i = 0; i < std::min(rows.size(), kMost); ++i) console.line("  {}: {}", rows[i].name, rows[i].why);
  if (rows.size() > kMost) console.line("  and {} more, which --json has", rows.size() - kMost);
}

struct VerifyArguments {
  Common common;
  std::vector<std::string> files;
  bool recording = false, rederive = false, recompute = false;
};

// A file whose figures are wrong is left to whoever looks for the reason.
void record(const std::vector<std::string>& files, bool rederive, Console& console) {
  std::vector<RecordedProvenance> recorded;  // of all before any is written
  for (const std::string& file : files) recorded.push_back(with_provenance(read_file(file), file, rederive));
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!recorded[i].wrong.empty()) {
      console.summary("{}: its figures are wrong, and nothing is recorded in it", files[i]);
      if (recorded[i].not_derived > 0)
        console.line(
            "  {} without a digest would get other figures from the samples: an older flashcore derived them, or the "
            "samples were edited. --rederive writes them, and the file says so from then on",
            plural(static_cast<std::int64_t>(recorded[i].not_derived), "result"));
      continue;
    }
    if (recorded[i].rows + recorded[i].derived > 0) write_file_atomically(files[i], recorded[i].text);
    if (recorded[i].derived > 0)
      console.summary("{}: derived the figures of {} anew from the samples and ceilings that it keeps", files[i],
                      plural(static_cast<std::int64_t>(recorded[i].derived), "result"));
    console.summary("{}: recorded of {} what tells them from others", files[i],
                    plural(static_cast<std::int64_t>(recorded[i].rows), "fresh result"));
  }
}

int verify(const VerifyArguments& options) {
  const auto& [common, files, recording, rederive, recompute] = options;
  if (rederive && !recording) throw_bad_input("--rederive belongs to --record: add it, or leave --rederive out");
  std::vector<NamedFile> read;
  for (const std::string& file : files) read.push_back({"the results to verify", file});
  require_distinct({{"--json", common.json}}, read);
  check_json_target(common);
  Console console(common.quiet, json_on_stdout(common));
  // All are read before any verdict is printed: an unreadable file must not hide behind one.
  std::vector<Verification> verifications;
  for (const std::string& file : files) verifications.push_back(verify_any(file, recompute));
  if (recording) {
    record(files, rederive, console);
    for (std::size_t i = 0; i < files.size(); ++i) verifications[i] = verify_any(files[i], recompute);
  }
  nlohmann::json results = nlohmann::json::array();
  std::size_t failed = 0, unjudged = 0, not_passed = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Verification& v = verifications[i];
    const bool is_failed = !v.wrong.empty() || !v.stale.empty(), is_confirmed = v.fresh && v.without_samples.empty();
    failed += is_failed;
    unjudged += !is_failed && !is_confirmed;
    not_passed += is_confirmed && v.did_not_pass;
    const Painted verdict = verdict_of(v, console);
    if (is_confirmed) {
      console.line("{}  {}: {}", verdict, files[i], v.reason);
    } else {
      console.summary("{}  {}: {}", verdict, files[i], v.reason);
    }
    if (v.stale.size() + v.unknown.size() > 1)
      for (const auto* rows : {&v.stale, &v.unknown}) tell_rows(*rows, console);
    for (const Verification::StaleRow& row : v.same_code) console.line("  {}: {}", row.name, row.why);
    for (const std::string& remark : v.remarks) console.line("  {}", remark);
    if (!v.unmeasured.empty())
      console.line("  no row of {} of the {} problems of the suite {}: {}", v.unmeasured.size(), v.suite_problems,
                   v.suite, fmt::join(v.unmeasured, ", "));
    for (std::size_t w = 1; w < v.wrong.size(); ++w) console.line("  {}", v.wrong[w]);
    results.push_back({{"file", files[i]},
                       {"fresh", v.fresh},
                       {"did_not_pass", v.did_not_pass},
                       {"timed", v.timed},
                       {"reason", v.reason},
                       {"stale", rows_json(v.stale)},
                       {"unknown", rows_json(v.unknown)},
                       {"incomplete", v.incomplete},
                       {"same_code", rows_json(v.same_code)},
                       {"wrong", v.wrong},
                       {"without_samples", v.without_samples},
                       {"times_without_samples", v.times_without_samples},
                       {"remarks", v.remarks},
                       {"suite", v.suite},
                       {"suite_problems", v.suite_problems},
                       {"unmeasured", v.unmeasured}});
  }
  write_json(common, {{"schema", "flashcore.verify/1"}, {"results", results}});
  const std::size_t fresh = files.size() - failed - unjudged;
  const std::string of_fresh = not_passed == 0       ? ""
                               : not_passed == fresh ? ", which did not pass"
                                                     : fmt::format(" ({} of which did not pass)", not_passed);
  console.summary("{} fresh{}, {} stale or wrong, {} not confirmed", fresh, of_fresh, failed, unjudged);
  return failed > 0 ? kFailed : unjudged > 0 ? kNotJudged : kDone;
}

}  // namespace

Run add_verify(CLI::App& app) {
  auto options = std::make_shared<VerifyArguments>();
  app.add_option("files", options->files, "results files, as results/h200/canonical.json")
      ->required()
      ->type_name("FILE");
  app.add_flag("--record", options->recording,
               "derive the figures of rows with a digest anew from the samples, and write into fresh "
               "rows the hashes of their text and launches, and who compiles their code");
  app.add_flag("--rederive", options->rederive,
               "with --record: derive those of rows without a digest too, and write into them that it was done");
  app.add_flag(
      "--recompute", options->recompute,
      "compile fresh rows of a GPU again for their registers, and compute the correctness bounds again: minutes");
  add_common(app, options->common, kJson);
  add_examples(app, {"verify fresh.json", "verify stale.json  # exit 1", "verify --record fresh.json"});
  return [options] { return verify(*options); };
}

}  // namespace flashcore::cli
