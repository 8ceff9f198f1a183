// flashcore problem: what an id says, field by field. Scripts read ids by it. And a suite of unseen ones, drawn.

#include <fmt/ranges.h>

#include <sstream>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "core/problem_fields.h"
#include "lab/verify/unseen.h"

namespace flashcore::cli {

namespace {

struct ProblemArguments {
  Common common;
  std::vector<std::string> ids;
  bool reference = false;
  int draw = 0;
  std::optional<std::uint64_t> seed;  // none: 1
  std::vector<std::string> dtypes;
  std::string suite_file;
};

nlohmann::json describe(const PlacedProblem& p) {
  return {{"problem", p.id()},
          {"fields", problem_json(p)},
          {"layout", to_string(p.layout)},
          {"pairs", p.unmasked_pairs()},
          {"keys_read", p.keys_read().size()},
          {"flops", p.flops()},
          {"bytes", p.bytes()},
          {"decode", p.is_decode()}};
}

void print(Console& console, const PlacedProblem& p) {
  Table table({"field", "value"});
  for (const ProblemField& field : problem_fields())
    table.add({std::string(field.name), Cell(field_text(field.get(p)))});
  table.add({std::string("layout"), Cell(std::string(to_string(p.layout)))});
  console.table(table);
  std::int64_t pairs = p.seqlen_q * p.seqlen_kv;
  if (p.ragged()) {
    pairs = 0;
    for (const SequenceLengths& each : p.sequences()) pairs += each.q * each.kv;
  }
  console.line("{}: {} of {} pairs of a row and a key, {:.4g} FLOP, {:.4g} bytes at the least", p.id(),
               p.unmasked_pairs(), pairs, p.flops(), p.bytes());
}

// Problems that nobody has tuned for, as a suite.
int run_draw(const ProblemArguments& options) {
  require_distinct({{"--json", options.common.json}, {"--suite-file", options.suite_file}}, {});
  check_output_file("--suite-file", options.suite_file);
  std::vector<DType> dtypes;
  for (const std::string& name : options.dtypes) dtypes.push_back(parse_dtype(name));
  for (const DType dtype : dtypes)
    if (dtype == DType::kF32) throw_bad_input("--dtypes: fp32 is never drawn, for no fast GPU kernel takes it");
  const std::uint64_t seed = options.seed.value_or(1);
  const Suite suite = draw_unseen(options.draw, seed, dtypes);
  const std::string text = print_suite(
      suite,
      fmt::format("Drawn by `flashcore problem --draw {}{} --seed {}`: no table or model has seen them.", options.draw,
                  dtypes.empty() ? "" : fmt::format(" --dtypes {}", fmt::join(options.dtypes, ",")), seed));
  Console console(options.common.quiet, json_on_stdout(options.common));
  if (options.suite_file.empty()) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) console.line("{}", line);
  } else {
    write_file_atomically(options.suite_file, text);
    console.summary("{} written to {}", plural(static_cast<std::int64_t>(suite.problems.size()), "problem"),
                    options.suite_file);
  }
  nlohmann::json results = nlohmann::json::array();
  for (const NamedProblem& named : suite.problems) results.push_back(describe(named.problem));
  write_json(options.common,
             {{"schema", "flashcore.problem/1"}, {"fields", problem_fields_json()}, {"results", results}});
  return kDone;
}

int run_problem(const ProblemArguments& options) {
  check_json_target(options.common);
  if (options.draw > 0 && (options.reference || !options.ids.empty()))
    throw_bad_input("--draw was given with ids or --reference; ask for one thing at a time");
  if (options.draw > 0) return run_draw(options);
  if (!options.dtypes.empty()) throw_bad_input("--dtypes was given without --draw: there is nothing to draw");
  if (options.seed) throw_bad_input("--seed was given without --draw: there is nothing to draw");
  if (!options.suite_file.empty()) throw_bad_input("--suite-file was given without --draw: there is no suite to write");
  if (options.ids.empty() && !options.reference)
    throw_bad_input("no problem was given; give an id as b1_h32_hk8_s4096_d128_bf16_causal, or --reference");
  Console console(options.common.quiet, json_on_stdout(options.common));
  if (options.reference) {
    std::istringstream page(problem_reference_page());
    for (std::string line; std::getline(page, line);) console.line("{}", line);
  }
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& id : options.ids) {
    const PlacedProblem problem = PlacedProblem::parse(id);
    results.push_back(describe(problem));
    print(console, problem);
  }
  write_json(options.common,
             {{"schema", "flashcore.problem/1"}, {"fields", problem_fields_json()}, {"results", results}});
  return kDone;
}

}  // namespace

Run add_problem(CLI::App& app) {
  auto options = std::make_shared<ProblemArguments>();
  app.add_option("ids", options->ids, "problem ids")->type_name("ID");
  app.add_flag("--reference", options->reference, "print the page of all fields, in Markdown (docs/problem.md)");
  app.add_option("--draw", options->draw, "draw so many problems that nobody has tuned for, at sizes worth timing")
      ->type_name("N")
      ->check(whole_between(1, 1000));
  app.add_option("--dtypes", options->dtypes, "draw only problems of these types, e.g. fp16,bf16")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--seed", options->seed, "of --draw (default: 1)")->check(seed_number());
  app.add_option("--suite-file", options->suite_file, "write what --draw gives as a suite")->type_name("FILE");
  add_common(app, options->common, kJson);
  add_examples(app,
               {"problem b1_h32_hk8_s4096_d128_bf16_causal", "problem b1_h8_s4096_d128_bf16_causal_wl1023 --json -",
                "problem --reference", "problem --draw 3 --seed 7"});
  return [options] { return run_problem(*options); };
}

}  // namespace flashcore::cli
