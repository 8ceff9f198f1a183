#include "lab/record/freshness.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "core/environment_error.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/hash.h"
#include "core/problem_row.h"
#include "device/compiler.h"
#include "kernels/family.h"
#include "kernels/source_hash.h"

namespace flashcore {
namespace {

using nlohmann::json;

std::optional<std::string> why_chosen_otherwise(const json& row, const std::string& candidate,
                                                const PlacedProblem& problem, const DeviceInfo& device) {
  if (parse_word<ChosenBy>(row.value("chosen_by", to_string(ChosenBy::kCaller))) != ChosenBy::kDispatch)
    return std::nullopt;
  try {
    const std::string now = dispatch_as_built(problem, device).candidate.print();
    if (now == parse_candidate(candidate, problem, device.limits).print()) return std::nullopt;
    return fmt::format("dispatch now chooses {}, not {}", now, candidate);
  } catch (const Error& e) {
    return fmt::format("{} is not what dispatch would choose now: {}", candidate, e.what());
  }
}

// The machine code of a candidate by the compiler that is here.
struct CompiledCode {
  std::string hash, compiler;
  std::string lacking;  // why there is none: the machine's doing
  std::string error;    // why there is none: the source's
};

CompiledCode compile_code(const Candidate& candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  try {
    const Artifact artifact = compile_candidate(candidate, problem, limits);
    return {artifact.code_hash, artifact.compiler, "", ""};
  } catch (const CompileError& e) {
    return {"", "", "", e.what()};
  } catch (const std::exception& e) {
    if (!is_environment_error(e)) throw;
    return {"", "", environment_message(e), ""};
  }
}

// Rows of one kernel on many problems ask once; the disk cache would read it again for each.
const CompiledCode& code_of_candidate(const Candidate& candidate, const PlacedProblem& problem,
                                      const DeviceLimits& limits) {
  struct Entry {
    std::once_flag once;
    CompiledCode code;
  };
  static std::map<std::string, Entry> known;
  static std::mutex mutex;
  const Family& family = *candidate.family;
  const KernelSource source = family.source(candidate.config, problem, limits);
  Hasher key;
  key.add(source_hash(candidate, problem, limits)).add(family.name());
  if (!family.source_overlay()) {  // the text is that of the program
    key = Hasher();
    key.add(source.file).add(source.name_expression).add(family.compile_arch(limits));
    key.add(fmt::format("{} {}", source.dynamic_shared_bytes, source.threads_per_block));
    for (const std::string& option : source.options) key.add(option);
    key.add(source.extras());
  }
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex);
    entry = &known[key.hex()];
  }
  std::call_once(entry->once, [&] { entry->code = compile_code(candidate, problem, limits); });
  return entry->code;
}

// What a row or a trial says of what it was measured on; empty: nothing.
struct Provenance {
  std::string source_hash, launch_hash, code_hash, compiler;
};

std::optional<Candidate> find_candidate(std::string_view text, const PlacedProblem& problem,
                                        const DeviceLimits& limits) {
  try {
    return parse_candidate(text, problem, limits);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kBadInput) throw;
    return std::nullopt;
  }
}

bool is_judged_by_code(const Candidate& candidate, const DeviceLimits& limits) {
  return candidate.family->kind() != DeviceKind::kCpu && !limits.emulated;
}

Freshness judge(const Provenance& then, std::string_view text, const PlacedProblem& problem,
                const DeviceLimits& limits) {
  using State = Freshness::State;
  if (then.source_hash == source_hash_of(text, problem, limits)) return {};
  const std::optional<Candidate> candidate = find_candidate(text, problem, limits);
  const std::string family(text.substr(0, text.find(':')));
  if (!candidate || !is_judged_by_code(*candidate, limits) || then.launch_hash.empty() || then.code_hash.empty())
    return {State::kStale, fmt::format("what {} is compiled from, or how it is launched, has changed", family)};
  if (then.launch_hash != launch_hash(*candidate, problem, limits))
    return {State::kStale, fmt::format("how {} is launched has changed", family)};
  const CompiledCode& now = code_of_candidate(*candidate, problem, limits);
  if (!now.error.empty()) return {State::kStale, fmt::format("{} does not compile any more: {}", family, now.error)};
  if (!now.lacking.empty())
    return {State::kUnknown,
            fmt::format("what {} is compiled from has changed, and whether its code has is not known: {}", family,
                        now.lacking)};
  if (now.hash == then.code_hash)
    return {State::kSameCode, fmt::format("what {} is compiled from has changed, and its code has not", family)};
  if (now.compiler == then.compiler)
    return {State::kStale, fmt::format("the code that {} compiles to has changed", family)};
  return {
      State::kUnknown,
      fmt::format("what {} is compiled from has changed, and whether its code has is not known: {} compiled it, and "
                  "here is {}",
                  family, then.compiler.empty() ? "a compiler that was not recorded" : excerpt(then.compiler),
                  now.compiler)};
}

std::string text_of(const json& row, const char* key) {
  const json value = row.value(key, json());
  return value.is_string() ? value.get<std::string>() : "";
}

Provenance provenance_of(const json& row) {
  return {row.at("source_hash").get<std::string>(), text_of(row, "launch_hash"), text_of(row, "code_hash"),
          text_of(row, "compiler")};
}

}  // namespace

std::string candidate_of_row(const json& row) {
  std::string text = row.at("family").get<std::string>();
  const json config = row.value("config", json::object());
  if (config.is_string())
    return config.get_ref<const std::string&>().empty() ? text : text + ":" + config.get<std::string>();
  char separator = ':';
  for (const auto& [name, value] : config.items()) {
    if (!value.is_number_integer()) throw_bad_input("config {} is no whole number", excerpt(name));
    text += fmt::format("{}{}={}", separator, name, value.dump());
    separator = ',';
  }
  return text;
}

std::string source_hash_of(std::string_view text, const PlacedProblem& problem, const DeviceLimits& limits) {
  const std::optional<Candidate> candidate = find_candidate(text, problem, limits);
  return candidate ? source_hash(*candidate, problem, limits) : source_hash();
}

std::string launch_hash_of(std::string_view text, const PlacedProblem& problem, const DeviceLimits& limits) {
  const std::optional<Candidate> candidate = find_candidate(text, problem, limits);
  return candidate ? launch_hash(*candidate, problem, limits) : "";
}

std::pair<std::string, std::string> hashes_of_tried(std::string_view text, const PlacedProblem& problem,
                                                    const DeviceLimits& limits) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {source_hash_of(text, problem, limits), ""};
  try {
    const Family& family = family_by_name(text.substr(0, colon));
    // All fields are in the text: there may be no default where a family refuses the problem.
    const ConfigValues config = family.space().parse(text.substr(colon + 1), family.space().at(0), family.name());
    const Candidate candidate{&family, config};
    return {source_hash(candidate, problem, limits), launch_hash(candidate, problem, limits)};
  } catch (const Error&) {  // fields of another day, or a problem of which it has no program at all
    return {source_hash_of(text, problem, limits), launch_hash_of(text, problem, limits)};
  }
}

bool is_current(const Trial& trial) {
  if (trial.phase == Phase::kHoldout || trial.phase == Phase::kBench) return freshness_of(trial).is_fresh();
  return trial.source_hash == source_hash_of(trial.candidate(), trial.problem, trial.device.limits);
}

Freshness freshness_of(const Trial& trial) {
  const Provenance then{trial.source_hash, trial.launch_hash, trial.artifact ? trial.artifact->code_hash : "",
                        trial.artifact ? trial.artifact->compiler : ""};
  return judge(then, trial.candidate(), trial.problem, trial.device.limits);
}

Freshness freshness_of_row(const json& row) {
  const Provenance then = provenance_of(row);
  if (!row.contains("family") || row.at("family").is_null() || row.at("family") == "") {
    if (then.source_hash == source_hash()) return {};
    return {Freshness::State::kStale, "no family ran it on the source that it was measured on, which has changed"};
  }
  const json& device = row.at("device");
  if (!device.contains("limits"))
    return {Freshness::State::kStale,
            "it does not say what its device can hold (an older flashcore wrote it): measure it again"};
  const DeviceInfo info = device.get<DeviceInfo>();
  const auto problem = problem_of(row);
  const std::string candidate = candidate_of_row(row);
  if (auto reason = why_chosen_otherwise(row, candidate, problem, info)) return {Freshness::State::kStale, *reason};
  return judge(then, candidate, problem, info.limits);
}

bool record_provenance(nlohmann::ordered_json& row) {
  const json plain = row;
  if (!plain.contains("family") || !plain["family"].is_string() || text_of(plain, "code_hash").empty()) return false;
  if (!freshness_of_row(plain).is_fresh()) return false;
  const auto problem = problem_of(plain);
  const DeviceLimits limits = plain.at("device").get<DeviceInfo>().limits;
  const Candidate candidate = parse_candidate(candidate_of_row(plain), problem, limits);
  if (!is_judged_by_code(candidate, limits)) return false;
  row["source_hash"] = source_hash(candidate, problem, limits);
  row["launch_hash"] = launch_hash(candidate, problem, limits);
  if (text_of(plain, "compiler").empty()) {
    const CompiledCode& code = code_of_candidate(candidate, problem, limits);
    if (code.hash == plain["code_hash"]) row["compiler"] = code.compiler;
  }
  return json(row) != plain;
}

}  // namespace flashcore
