#pragma once
// What the verbs share: common flags, exit codes, choosing problems and candidates, JSON output, Ctrl-C.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console.h"
#include "core/suite.h"
#include "device/compiler.h"
#include "kernels/family.h"

namespace flashcore::cli {

// Skipped is never passed.
enum ExitCode {
  kDone = 0,           // done and passed
  kFailed = 1,         // judged and failed: wrong, slower, stale, a gate tripped
  kNotJudged = 2,      // could not judge: inconclusive, nothing measured, everything skipped, stopped before a result
  kBadUsage = 3,       // bad input or usage
  kNoEnvironment = 4,  // the environment lacks something, or we broke
};

struct Common {
  std::string device, suite, problem, family, config, json;
  std::string store = ".flashcore/trials.db";
  bool quiet = false;
};

// Which common flags a verb takes. A flag that a verb would ignore is not offered: an inert knob misleads.
enum Flag : unsigned { kDevice = 1, kSuite = 2, kProblem = 4, kFamily = 8, kConfig = 16, kStore = 32, kJson = 64 };
void add_common(CLI::App& app, Common& common, unsigned flags);
// --trust-code, for verbs that run kernels which others may have written.
void add_trust_code(CLI::App& app, bool& trust);
// Lines of the verb's help that a test executes. "  # exit N" behind one names the code it ends with if not 0, and
// "  # exit 0 or 1 or 2" the codes where the machine decides.
void add_examples(CLI::App& app, const std::vector<std::string>& examples);

// --problem alone: a name or id of `default_suite`, or any id. --suite: its problems, or the one --problem names.
// `suite.name` says where they come from.
Suite select_problems(const Common& common, const std::string& default_suite);

// The candidate text of --family and --config ("family:k=v,..."); empty if no family is pinned.
// Error kBadInput for --config without --family, and for a name that is not a family.
std::string candidate_text(const Common& common);

// Opens the device far enough to know it, then lets go of it, so that worker processes have it alone.
DeviceInfo describe_device(const std::string& name);
// A line on stderr if compiled kernels are not kept because others could change them. describe_device() says it for
// GPUs.
void note_unused_cache();

// The same, or with --arch a GPU that need not be here, --key naming its tuned table.
// Error kBadInput for both --device and --arch, and for --key alone.
DeviceInfo device_for_dispatch(const std::string& name, const std::string& arch, const std::string& key);

// Before long work: the folder of --json must exist and be writable.
void check_json_target(const Common& common);
// {"schema": ..., "results": [...], ...} to --json; nothing if the flag was not given.
void write_json(const Common& common, const nlohmann::json& document);
bool json_on_stdout(const Common& common);

// Ctrl-C and SIGTERM: the first is noted and the verb ends cleanly; a second Ctrl-C ends the program at once.
void watch_interrupts();
bool interrupted();
std::string stopped_by();  // "; stopped by Ctrl-C", or nothing: for the summary line

std::string new_run_id(const std::string& verb);  // "check-20250131-120000-4242", unique enough for one store

// Runs `body` and turns what it throws into one sentence on stderr and an exit code.
int guarded(const std::function<int()>& body);
void print_error(const std::string& message);

}  // namespace flashcore::cli
