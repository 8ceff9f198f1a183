#include "cli/common.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <new>
#include <system_error>

#include "cli/arguments.h"
#include "cli/built_commit.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/process_end.h"
#include "device/cuda/compile_cache.h"
#include "lab/compare/peer_rows.h"
#include "lab/diagnose/gather.h"
#include "lab/process/worker.h"
#include "lab/record/digest.h"

namespace flashcore::cli {

namespace {

std::atomic<int> g_interrupt{0};  // the signal
bool g_watching = false;
struct Caught {
  int number;
  void (*before)(int) = SIG_DFL;
};
Caught g_caught[] = {{SIGINT}, {SIGTERM}, {SIGHUP}};
static_assert(std::atomic<int>::is_always_lock_free, "set from a signal handler");

// A second Ctrl-C ends the process at once. Not a second SIGTERM: timeout(1) sends it to the process and to its group.
void on_interrupt(int signal) {
  g_interrupt = signal;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void add_common(CLI::App& app, Common& common, unsigned flags) {
  if (flags & kDevice)
    app.add_option("--device", common.device,
                   "cpu | cuda[:N] | emulator[:sm_80] (default: cuda:0 if there is one, else cpu)");
  if (flags & kSuite)
    app.add_option("--suite", common.suite, "a suite that ships, or a .yaml file")
        ->type_name("NAME|FILE")
        ->check(not_empty());
  if (flags & kProblem)
    app.add_option("--problem", common.problem, "one problem: its name in the suite, or an id as b1_h8_s512_d64_fp16")
        ->check(not_empty())
        ->type_name("ID");
  if (flags & kFamily) app.add_option("--family", common.family, "only this kernel family")->type_name("NAME");
  if (flags & kConfig)
    app.add_option("--config", common.config, "pins the family's tile parameters; needs --family")
        ->type_name("k=v,...");
  if (flags & kStore)
    app.add_option("--store", common.store, "where trials are kept")->type_name("FILE")->capture_default_str();
  if (flags & kJson)
    app.add_option("--json", common.json, "also write the results as JSON ('-': to stdout)")->type_name("FILE");
  app.add_flag("--quiet", common.quiet, "print the summary line and errors only");
}

void tell_default_suite(CLI::App& app, std::string_view suite) {
  CLI::Option* option = app.get_option("--suite");
  option->description(fmt::format("{} (default: {})", option->get_description(), suite));
}

void add_trust_code(CLI::App& app, bool& trust) {
  app.add_flag("--trust-code", trust,
               "patched kernels are neither checked nor confined, and may do all that you may: only if you have read "
               "them");
}

void add_examples(CLI::App& app, const std::vector<std::string>& examples) {
  std::string text = "Examples:";
  for (const std::string& example : examples) text += "\n  flashcore " + example;
  app.footer(text);
}

Suite select_problems(const Common& common, const std::string& default_suite) {
  Suite suite = load_suite(common.suite.empty() ? default_suite : common.suite);
  if (common.problem.empty()) {
    if (suite.problems.empty()) throw_bad_input("suite '{}' holds no problem: nothing to do", suite.name);
    return suite;
  }
  try {
    suite.problems = {find_problem(suite, common.problem)};
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{} (`flashcore problem --reference` prints it)", error.what()));
  }
  return suite;
}

std::string problems_of(const Suite& suite, const Common& common) {
  const std::string count = plural(static_cast<std::int64_t>(suite.problems.size()), "problem");
  const bool by_id = !common.problem.empty() && suite.problems.front().problem.id() == common.problem;
  if (by_id && common.suite.empty()) return "problem " + common.problem;
  if (!common.problem.empty()) return fmt::format("problem '{}' of '{}'", suite.problems.front().name, suite.name);
  return fmt::format("{} of '{}'", count, suite.name);
}

std::string candidate_text(const Common& common) {
  if (common.family.empty()) {
    if (!common.config.empty())
      throw_bad_input("--config {} was given without --family: a config belongs to one family; add --family NAME",
                      common.config);
    return {};
  }
  const std::size_t colon = common.family.find(':');
  family_by_name(common.family.substr(0, colon));
  if (common.config.empty()) return common.family;
  if (colon != std::string::npos)
    throw_bad_input("--family {} already holds a config, and --config {} was given too: use one of them", common.family,
                    common.config);
  return common.family + ":" + common.config;
}

std::unique_ptr<Device> open_named_device(const std::string& name) {
  try {
    return open_device(name);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kEnvironment || !name.starts_with("cuda")) throw;
    throw Error(error.kind(), fmt::format("{} (--device cpu)", error.what()));
  }
}

DeviceInfo whole_device(DeviceInfo device) {
  if (device.limits.emulated) device.limits = limits_of_emulated(device.limits);
  return device;
}

DeviceInfo describe_device(const std::string& name) {
  DeviceInfo info = open_named_device(name)->info();
  if (info.limits.kind == DeviceKind::kCuda) note_unused_cache();
  return info;
}

void note_unused_cache() {
  std::string why;
  try {
    why = cuda::CompileCache(cache_directory() / "kernels").why_unused();
  } catch (const Error&) {  // no cache at all, which whoever wants one says
  }
  if (!why.empty()) fmt::print(stderr, "flashcore: note: {}\n", visible_block(why, "  "));
}

bool json_on_stdout(const Common& common) { return common.json == "-"; }

void check_output_file(const char* flag, const std::string& file) {
  if (file.empty()) return;
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    throw_bad_input("{} {} is a folder: give the name of a file", flag, file);
  if (const auto reason = why_not_writable(file)) throw_environment("{} {}: {}", flag, file, *reason);
}

void check_output_folder(const char* flag, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder, error))
    throw_environment("{} {}: the folder cannot be made: {}; choose another", flag, folder,
                      error ? error.message() : "it is a file");
  if (const auto reason = why_not_writable(std::filesystem::path(folder) / "x"))
    throw_environment("{} {}: {}", flag, folder, *reason);
}

void check_json_target(const Common& common) {
  if (json_on_stdout(common)) return;
  std::string table;
  try {
    table = user_table_path().string();
  } catch (const Error&) {  // no folder for a cache: no table
  }
  require_distinct({{"--json", common.json}},
                   {{"--store", common.store}, {"--suite", common.suite}, {"the tuned table", table}});
  check_output_file("--json", common.json);
}

DeviceInfo device_for_dispatch(const std::string& name, const std::string& arch, const std::string& key) {
  if (arch.empty()) {
    if (!key.empty())
      throw_bad_input(
          "--key {} was given without --arch: it names the tuned table for a GPU that is not here; give --arch {} as "
          "well, or leave --key out",
          excerpt(key), find_gpu_model(key) ? fmt::format("sm_{}", find_gpu_model(key)->arch) : "sm_90 or another one");
    return describe_device(name);
  }
  if (!name.empty()) throw_bad_input("--arch and --device exclude each other: use one");
  DeviceInfo device;
  device.limits = limits_of_model(arch, key);
  if (const GpuModel* model = find_gpu_model(key); model && model->arch != device.limits.arch)
    throw_bad_input("--key {0} is a GPU of sm_{1}, and --arch is {2}: use --arch sm_{1}, or leave --key out", key,
                    model->arch, arch);
  device.key = key.empty() ? fmt::format("sm_{}", device.limits.arch) : key;
  device.id = device.name = device.key;
  return device;
}

namespace {

nlohmann::json completed(nlohmann::json document) {
  // A verb that says it itself knows whether anything was left to do.
  if (g_watching && !document.contains("interrupted")) document["interrupted"] = interrupted();
  if (document.contains(kDigest)) seal(document);
  return document;
}

}  // namespace

void write_rows(const Common& common, const nlohmann::json& results) {
  if (common.json.empty() || json_on_stdout(common)) return write_json(common, results);
  write_file_atomically(common.json, print_rows(completed(results)));
}

void write_json(const Common& common, const nlohmann::json& results) {
  if (common.json.empty()) return;
  const nlohmann::json document = completed(results);
  // On a terminal a name's C1 controls and bidirectional overrides would act: ASCII only there.
  const bool ascii = json_on_stdout(common);
  const std::string text = document.dump(2, ' ', ascii, nlohmann::json::error_handler_t::replace) + "\n";
  if (json_on_stdout(common)) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      throw_environment("cannot write the JSON to standard output: {}", std::strerror(errno));
    }
    return;
  }
  write_file_atomically(common.json, text);
}

void catch_signals() {
  sigset_t ours;
  sigemptyset(&ours);
  for (Caught& caught : g_caught) {
    caught.before = std::signal(caught.number, on_interrupt);
    sigaddset(&ours, caught.number);
  }
  // A terminal that is closed; nohup(1) has it ignored, and it stays so.
  if (g_caught[2].before == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  // Past `ulimit -f` a write fails then, and is told like that to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
}

void end_at_signals() {
  for (const Caught& caught : g_caught) std::signal(caught.number, caught.before);
  if (interrupted()) std::raise(g_interrupt);
}

void watch_interrupts() { g_watching = true; }
bool interrupted() { return g_interrupt != 0; }
int unless_interrupted(int code) { return code == kDone && interrupted() ? static_cast<int>(kNotJudged) : code; }
std::string lacking_words(int lacking) {
  return lacking > 0 ? fmt::format(", {} not tried for want of something on this machine", lacking) : "";
}

std::string stopped_by() {
  if (!interrupted()) return "";
  return g_interrupt == SIGINT   ? kStoppedByCtrlC
         : g_interrupt == SIGHUP ? "; stopped by SIGHUP"
                                 : "; stopped by SIGTERM";
}

Checkout present_checkout() {
  if (const auto around = read_checkout(".")) return *around;
  if (*kBuiltCommit == '\0') return {.commit = kUnknownCommit};
  return {.commit = kBuiltCommit, .dirty = kBuiltDirty};
}

std::string new_run_id(const std::string& verb) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &utc);
  return fmt::format("{}-{}-{}", verb, stamp, getpid());
}

// A message may quote what it was given: names, compiler output. Further lines are indented, so that none of them can
// pass for a message of ours.
void print_error(const std::string& message) {
  fmt::print(stderr, "flashcore: error: {}\n", visible_block(message, "  "));
}

void print_warning(const std::string& message) {
  fmt::print(stderr, "flashcore: warning: {}\n", visible_block(message, "  "));
}

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInternal) {
      print_error(fmt::format("{} (this is a fault of flashcore, not yours; please report it with the command line)",
                              error.what()));
      return kNoEnvironment;
    }
    print_error(error.what());
    return error.kind() == ErrorKind::kBadInput ? kBadUsage : kNoEnvironment;
  } catch (const CompileError& error) {
    print_error(fmt::format("the kernel did not compile: {}\n{}", error.what(), error.log()));
  } catch (const DeviceFault& error) {
    print_error(fmt::format("the device reported a fault: {}; the results so far are not to be trusted", error.what()));
  } catch (const Cancelled&) {
    print_error("stopped before there was a result");
    return kNotJudged;
  } catch (const std::bad_alloc&) {
    print_error("not enough memory for this problem; try a smaller one");
  } catch (const std::system_error& error) {  // those of std::filesystem among them
    print_error(fmt::format("the system refused: {}; free or repair what it names, and run again", error.what()));
  } catch (const std::exception& error) {
    print_error(
        fmt::format("unexpected: {} (this is a fault of flashcore, not yours; please report it with the command line)",
                    error.what()));
  }
  return kNoEnvironment;
}

}  // namespace flashcore::cli
