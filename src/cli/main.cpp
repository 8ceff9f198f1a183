// flashcore: the program. Parses, picks the verb, turns every outcome into an exit code.

#include <algorithm>
#include <vector>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/near_names.h"
#include "core/scratch_folder.h"
#include "kernels/embedded.h"

namespace {

using namespace flashcore::cli;

// Whether a verb asks interrupted(), so that a signal leaves it time to end cleanly.
enum class Signals { kAsks, kEnds };

struct Verb {
  CLI::App* app;
  Run run;
  Signals signals;
};

std::vector<Verb> declare_verbs(CLI::App& app) {
  const auto verb = [&app](const char* name, const char* description, Run (*add)(CLI::App&),
                           Signals signals = Signals::kAsks) {
    CLI::App* sub = app.add_subcommand(name, description);
    return Verb{sub, add(*sub), signals};
  };
  constexpr Signals kEnds = Signals::kEnds;
  std::vector<Verb> verbs = {
      verb("doctor", "what is here, what is missing and the fix, measured ceilings, noise floor", add_doctor),
      verb("check", "correctness: a suite or --fuzz N, on any device", add_check),
      verb("compile", "compile families and configs for architectures: resource table and gate; needs no GPU",
           add_compile),
      verb("bench", "time problems; --family and --config pin a candidate", add_bench),
      verb("peers", "beside other attentions, interleaved; `python -m flashcore.peers` brings PyTorch's", add_peers),
      verb("ab", "one candidate against another, interleaved: FASTER | SLOWER | SAME | INCONCLUSIVE", add_ab),
      verb("tune", "search for the fastest correct config of each problem; resumable", add_tune),
      verb("leaderboard", "best per problem and device, with confidence interval and ties", add_leaderboard, kEnds),
      verb("economics", "what the trials of a store cost, and what they gained for it", add_economics, kEnds),
      verb("crosscheck", "the same launch timed by the engine and by other tools: do they agree, and if not, why",
           add_crosscheck),
      verb("campaign", "the whole way from doctor to artefacts, phase by phase with its verdict; resumable",
           add_campaign),
      verb("gate", "is anything slower than a baseline file or the leaderboard says? for CI", add_gate),
      verb("report", "store -> report .html | .md | .json | .csv", add_report, kEnds),
      verb("run", "attention on your own tensors (.safetensors or .npy)", add_run, kEnds),
      verb("verify", "were the rows of results files measured with the present source: fresh (0) or stale (1)",
           add_verify, kEnds),
      verb("experiment", "run, check, list or judge experiments: hypothesis, prediction, verdict", add_experiment),
      verb("profile", "why a candidate takes its time: bottlenecks ranked, with evidence, targets and a roofline",
           add_profile),
      verb("invert", "variants of a kernel, each with one thing worse or left out: what its time depends on",
           add_invert),
      verb("explain", "which kernel dispatch picks for a problem, why, its expected time and its floor", add_explain,
           kEnds),
      verb("timeline", "what each warp of a kernel does and when, by its own time stamps", add_timeline),
      verb("problem", "what a problem's id says, field by field, and what it costs", add_problem, kEnds),
      verb("warmup", "fill the compile cache with what a suite needs, ahead of time", add_warmup),
      verb("submit", "judge a config or a patched kernel of somebody's: each gate's verdict, with reasons", add_submit),
      verb("mcp", "serve agents: the tools of the laboratory over the Model Context Protocol, on stdio", add_mcp),
      verb("worker", "evaluates candidates for a parent process", add_worker),
      verb("execute-kernel", "runs one kernel of somebody else's for a parent process", add_execute_kernel, kEnds),
      verb("timer-server", "the laboratory's own party of a peer run", add_timer_server, kEnds),
      verb("launch-candidate", "launches a candidate for a profiler", add_launch_candidate, kEnds),
      verb("confine", "becomes a program without network and with limits", add_confine, kEnds),
  };
  for (auto hidden = verbs.end() - 5; hidden != verbs.end(); ++hidden) hidden->app->group("");
  return verbs;
}

// CLI11 would call an unknown verb an unexpected argument; its giver wants the list.
bool is_unknown_verb(const char* word, const std::vector<Verb>& verbs) {
  return word[0] != '-' &&
         std::none_of(verbs.begin(), verbs.end(), [&](const Verb& v) { return v.app->get_name() == word; });
}

std::vector<std::string> shown_verbs(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) {
    if (!verb.app->get_group().empty()) names.push_back(verb.app->get_name());
  }
  return names;
}

// Edit-and-run reads device code from a tree, and cannot change what was compiled into this program.
void warn_of_other_host_sources() {
  std::vector<std::string> differ;
  try {
    differ = flashcore::host_sources_that_differ();
  } catch (const flashcore::Error&) {
    return;  // no such tree, a file missing: the verb says so if it needs one
  }
  if (differ.empty()) return;
  print_warning(fmt::format(
      "FLASHCORE_SOURCE={}: {} {} from what this program was built with. The host keeps its own copy (valid configs, "
      "shared-memory sizes, launches, CPU kernels) while the device reads that tree: results are of neither; rebuild "
      "the program from that tree",
      std::getenv("FLASHCORE_SOURCE"), fmt::join(differ, ", "), differ.size() == 1 ? "differs" : "differ"));
}

// CLI11 says "--budget: At Most 1 required but received 2".
std::string words_of(const CLI::ParseError& error) {
  const std::string said = error.what();
  const std::size_t flag_ends = said.find(": At Most 1 required but received ");
  if (error.get_name() != "ArgumentMismatch" || flag_ends == std::string::npos) return said;
  const std::string times = said.substr(said.rfind(' ') + 1);
  return fmt::format("{} was given {}; give it once", said.substr(0, flag_ends),
                     times == "2" ? "twice" : times + " times");
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"flashcore: attention kernels, and the laboratory that makes them", "flashcore"};
  app.set_version_flag("--version", std::string("flashcore ") + FLASHCORE_VERSION);
  app.require_subcommand(1);
  const std::vector<Verb> verbs = declare_verbs(app);
  app.footer(
      "Exit codes: 0 done and passed, 1 judged and failed, 2 could not judge (inconclusive, nothing measured, "
      "skipped),\n"
      "3 bad input or usage, 4 the environment lacks something.\n\n"
      "Each verb has its own --help with examples. Examples:\n  flashcore doctor\n  flashcore --version");
  if (argc < 2 || is_unknown_verb(argv[1], verbs)) {
    const std::vector<std::string> names = shown_verbs(verbs);
    print_error(fmt::format("{}; the verbs are {}; see flashcore --help",
                            argc < 2
                                ? "no verb given"
                                : fmt::format("unknown verb '{}'{}", argv[1], flashcore::did_you_mean(argv[1], names)),
                            fmt::join(names, ", ")));
    return kBadUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const auto used = app.get_subcommands();
    print_error(
        fmt::format("{}; see flashcore{} --help", words_of(error), used.empty() ? "" : " " + used.front()->get_name()));
    return kBadUsage;
  }
  for (const Verb& verb : verbs) {
    if (!verb.app->parsed()) continue;
    if (!verb.app->get_group().empty()) warn_of_other_host_sources();  // workers leave it to their parent
    if (verb.signals == Signals::kEnds) end_at_signals();
    return verb.run();
  }
  return kBadUsage;
}

}  // namespace

int main(int argc, char** argv) {
  catch_signals();
  occupy_standard_streams();
  const int code = guarded([&] { return parse_and_run(argc, argv); });
  // Workers that were killed amid their work could not tidy up.
  if (interrupted()) flashcore::remove_left_scratch_folders();
  return code_after_flush(code);
}
