// flashcore profile: why a candidate takes the time it takes, as ranked sentences with their evidence.

#include "cli/profile.h"

#include <algorithm>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/files.h"
#include "lab/diagnose/metrics.h"
#include "lab/diagnose/nsight.h"
#include "lab/process/worker.h"

namespace flashcore::cli {

namespace {

// Counters of one launch are some kilobytes.
constexpr std::size_t kMaxCountersFile = std::size_t{16} << 20;

std::string value_text(const Indicator& row) {
  if (!row.value) return "-";
  const std::string number = *row.value >= 1000 ? fmt::format("{:.0f}", *row.value) : fmt::format("{:.3g}", *row.value);
  return number + (row.unit.empty() || row.unit == "%" || row.unit == "x" ? "" : " ") + row.unit;
}

// Of the counters some are there, and what is said is of them.
bool is_partly_lost(const ProfileFacts& facts, const LostSource& lost) {
  return lost.source == kCountersSource && !facts.counters.empty();
}

void print_bottlenecks(Console& console, const Profile& profile) {
  if (profile.bottlenecks.empty()) console.line("no source names a bottleneck");
  for (const Bottleneck& b : profile.bottlenecks) {
    const bool limit = is_limit(b.cause);
    console.line(
        "{}. {} ({}{})", b.rank, console.paint(word_of(b.cause), limit ? Tone::kPlain : Tone::kWarn),
        limit ? "limit" : "fault",
        b.share > 0 ? fmt::format(", {:.0f}% of {}{}", 100 * b.share, b.share_of, limit ? "" : ", estimated") : "");
    console.line("   {}", b.sentence);
    for (const std::string& evidence : b.evidence) console.line("   - {}", evidence);
  }
}

// Of a line enough to know what it became.
constexpr std::size_t kShownInstructions = 12;

void print_sass(Console& console, const SourceSass& sass) {
  console.line("machine code of the lines with most traffic, by {}{}", sass.tool,
               sass.same_code ? "" : "; with line information the compiler makes other code than without");
  for (const HotLine& line : sass.lines) {
    const CountedLine& counted = line.counted;
    console.line("{}{}", counted.where, counted.caller.empty() ? "" : ", called at " + counted.caller);
    console.line("   {}", console.paint(line.source, Tone::kDim));
    console.line("   {}: {:.0f} requests, {:.2f} {} each, at least {:.2f}", counted.kind, counted.requests,
                 counted.units_per_request, counted.in_sectors() ? "sectors" : "passes", counted.least_per_request);
    if (line.instructions.empty()) console.line("   no instruction: the compiler moved or merged all of it");
    for (std::size_t i = 0; i < std::min(line.instructions.size(), kShownInstructions); ++i)
      console.line("     /*{}*/ {}", line.instructions[i].address, line.instructions[i].text);
    if (line.instructions.size() > kShownInstructions)
      console.line("     and {} more (--json has them)", line.instructions.size() - kShownInstructions);
  }
}

// A profile of a device that cannot run the flag is a mistake of whoever gave it: nothing is ignored.
void check_flags(const ProfileArguments& options, const DeviceInfo& device) {
  const bool gpu = device.limits.kind == DeviceKind::kCuda && !device.limits.emulated;
  const auto refuse = [&](const char* flag, const char* what) {
    throw_bad_input("{} is for a GPU, and {} has {}; leave it out, or give --device cuda", flag, device.id, what);
  };
  if (!gpu) {
    if (!options.metrics.empty()) refuse("--metrics", "no hardware counters of Nsight Compute");
    if (!options.ncu.empty()) refuse("--ncu", "no hardware counters of Nsight Compute");
    if (!options.counters.empty()) refuse("--counters", "no hardware counters of Nsight Compute");
    if (options.emulate)
      refuse("--emulate", device.limits.emulated ? "the emulator's counts anyway" : "no GPU kernels");
  }
  if (options.gives_seconds && device.limits.emulated && !options.planted)
    throw_bad_input("--seconds is of timing, and {} has no time; leave it out", device.id);
  if (options.sass && options.planted)
    throw_bad_input(
        "--sass was given with --planted, which asks for the first bottleneck alone; leave one of them out");
  if (!options.nvdisasm.empty() && !options.sass)
    throw_bad_input("--nvdisasm was given without --sass, which alone runs it; give both, or leave it out");
  if (options.sass && device.limits.kind != DeviceKind::kCuda)
    throw_bad_input(
        "--sass is for a GPU, and {} has no machine code of NVIDIA's; leave it out, or give --device "
        "emulator",
        device.id);
  if (options.sass && gpu && !options.emulate)
    throw_bad_input("--sass shows the lines that the emulator counts as hot; give --emulate as well");
  for (const std::string& name : options.metrics) check_metric_name(name);
  if (!options.arch.empty()) {
    const auto refuse_unused = [](bool given, const char* flag, const char* needed) {
      if (given) throw_bad_input("{} is for what runs, and with --arch {}; leave it out", flag, needed);
    };
    refuse_unused(!options.metrics.empty(), "--metrics", "no launch is counted (--counters takes a file)");
    refuse_unused(!options.ncu.empty() && options.counters.empty(), "--ncu",
                  "no launch is counted (--counters takes a file)");
    refuse_unused(options.gives_seconds, "--seconds", "nothing is timed");
    refuse_unused(options.gives_seed && !options.emulate, "--seed", "nothing is launched without --emulate");
  }
  if (!options.counters.empty() && !(options.ncu.empty() && options.metrics.empty()))
    throw_bad_input("--counters takes what Nsight Compute has written; --ncu and --metrics run it: give one of them");
  if (!options.counters.empty() && options.common.problem.empty())
    throw_bad_input("--counters is of one launch; name its problem with --problem");
}

struct Profiled {
  NamedProblem named;
  std::string candidate, why;  // why: it was chosen, or no family runs it
};

// Error kBadInput where the one problem that was asked for cannot be.
Profiled choose(const ProfileArguments& options, const NamedProblem& named, const DeviceInfo& here) {
  const DeviceInfo device = whole_device(here);
  const std::string pinned = candidate_text(options.common);
  named.problem.validate();
  if (!pinned.empty())
    return {named, parse_candidate(pinned, named.problem, device.limits).print(), "given by --family"};
  const Choice choice = dispatch(named.problem, device);
  return {named, choice.candidate.print(), choice.reason};
}

std::vector<Profiled> choose_all(const ProfileArguments& options, const Suite& suite, const DeviceInfo& device,
                                 std::vector<std::string>& skipped) {
  std::vector<Profiled> chosen;
  for (const NamedProblem& named : suite.problems) {
    try {
      chosen.push_back(choose(options, named, device));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kBadInput || !options.common.problem.empty()) throw;
      skipped.push_back(fmt::format("{}: {}", named.name, e.what()));
    }
  }
  return chosen;
}

nlohmann::json result_json(const Profiled& profiled, const Gathered& gathered, const Profile& profile,
                           const DeviceInfo& device) {
  nlohmann::json document = profile_json(gathered.facts, profile);
  document["name"] = profiled.named.name;
  document["because"] = profiled.why;
  document["device"] = {{"id", device.id}, {"key", device.key}, {"name", device.name}};
  document["failure"] = gathered.failure;
  document["sass"] = gathered.sass ? sass_json(*gathered.sass) : nlohmann::json();
  return document;
}

int run_profile(const ProfileArguments& options) {
  check_json_target(options.common);
  const DeviceInfo device = device_for_dispatch(options.common.device, options.arch, options.key);
  check_flags(options, device);
  check_gpu_key(options.key, options.common.store);
  if (options.planted) return profile_planted(options, device);
  if (options.common.problem.empty() && options.common.suite.empty())
    throw_bad_input(
        "profile looks at one problem: name it with --problem, as --problem b1_h8_s512_d64_fp16 (or several "
        "with --suite)");
  const Suite suite = select_problems(options.common, "canonical");
  require_something_to_time(suite);
  Console console(options.common.quiet, json_on_stdout(options.common));
  GatherOptions gather = gather_options(options, device, console);
  std::vector<std::string> skipped;
  const std::vector<Profiled> chosen = choose_all(options, suite, device, skipped);
  nlohmann::json results = nlohmann::json::array();
  int made = 0, failed = 0, lacking = 0;
  for (const Profiled& profiled : chosen) {
    if (interrupted()) break;
    Gathered gathered;
    try {
      gathered = gather_facts(profiled.named.problem, profiled.candidate, gather);
    } catch (const Cancelled&) {
      break;
    }
    console.end_progress();
    if (!gathered.nothing.empty()) {
      skipped.push_back(gathered.nothing);
      continue;
    }
    const Profile profile = diagnose(gathered.facts);
    console.line("{} on {} ({})", profiled.named.problem.id(), device.name, device.id);
    console.line("{}, {}", profiled.candidate, profiled.why);
    print_profile(console, gathered.facts, profile);
    if (gathered.sass) print_sass(console, *gathered.sass);
    if (!gathered.failure.empty()) console.summary("it did not pass its gates: {}", gathered.failure);
    results.push_back(result_json(profiled, gathered, profile, device));
    ++(!gathered.failure.empty() ? failed : gathered.lacking ? lacking : made);
    if (made + failed + lacking == 1 && !profile.bottlenecks.empty() && suite.problems.size() == 1)
      console.summary("first: {}: {}", profile.bottlenecks.front().cause, profile.bottlenecks.front().sentence);
  }
  console.end_progress();
  for (const std::string& reason : skipped) console.line("skipped {}", reason);
  write_json(options.common,
             {{"schema", kProfileSchema}, {"device", device.key}, {"skipped", skipped}, {"results", results}});
  console.summary("{} made, {} of candidates that failed, {} skipped{}{}", plural(made, "profile"), failed,
                  skipped.size(), lacking_words(lacking), stopped_by());
  if (failed > 0) return kFailed;
  if (lacking > 0) return kNoEnvironment;
  return unless_interrupted(made > 0 ? kDone : kNotJudged);
}

}  // namespace

GatherOptions gather_options(const ProfileArguments& options, const DeviceInfo& device, Console& console) {
  GatherOptions gather;
  gather.device = device;
  gather.is_here = options.arch.empty();
  gather.emulate = options.emulate;
  gather.ncu = options.ncu;
  gather.metrics = options.metrics;
  gather.sass = options.sass;
  gather.nvdisasm = options.nvdisasm;
  gather.max_seconds = options.seconds;
  gather.seed = options.seed;
  gather.stop = interrupted;
  gather.progress = [&console](const std::string& what) { console.progress(0, 0, what); };
  if (!options.counters.empty()) {
    gather.counters_csv = read_file(options.counters, kMaxCountersFile);
    try {
      (void)parse_ncu_csv(*gather.counters_csv);
    } catch (const Error& e) {
      throw_bad_input("--counters {}: {}", options.counters, e.what());
    }
  }
  if (!gather.is_here && std::filesystem::exists(options.common.store))
    gather.stored = stored_trials(options.common.store, {.device_key = device.key});
  return gather;
}

void print_profile(Console& console, const ProfileFacts& facts, const Profile& profile) {
  if (facts.counts && facts.counts->problem != facts.problem.id())
    console.line("counted on {}, since the emulator would take minutes for {}", facts.counts->problem,
                 facts.problem.id());
  // Its time is that kernel's, too, where it is one of the counters.
  if (!facts.foreign_kernel.empty())
    console.summary("warning: the counters are of another kernel, {}, and so is all that is made of them below",
                    facts.foreign_kernel);
  if (facts.time_us) console.line("time {} ({})", human_time_us(*facts.time_us), facts.time_from);
  print_bottlenecks(console, profile);
  if (!profile.roofs.empty()) {
    Table roofs({"roof", "at least", "of the time", "from"});
    for (const Roof& roof : profile.roofs)
      roofs.add({word_of(roof.cause), human_time_us(roof.least_us),
                 facts.time_us ? fmt::format("{:.0f}%", 100 * roof.least_us / *facts.time_us) : "-", roof.basis});
    console.table(roofs);
  }
  Table table({"what", "value", "target", "met", "from"});
  for (const Indicator& row : profile.indicators)
    table.add({row.name, value_text(row), row.target.empty() ? "-" : row.target,
               !row.met   ? Cell("-")
               : *row.met ? Cell("yes", Tone::kGood)
                          : Cell("no", Tone::kWarn),
               row.source});
  console.table(table);
  for (const LostSource& lost : facts.lost)
    console.line("{} {}: {}", is_partly_lost(facts, lost) ? "of" : "without", lost.source, lost.why);
}

Run add_profile(CLI::App& app) {
  auto options = std::make_shared<ProfileArguments>();
  add_common(app, options->common, kDevice | kSuite | kProblem | kFamily | kConfig | kStore | kJson);
  tell_default_suite(app, "none: name one, or --problem");
  app.add_option("--arch", options->arch, "as on a GPU of this architecture, which need not be here: nothing runs")
      ->type_name("sm_90");
  app.add_option("--key", options->key, "with --arch: whose tuned table and results to use, as h200")->type_name("KEY");
  app.add_flag("--emulate", options->emulate, "on a GPU: also count what a launch does on the emulator");
  app.add_flag("--sass", options->sass,
               "with the emulator's counts: the machine code of the lines with most traffic, by nvdisasm");
  app.add_option("--nvdisasm", options->nvdisasm, "its path (default: on PATH, in a toolkit, in Python's wheels)")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--ncu", options->ncu, "Nsight Compute's program (default: ncu on PATH, or of the CUDA packages)")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--metrics", options->metrics, "further hardware counters, by Nsight Compute's names")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--counters", options->counters, "take the hardware counters from what `ncu --csv --page raw` wrote")
      ->type_name("FILE")
      ->check(not_empty());
  const CLI::Option* seconds = app.add_option("--seconds", options->seconds, "of timing, at most")
                                   ->check(number_between(0.01, 600))
                                   ->capture_default_str();
  const CLI::Option* seed =
      app.add_option("--seed", options->seed, "of the data")->check(seed_number())->capture_default_str();
  app.add_flag("--planted", options->planted,
               "the planted slow kernels: is each one's bottleneck named first; --problem NAME runs one");
  // Hidden: what somebody may look for here.
  app.add_flag_callback("--timeline",
                        [] {
                          throw_bad_input(
                              "--timeline is no flag of profile: `flashcore timeline` records what each warp did and "
                              "when");
                        })
      ->group("");
  add_examples(app, {"profile --device cpu --problem b1_h2_s128_d64_fp32 --seconds 0.2",
                     "profile --arch sm_90 --key h200 --problem b1_h32_hk8_s4096_d128_bf16_causal",
                     "profile --device emulator --problem b1_h2_s128_d64_fp16 --family sm80_fwd --json profile.json"});
  return [options, seconds, seed] {
    watch_interrupts();
    options->gives_seconds = seconds->count() > 0;
    options->gives_seed = seed->count() > 0;
    return run_profile(*options);
  };
}

Run add_launch_candidate(CLI::App& app) {
  struct LaunchArguments {
    std::string device, request;
    int launches = 2;  // the first warms the caches, the second counts
  };
  auto options = std::make_shared<LaunchArguments>();
  app.add_option("--device", options->device, "as the parent's")->required();
  app.add_option("--request", options->request, "what to launch")->required();
  app.add_option("--launches", options->launches, "how often")->check(whole_between(1, 1000));
  return [options] {
    const auto request = nlohmann::json::parse(read_file(options->request, kMaxCountersFile)).get<EvaluateRequest>();
    launch_for_counters(*open_device(options->device), request, options->launches);
    return int{kDone};
  };
}

}  // namespace flashcore::cli
