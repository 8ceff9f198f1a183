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
#include "lab/record/checkout.h"

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
// Into the help of --suite: what a verb takes without it.
void tell_default_suite(CLI::App& app, std::string_view suite);
// --trust-code, for verbs that run kernels which others may have written.
void add_trust_code(CLI::App& app, bool& trust);
// Lines of the verb's help that a test executes. "  # exit N" behind one names the code it ends with if not 0, and
// "  # exit 0 or 1 or 2" the codes where the machine decides.
void add_examples(CLI::App& app, const std::vector<std::string>& examples);

// --problem alone: a name or id of `default_suite`, or any id. --suite: its problems, or the one --problem names.
// `suite.name` says where they come from.
Suite select_problems(const Common& common, const std::string& default_suite);

// "1 problem", "5 problems of 'quick'": a problem asked for by its id is of no suite.
std::string problems_of(const Suite& suite, const Common& common);

// The candidate text of --family and --config ("family:k=v,..."); empty if no family is pinned.
// Error kBadInput for --config without --family, and for a name that is not a family.
std::string candidate_text(const Common& common);

// As open_device, whose errors say what a caller of the library can do; here they name the flag too.
std::unique_ptr<Device> open_named_device(const std::string& name);
// Opens the device far enough to know it, then lets go of it, so that worker processes have it alone.
DeviceInfo describe_device(const std::string& name);
// Of an emulated GPU, which has few SMs, the GPU with all of them: kernels are diagnosed that it would run.
DeviceInfo whole_device(DeviceInfo device);
// A line on stderr if compiled kernels are not kept because others could change them. describe_device() says it for
// GPUs.
void note_unused_cache();

// The same, or with --arch a GPU that need not be here, --key naming its tuned table.
// Error kBadInput for both --device and --arch, and for --key alone.
DeviceInfo device_for_dispatch(const std::string& name, const std::string& arch, const std::string& key);

// Before long work: what `flag` names must be a file that can be written, or nothing. Error kBadInput for a folder,
// kEnvironment for what the machine does not let us write.
void check_output_file(const char* flag, const std::string& file);
// The same for a folder, which is made with those above it.
void check_output_folder(const char* flag, const std::string& folder);
void check_json_target(const Common& common);
// {"schema": ..., "results": [...], ...} to --json; nothing if the flag was not given. A verb that watches for
// interrupts has "interrupted" in it, its own where the document has it.
void write_json(const Common& common, const nlohmann::json& document);
// The same for results that keep raw samples: in a file a result takes one line (lab/compare/peer_rows.h).
void write_rows(const Common& common, const nlohmann::json& document);
bool json_on_stdout(const Common& common);

// Ctrl-C, SIGTERM and SIGHUP, from the first thing in main on, blocked by whoever started the program or not: the first
// is noted and the verb ends cleanly; a second Ctrl-C ends the program at once.
void catch_signals();
// For a verb that does not ask interrupted(): they end the program, one that was noted already too.
void end_at_signals();
// The verb asks interrupted(), and its JSON says what that said.
void watch_interrupts();
bool interrupted();
// What a verb ends with that came to `code` by what it has judged: what was interrupted is not done.
int unless_interrupted(int code);
// ", 2 not tried for want of something on this machine", or nothing: for the summary line.
std::string lacking_words(int lacking);
std::string stopped_by();  // "; stopped by Ctrl-C", or nothing: for the summary line

// The checkout of flashcore around the present folder; elsewhere what the program was built from, or kUnknownCommit.
Checkout present_checkout();

std::string new_run_id(const std::string& verb);  // "check-20250131-120000-4242", unique enough for one store

// Runs `body` and turns what it throws into one sentence on stderr and an exit code.
int guarded(const std::function<int()>& body);
void print_error(const std::string& message);
void print_warning(const std::string& message);  // to stderr: about what was passed over

}  // namespace flashcore::cli
