#include "lab/diagnose/gather.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/environment_error.h"
#include "core/error.h"
#include "core/files.h"
#include "core/foreign_text.h"
#include "core/parallel.h"
#include "core/scratch_folder.h"
#include "device/compiler.h"
#include "kernels/embedded.h"
#include "lab/diagnose/expectation.h"
#include "lab/diagnose/metrics.h"
#include "lab/diagnose/nsight.h"
#include "lab/experiment/experiment.h"
#include "lab/measure/engine.h"
#include "lab/process/isolate.h"
#include "lab/process/worker.h"

namespace flashcore {
namespace {

// What the emulator does within seconds.
constexpr double kCountedFlops = 3e8;
constexpr std::int64_t kCountedRows[] = {512, 256, 128};
constexpr double kReferenceFlopsOfProfile = 5e8;
constexpr double kCompileTimeout = 120;

constexpr const char* kCountsOf = "emulator's counts";
constexpr const char* kCompilerOf = "compiler";
constexpr const char* kCountersOf = kCountersSource;
constexpr const char* kSassOf = "machine code";
constexpr std::size_t kMaxCubin = std::size_t{64} << 20;

class Gatherer {
 public:
  Gatherer(const PlacedProblem& problem, const std::string& candidate, const GatherOptions& options)
      : problem_(problem), text_(candidate), options_(options), patches_(options.patches) {
    result_.facts.problem = problem;
    result_.facts.candidate = candidate;
    const DeviceLimits& limits = options.device.limits;
    result_.facts.limits = limits.emulated ? limits_of_emulated(limits) : limits;
  }

  Gathered gather() {
    const DeviceLimits& limits = options_.device.limits;
    if (problem_.total_lengths().q == 0) {
      result_.nothing =
          fmt::format("{} has no query rows, so there is nothing to compute and no time to explain", problem_.id());
      return std::move(result_);
    }
    if (limits.kind == DeviceKind::kCpu) {
      measure();
      ceilings();
    } else if (limits.emulated) {
      compile();  // before a worker starts: it forks
      count(options_.device.id);
    } else {
      if (options_.is_here) measure();
      else {
        compile();
        if (options_.counters_csv) time_of_counters();
        else expect();
      }
      ceilings();
      counters();
      if (options_.emulate && !stopped()) count(fmt::format("emulator:sm_{}", limits.arch));
    }
    if (options_.sass && !stopped()) disassemble_hot_lines();
    occupancy();
    const ProfileFacts& f = result_.facts;
    // Known only now: the compiler is asked before the emulator.
    for (auto& lost : result_.facts.lost)
      if (f.counts && lost.source == kCompilerOf) lost.why += ", and what the emulator counts still holds";
    result_.lacking = !f.counts && !f.artifact && !f.time_us && f.counters.empty() && result_.failure.empty();
    return std::move(result_);
  }

 private:
  // While a profiler ran. What was measured by then is kept: what begins now would throw Cancelled.
  bool stopped() const { return options_.stop && options_.stop(); }
  void lose(const char* source, std::string why) { result_.facts.lost.push_back({source, std::move(why)}); }

  EvaluateRequest request_of(const PlacedProblem& problem) const {
    EvaluateRequest request;
    request.problem = problem;
    request.problem_name = problem.id();
    request.suite = "profile";
    request.candidate = text_;
    request.patches = options_.patches;
    request.phase = Phase::kCheck;
    request.level = GateLevel::kQuick;
    request.seed = options_.seed;
    request.max_seconds = options_.max_seconds;
    request.max_reference_flops = kReferenceFlopsOfProfile;
    request.past_resources = true;
    return request;
  }

  // None if it did not come as far as being counted or timed; what was lost is noted then.
  std::optional<Trial> evaluate_on(const std::string& device, const PlacedProblem& problem, const char* source,
                                   const std::string& still) {
    Worker worker(device, options_.executable);
    worker.cancel_when(options_.stop);
    Trial trial = worker.evaluate(request_of(problem));
    if (trial.timing || find_gate(trial, Gate::kCounters)) return trial;
    lose(source, fmt::format("{} ({}){}", trial.message, trial.ended, still));
    if (trial.ended != Ended::kEnvironment && trial.ended != Ended::kInvalid)
      result_.failure = fmt::format("{}: {}", trial.ended, trial.message);
    return std::nullopt;
  }

  void measure() {
    options_.progress("timing " + text_);
    ProfileFacts& facts = result_.facts;
    const auto trial = evaluate_on(options_.device.id, problem_, "time", "; there is no roofline without a time");
    if (!trial) return;
    facts.time_us = trial->timing->p50_us;
    facts.time_from = fmt::format("median of {} samples here", trial->timing->samples.size());
    facts.machine = trial->machine;
    if (facts.limits.kind == DeviceKind::kCpu) {
      facts.threads = threads_of(trial->config);
    } else {
      facts.artifact = trial->artifact;
    }
  }

  // "threads=0" is all of them.
  static int threads_of(const std::string& config) {
    const std::size_t at = config.find("threads=");
    const int asked = at == std::string::npos ? 0 : std::atoi(config.c_str() + at + 8);
    return asked > 0 ? asked : hardware_threads();
  }

  void count(const std::string& emulator) {
    const PlacedProblem counted = counted_problem(problem_, text_, result_.facts.limits);
    options_.progress("counting on " + emulator);
    const char* const still = result_.facts.artifact ? "; what the compiler says still holds" : "";
    try {
      const auto trial = evaluate_on(emulator, counted, kCountsOf, still);
      if (!trial) return;
      const Verdict* counters = find_gate(*trial, Gate::kCounters);
      const Family& family = family_by_name(trial->family);
      const Candidate candidate = parse_candidate(text_, counted, trial->device.limits);
      const int threads = family.source(candidate.config, counted, trial->device.limits).threads_per_block;
      result_.facts.counts = read_counts(counters->evidence, counted, threads);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kEnvironment && e.kind() != ErrorKind::kBadInput) throw;
      lose(kCountsOf, fmt::format("{}{}", e.what(), still));
    }
  }

  // In a child: NVRTC has been seen to end its process.
  void compile() {
    options_.progress("compiling " + text_);
    const DeviceLimits& limits = result_.facts.limits;
    Isolated isolated;
    run_isolated(
        1, {.timeout_seconds = kCompileTimeout},
        [&](std::int64_t) {
          try {
            const Candidate candidate = parse_candidate(text_, problem_, limits);
            return nlohmann::json{{"artifact", compile_candidate(candidate, problem_, limits)}}.dump();
          } catch (const std::exception& e) {
            const bool machine = is_environment_error(e);
            return nlohmann::json{{"why", machine ? environment_message(e) : e.what()}}.dump(
                -1, ' ', false, nlohmann::json::error_handler_t::replace);
          }
        },
        [&](std::int64_t, const Isolated& done) { isolated = done; }, options_.stop);
    constexpr const char* kStill = "registers, spills and occupancy are unknown";
    if (!isolated.completed) {
      if (options_.stop && options_.stop()) throw Cancelled("stopped while compiling");
      return lose(kCompilerOf, fmt::format("the compiler {}; {}", isolated.failure, kStill));
    }
    const nlohmann::json answer = nlohmann::json::parse(isolated.output);
    if (answer.contains("artifact")) result_.facts.artifact = answer.at("artifact").get<Artifact>();
    else lose(kCompilerOf, fmt::format("{}; {}", answer.at("why").get<std::string>(), kStill));
  }

  // Of what was counted, as the GPU that the facts are of would run it. In a child, as compile().
  void disassemble_hot_lines() {
    constexpr const char* kStill = "the counts of each line still hold";
    const ProfileFacts& facts = result_.facts;
    if (facts.limits.kind != DeviceKind::kCuda)
      return lose(kSassOf, "a CPU family has no source that is compiled here");
    if (!facts.counts) return lose(kSassOf, "it is of the hot lines, which the emulator counts; give --emulate");
    const std::string tool = find_nvdisasm(options_.nvdisasm);
    if (tool.empty())
      return lose(kSassOf,
                  options_.nvdisasm.empty()
                      ? fmt::format("nvdisasm is not there; install the CUDA toolkit or `pip install "
                                    "nvidia-cuda-nvdisasm`, or give its path with --nvdisasm; {}",
                                    kStill)
                      : fmt::format("--nvdisasm {} is not there; give the path of nvdisasm, or leave it out; {}",
                                    options_.nvdisasm, kStill));
    options_.progress("machine code by " + tool);
    const ScratchFolder folder;
    const auto file = folder.path() / "kernel.cubin";
    const PlacedProblem counted = PlacedProblem::parse(facts.counts->problem);
    Isolated isolated;
    run_isolated(
        1, {.timeout_seconds = kCompileTimeout},
        [&](std::int64_t) {
          try {
            return compile_with_lines(counted, file);
          } catch (const std::exception& e) {
            return nlohmann::json{{"why", is_environment_error(e) ? environment_message(e) : e.what()}}.dump(
                -1, ' ', false, nlohmann::json::error_handler_t::replace);
          }
        },
        [&](std::int64_t, const Isolated& done) { isolated = done; }, options_.stop);
    if (!isolated.completed) {
      if (options_.stop && options_.stop()) throw Cancelled("stopped while compiling");
      return lose(kSassOf, fmt::format("the compiler {}; {}", isolated.failure, kStill));
    }
    const nlohmann::json answer = nlohmann::json::parse(isolated.output);
    if (answer.contains("why"))
      return lose(kSassOf, fmt::format("{}; {}", answer.at("why").get<std::string>(), kStill));
    try {
      SourceSass sass;
      sass.tool = tool;
      sass.same_code = answer.at("same_code");
      sass.lines = hot_lines(*facts.counts, parse_sass(disassemble(tool, read_file(file, kMaxCubin), options_.stop)),
                             named_sources());
      result_.sass = std::move(sass);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kEnvironment && e.kind() != ErrorKind::kBadInput) throw;
      lose(kSassOf, fmt::format("{}; {}", e.what(), kStill));
    }
  }

  // The same source twice: as it runs, and with the lines of its instructions.
  std::string compile_with_lines(const PlacedProblem& problem, const std::filesystem::path& cubin) const {
    const DeviceLimits& limits = result_.facts.limits;
    const Candidate candidate = parse_candidate(text_, problem, limits);
    const Family& family = *candidate.family;
    KernelSource source = family.source(candidate.config, problem, limits);
    source.options.emplace_back("--generate-line-info");
    SourceMap sources = device_sources();
    if (const SourceMap* overlay = family.source_overlay())
      for (const auto& [path, text] : *overlay) sources[path] = text;
    const Artifact lined = open_compiler()->compile(source, sources, family.compile_arch(limits));
    write_file_atomically(cubin, lined.cubin);
    const Artifact plain = compile_candidate(candidate, problem, limits);
    return nlohmann::json{{"same_code", plain.code_hash == lined.code_hash}}.dump();
  }

  SourceMap named_sources() const {
    SourceMap named;
    for (const auto& [path, text] : device_sources()) named[included_as(path)] = text;
    const Candidate candidate =
        parse_candidate(text_, PlacedProblem::parse(result_.facts.counts->problem), result_.facts.limits);
    if (const SourceMap* overlay = candidate.family->source_overlay())
      for (const auto& [path, text] : *overlay) named[included_as(path)] = text;
    return named;
  }

  // Of the GPU that the facts are of, whose SMs an emulator has not.
  void occupancy() {
    ProfileFacts& facts = result_.facts;
    if (!facts.artifact || facts.limits.kind != DeviceKind::kCuda) return;
    const Candidate candidate = parse_candidate(text_, problem_, facts.limits);
    const Program program = candidate.family->program(candidate.config, problem_, facts.limits, make_layouts(problem_));
    std::int64_t ctas = 0;  // of the step that does the work, which has the most
    for (const Step& step : program.steps) {
      const Dim3 grid = step.launch.grid;
      if (step.launch.kernel == 0) ctas = std::max(ctas, std::int64_t{grid.x} * grid.y * grid.z);
    }
    facts.occupancy = occupancy_of(*facts.artifact, facts.limits, ctas);
  }

  void ceilings() {
    ProfileFacts& facts = result_.facts;
    options_.progress("ceilings of " + options_.device.id);
    if (options_.is_here) {
      facts.ceilings = open_device(options_.device.id)->ceilings();
      facts.ceilings_from = "ceiling measured here";
    } else if (const auto shipped = shipped_ceilings(options_.device.key)) {
      facts.ceilings = shipped;
      facts.ceilings_from = "ceiling of the results from " + options_.device.key;
    } else {
      lose("ceilings", fmt::format("no results of '{}' ship, so there is no roofline; with --key h200 there is one",
                                   options_.device.key));
    }
  }

  void expect() {
    ProfileFacts& facts = result_.facts;
    const Candidate candidate = parse_candidate(text_, problem_, facts.limits);
    const Expectation e = expect_time(problem_, text_, options_.device, options_.stored, std::nullopt,
                                      modelled_time(candidate, problem_, facts.limits));
    if (!e.time_us) return lose("time", e.basis);
    facts.time_us = e.time_us;
    facts.time_from = e.basis;
  }

  // The launch of the file that is the candidate's; the longest of all if none is.
  ProfiledKernel kernel_of_file() {
    const Candidate candidate = parse_candidate(text_, problem_, result_.facts.limits);
    const std::string name = candidate.family->source(candidate.config, problem_, result_.facts.limits).name_expression;
    const std::vector<ProfiledKernel> kernels = parse_ncu_csv(*options_.counters_csv);
    std::vector<ProfiledKernel> own;
    for (const ProfiledKernel& kernel : kernels)
      if (is_kernel_of(kernel.name, name)) own.push_back(kernel);
    if (!own.empty()) return main_kernel(own);
    const ProfiledKernel& longest = main_kernel(kernels);
    if (result_.facts.foreign_kernel.empty())
      lose(kCountersOf, fmt::format("the file has no kernel {}; they are of its longest, {}",
                                    name.substr(0, name.find('<')), excerpt(longest.name)));
    result_.facts.foreign_kernel = excerpt(longest.name);
    return longest;
  }

  void time_of_counters() {
    ProfileFacts& facts = result_.facts;
    const auto duration = value_of(kernel_of_file().counters, Metric::kDuration);
    if (!duration || !std::isfinite(*duration) || *duration <= 0)
      return lose("time", fmt::format("the file of counters has no {}", names_of(Metric::kDuration).front()));
    facts.time_us = *duration / 1e3;
    facts.time_from = fmt::format("{} of the file of counters", names_of(Metric::kDuration).front());
  }

  void counters() {
    read_counters();
    if (const auto dropped = drop_impossible(result_.facts.counters); !dropped.empty())
      lose(kCountersOf, fmt::format("left out what cannot be: {}; the others may be as wrong: count again",
                                    fmt::join(dropped, "; ")));
  }

  void read_counters() {
    ProfileFacts& facts = result_.facts;
    if (options_.counters_csv) {
      const ProfiledKernel kernel = kernel_of_file();
      facts.counters = kernel.counters;
      std::string left_out;
      for (const std::string& name : profile_metrics())
        if (const auto found = kernel.unreadable.find(name); found != kernel.unreadable.end())
          left_out += fmt::format("{}{} is '{}'", left_out.empty() ? "" : ", ", name, found->second);
      if (!left_out.empty()) lose(kCountersOf, fmt::format("left out what is no number: {}", left_out));
      return;
    }
    constexpr const char* kStill =
        "time, roofline and what the compiler says still hold; --emulate counts on the emulator";
    if (!options_.is_here)
      return lose(kCountersOf, fmt::format("the GPU is not here, and --counters gives none; {}", kStill));
    const std::string ncu = find_ncu(options_.ncu);
    if (ncu.empty())
      return lose(kCountersOf,
                  fmt::format("{} is not there; install Nsight Compute (ncu), or give its path with --ncu; {}",
                              options_.ncu.empty() ? "ncu" : options_.ncu, kStill));
    options_.progress("hardware counters by " + ncu);
    NsightOptions nsight{.ncu = ncu, .metrics = profile_metrics(), .stop = options_.stop};
    nsight.metrics.insert(nsight.metrics.end(), options_.metrics.begin(), options_.metrics.end());
    const ScratchFolder folder;
    const auto request = folder.write("request.json", nlohmann::json(request_of(problem_)).dump());
    const std::string program = options_.executable.empty() ? "/proc/self/exe" : options_.executable;
    const CollectedCounters collected =
        collect_counters(nsight, {std::filesystem::canonical(program).string(), "launch-candidate", "--device",
                                  options_.device.id, "--request", request.string()});
    facts.counters = collected.counters;
    if (!collected.why_none.empty()) return lose(kCountersOf, fmt::format("{}; {}", collected.why_none, kStill));
    if (!collected.unknown.empty())
      lose(kCountersOf,
           fmt::format("this Nsight Compute does not know {} of {} metrics ({}); the others hold",
                       collected.unknown.size(), nsight.metrics.size(), fmt::join(collected.unknown, ", ")));
    if (!collected.others.empty())
      lose(kCountersOf, fmt::format("they are of the kernel {}; {} of the same program {} left out", collected.kernel,
                                    fmt::join(collected.others, ", "), collected.others.size() == 1 ? "is" : "are"));
  }

  const PlacedProblem& problem_;
  const std::string& text_;
  const GatherOptions& options_;
  PatchScope patches_;
  Gathered result_;
};

}  // namespace

Gathered gather_facts(const PlacedProblem& problem, const std::string& candidate, const GatherOptions& options) {
  return Gatherer(problem, candidate, options).gather();
}

PlacedProblem counted_problem(const PlacedProblem& problem, const std::string& candidate, const DeviceLimits& limits) {
  DeviceLimits emulated = limits;
  emulated.emulated = true;
  const auto refuses = [&](const PlacedProblem& smaller) {
    try {
      parse_candidate(candidate, smaller, emulated);
      return false;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kBadInput) throw;
      return true;
    }
  };
  PlacedProblem counted = problem;
  for (const std::int64_t rows : kCountedRows)
    if (counted.flops() > kCountedFlops || refuses(counted)) counted = shrunk_for_emulator(counted, rows);
  return counted;
}

DeviceLimits limits_of_emulated(const DeviceLimits& emulator) {
  return limits_of_arch(fmt::format("sm_{}", emulator.arch));
}

void launch_for_counters(Device& device, const EvaluateRequest& request, int launches) {
  const PatchScope patches(request.patches);
  const DeviceLimits& limits = device.info().limits;
  const Candidate candidate = parse_candidate(request.candidate, request.problem, limits);
  const LoadedCandidate loaded(device, candidate, request.problem,
                               compile_candidate(candidate, request.problem, limits, request.use_cache));
  Operands operands(device, request.problem);
  operands.upload(make_inputs(request.problem, Pattern::kNormal, timing_seed(request.seed)));
  const Launch launch = loaded.bind(operands.args());
  for (int i = 0; i < launches; ++i) launch();
  device.synchronize();
}

}  // namespace flashcore
