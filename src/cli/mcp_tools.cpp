#include "cli/mcp_tools.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "cli/mcp_schema.h"
#include "core/error.h"
#include "core/scratch_folder.h"
#include "core/suite.h"
#include "kernels/embedded.h"
#include "kernels/family.h"

namespace flashcore::cli::mcp {

namespace {

using nlohmann::json;

constexpr int kDefaultSeconds = 600, kMostSeconds = 3600;
constexpr std::size_t kSourceBytes = 64 << 10;
constexpr int kMaxPatchText = 1 << 20;

json text_schema(const std::string& description, int longest = 4096) {
  return {{"type", "string"}, {"description", description}, {"maxLength", longest}};
}
json whole_schema(const std::string& description, std::int64_t least, std::int64_t most) {
  return {{"type", "integer"}, {"description", description}, {"minimum", least}, {"maximum", most}};
}

const json& problem_schema() {
  static const json schema = text_schema("a problem's id as b1_h32_hk8_s4096_d128_bf16_causal, or its name in a suite");
  return schema;
}
const json& device_schema() {
  static const json schema =
      text_schema("cpu, cuda, cuda:N, emulator or emulator:sm_90; without it the best that is here", 64);
  return schema;
}
json timeout_schema() {
  return whole_schema("the call is ended after so many seconds (default: 600)", 1, kMostSeconds);
}

json object_schema(json properties, std::vector<std::string> required) {
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}

// Of every tool that takes one.
json config_schema() {
  return {{"type", "object"},
          {"description",
           "tile parameters by name, each an integer, as {\"block_m\": 64}; what is left out is the default. `source` "
           "with the family lists them. Needs family"},
          {"additionalProperties", whole_schema("", -2147483648LL, 2147483647)}};
}

json candidate_properties() {
  return {{"problem", problem_schema()},
          {"family", text_schema("the kernel family; without it what dispatch picks, or all that apply", 200)},
          {"config", config_schema()},
          {"device", device_schema()},
          {"timeout_seconds", timeout_schema()}};
}

json submit_properties() {
  json properties = candidate_properties();
  properties["family"] = text_schema("the kernel family that the config or the patch is of", 200);
  properties["name"] = text_schema("what the patch is called: letters, digits and _", 100);
  properties["files"] = {{"type", "object"},
                         {"description", "whole sources by path: kernel.cuh is the family's; others as tile/mask.cuh"},
                         {"additionalProperties", text_schema("", kMaxPatchText)}};
  properties["replace"] = {{"type", "array"},
                           {"maxItems", 1000},
                           {"description", "pieces of source to exchange; each `from` occurs exactly once in its file"},
                           {"items", object_schema({{"file", text_schema("as sm80_fwd/kernel.cuh", 400)},
                                                    {"from", text_schema("the text there", kMaxPatchText)},
                                                    {"to", text_schema("the text in its place", kMaxPatchText)}},
                                                   {"file", "from", "to"})}};
  properties["extend"] = {
      {"type", "object"},
      {"description", "further values that a config field may have"},
      {"additionalProperties", {{"type", "array"}, {"maxItems", 64}, {"items", whole_schema("", 0, 2147483647)}}}};
  // Of any type, as in a patch.
  properties["comment"] = {{"description", "what the patch is for; nothing reads it"}};
  properties["compile_only"] = {
      {"type", "boolean"}, {"description", "stop after the compiler and the resource gate: seconds, and no device"}};
  properties["arch"] = text_schema("with compile_only: the architecture, as sm_90", 32);
  return properties;
}

json tool(const char* name, const char* title, const char* description, json schema) {
  return {{"name", name},
          {"title", title},
          {"description", description},
          {"inputSchema", std::move(schema)},
          {"annotations", {{"readOnlyHint", true}, {"openWorldHint", false}}}};
}

json make_tools() {
  json check = candidate_properties();
  check["suite"] = text_schema("a suite that ships, in place of one problem", 60);
  check["patterns"] = {{"type", "array"},
                       {"maxItems", 32},
                       {"description", "data to try: normal, peaked, ...; without it all"},
                       {"items", text_schema("", 60)}};
  check["seed"] = whole_schema("of the data", 0, 9007199254740991);
  return json::array(
      {tool("problems", "Problems",
            "The suites that ship; with `suite` its problems; with `problem` what an id says and costs. Returns "
            "`suites`; or `problems` as {name, problem}; or `result` with the fields of the problem (sequence lengths "
            "in rows, head dims in elements), its FLOPs and its bytes. Tensors are q [batch, heads_q, seqlen_q, "
            "head_dim], k and v [batch, heads_kv, seqlen_kv, head_dim]. Error: a suite that does not ship, an id that "
            "cannot be read.",
            object_schema({{"suite", text_schema("a suite that ships", 60)}, {"problem", problem_schema()}}, {})),
       tool("source", "Kernel source",
            "The families; with `family` its files, what they include and its config's fields with their values; with "
            "`file` its text, as a patch changes it, at most 64 KiB from `offset` (bytes), and `next_offset` while "
            "there is more. Error: no such family or file; a CPU family, which has no device source.",
            object_schema({{"family", text_schema("a kernel family, as sm80_fwd", 200)},
                           {"file", text_schema("as sm80_fwd/kernel.cuh or tile/softmax.cuh", 400)},
                           {"offset", whole_schema("of the first byte", 0, 1 << 30)}},
                          {})),
       tool("explain", "Explain dispatch",
            "Which candidate dispatch picks for a problem and why. `result.results` has family, config, reason, "
            "expected_us and floor_us (microseconds of one launch; null: not known), and what else it weighed. "
            "Nothing is launched. Error: a problem that no family computes, an architecture that is not known.",
            object_schema({{"problem", problem_schema()},
                           {"device", device_schema()},
                           {"arch", text_schema("as on a GPU that need not be here: sm_90", 32)},
                           {"key", text_schema("with arch: whose tuned table, as h200", 60)},
                           {"timeout_seconds", timeout_schema()}},
                          {"problem"})),
       tool("check", "Check correctness",
            "Is a family right on a problem or a suite, by the full correctness gate: against fp64 on the same inputs, "
            "within a derived bound. `verdict` is passed, failed or not_judged; `result` counts passed, failed and "
            "skipped, and has each failure's relative errors (no unit) and message. Error: neither problem nor suite, "
            "a config that is not valid, a device that is not here.",
            object_schema(check, {})),
       tool("profile", "Profile",
            "Why a candidate is slow: `result.results` has its bottlenecks, ranked, each a sentence with evidence; "
            "indicators with value, unit, target and met; roofs and times in microseconds; and `lost`, what could not "
            "be asked. On an emulated GPU counts take the place of times. Error: a problem that the family does not "
            "compute, a device that is not here.",
            object_schema(candidate_properties(), {"problem"})),
       tool("invert", "Invert",
            "What would help a candidate most: variants with one part left out or spoilt on purpose, raced against it. "
            "`result.results[].ranking` has for each the ratio of times (variant over plain; below 1 is faster) with "
            "its 95% interval, and a sentence; on an emulated GPU a counter before and after. Takes some 20 s. Error: "
            "as profile.",
            object_schema(candidate_properties(), {"problem"})),
       tool("submit", "Submit a kernel",
            "A config, or a patch of a family's source, through every gate: source, compiler, resources, emulator, "
            "correctness, and on a real device performance against what dispatch picks. `result.results` has the "
            "verdict and each gate's status and reason; times in microseconds, speed-ups as ratios with a 95% interval "
            "(above 1 is faster). A gate that fails is a verdict, not an error. Error: a patch of another family's "
            "files, a `from` that does not occur exactly once, a config that is not valid, no compiler or sandbox.",
            object_schema(submit_properties(), {"problem", "family"}))});
}

std::string text_at(const json& arguments, const char* key) {
  return arguments.contains(key) ? arguments[key].get<std::string>() : std::string();
}

// "--problem=VALUE": a value that begins with '-' is no flag.
void add_flags(std::vector<std::string>& words, const json& arguments, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (arguments.contains(key))
      words.push_back(fmt::format(
          "--{}={}", key, arguments[key].is_string() ? arguments[key].get<std::string>() : arguments[key].dump()));
}

// {"block_m": 64, "num_stages": 3} as the command line takes it.
std::string config_text(const json& config) {
  std::vector<std::string> fields;
  for (const auto& [name, value] : config.items()) fields.push_back(fmt::format("{}={}", name, value.dump()));
  return fmt::format("{}", fmt::join(fields, ","));
}

// Each verb looks names up in a suite of its own; here a name of any suite is taken, the canonical one first.
std::string problem_named(const std::string& text) {
  std::vector<std::string> suites = shipped_suites();
  suites.insert(suites.begin(), "canonical");
  for (const std::string& name : suites)
    for (const NamedProblem& named : load_suite(name).problems)
      if (named.name == text) return named.problem.portable();
  return text;
}

// A path would have its file's text read and quoted.
void require_shipped(const std::string& suite) {
  const std::vector<std::string> shipped = shipped_suites();
  if (std::find(shipped.begin(), shipped.end(), suite) == shipped.end())
    throw_bad_input("'{}' is no suite that ships; those are {}", suite, fmt::join(shipped, ", "));
}

// "flops: 1048576.0", of each value that is there, those of the fields after those of the whole.
std::string problem_lines(const json& result) {
  std::string text;
  const auto add = [&](const json& values) {
    for (const auto& [name, value] : values.items())
      if (value.is_primitive() && !value.is_null())
        text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", name,
                            value.is_string() ? value.get<std::string>() : value.dump());
  };
  for (const json& problem : result.value("results", json::array())) {
    add(problem);
    add(problem.value("fields", json::object()));
  }
  return text;
}

ToolAnswer list_problems(const json& arguments, const CallControl& control) {
  if (arguments.contains("problem")) {
    if (arguments.contains("suite")) throw_bad_input("give suite or problem, not both");
    // After "--": an id is no flag.
    ToolAnswer told = run_verb({"problem", "--", arguments["problem"].get<std::string>()}, kDefaultSeconds, control);
    if (!told.is_error && told.structured["result"].is_object()) told.text += problem_lines(told.structured["result"]);
    return told;
  }
  ToolAnswer answer;
  if (!arguments.contains("suite")) {
    answer.structured["suites"] = shipped_suites();
    answer.text = fmt::format("suites: {}", fmt::join(shipped_suites(), ", "));
    return answer;
  }
  require_shipped(text_at(arguments, "suite"));
  const Suite suite = load_suite(text_at(arguments, "suite"));
  json problems = json::array();
  for (const NamedProblem& named : suite.problems) {
    problems.push_back({{"name", named.name}, {"problem", named.problem.id()}});
    answer.text += fmt::format("{}{}: {}", answer.text.empty() ? "" : "\n", named.name, named.problem.id());
  }
  answer.structured = {{"suite", suite.name}, {"problems", problems}};
  return answer;
}

ToolAnswer show_source(const json& arguments) {
  ToolAnswer answer;
  const std::string file = text_at(arguments, "file"), family = text_at(arguments, "family");
  if (!file.empty()) {
    const auto found = device_sources().find(file);
    if (found == device_sources().end())
      throw_bad_input(
          "'{}' is no device source; the tool `source` with a family lists those of the family, as tile/softmax.cuh",
          file);
    const std::string& text = found->second;
    const auto offset = std::min<std::size_t>(arguments.value("offset", 0), text.size());
    std::size_t end = std::min(offset + kSourceBytes, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // between characters
    answer.text = text.substr(offset, end - offset);
    answer.structured = {{"file", file}, {"bytes", text.size()}, {"offset", offset}, {"text", answer.text}};
    if (end < text.size()) answer.structured["next_offset"] = end;
    return answer;
  }
  json list = json::array();
  if (family.empty()) {
    for (const Family* one : all_families()) {
      list.push_back({{"name", one->name()},
                      {"description", one->description()},
                      {"patchable", one->kind() == DeviceKind::kCuda}});
      answer.text += fmt::format("{}{}: {}", answer.text.empty() ? "" : "\n", one->name(), one->description());
    }
    answer.structured = {{"families", list}};
    return answer;
  }
  const Family& one = family_by_name(family);
  if (one.kind() != DeviceKind::kCuda)
    throw_bad_input("{} is built into the program and has no device source; name a GPU family", family);
  json fields = json::array(), shared = json::array();
  for (const Field& field : one.space().fields()) fields.push_back({{"name", field.name}, {"values", field.values}});
  for (const auto& [path, text] : device_sources())
    if (path.starts_with(family + "/")) list.push_back({{"file", path}, {"bytes", text.size()}});
  for (const std::string& path : include_closure(family + "/kernel.cuh", device_sources()))
    if (!path.starts_with(family + "/")) shared.push_back(path);
  answer.structured = {{"family", family}, {"files", list}, {"includes", shared}, {"fields", fields}};
  answer.text = fmt::format("{}: {} files of its own, {} included ones that other families may share", family,
                            list.size(), shared.size());
  return answer;
}

std::string gate_lines(const json& result) {
  std::string text;
  for (const json& one : result.value("results", json::array())) {
    text += fmt::format("\n{}: {}", one.value("candidate", ""), one.value("verdict", ""));
    // A gate that stopped it says the same.
    if (one.value("gates", json::array()).empty() && !one.value("message", "").empty())
      text += ": " + one.value("message", "");
    for (const json& gate : one.value("gates", json::array()))
      text += fmt::format("\n  {}: {}{}{}", gate.value("gate", ""), gate.value("status", ""),
                          gate.value("reason", "").empty() ? "" : ": ", gate.value("reason", ""));
    for (const json& note : one.value("notes", json::array())) text += "\n  note: " + note.get<std::string>();
  }
  return text;
}

ToolAnswer submit(const json& arguments, double seconds, const CallControl& control) {
  json answer = json::object();
  for (const char* key : {"family", "config", "name", "files", "replace", "extend"})
    if (arguments.contains(key)) answer[key] = arguments[key];
  const ScratchFolder folder;
  const std::string file = folder.write("submission.json", answer.dump()).string();
  std::vector<std::string> words = {"submit", file};
  add_flags(words, arguments, {"problem", "device", "arch"});
  if (arguments.value("compile_only", false)) words.emplace_back("--compile-only");
  ToolAnswer told = run_verb(words, seconds, control);
  if (told.structured.value("result", json()).is_object())
    told.text += in_arguments(gate_lines(told.structured["result"]));
  return told;
}

ToolAnswer carry_out(const std::string& name, json arguments, const CallControl& control) {
  if (arguments.contains("problem") && !arguments.contains("suite"))
    arguments["problem"] = problem_named(text_at(arguments, "problem"));
  const double seconds = arguments.value("timeout_seconds", kDefaultSeconds);
  if (name == "problems") return list_problems(arguments, control);
  if (name == "source") return show_source(arguments);
  if (name == "submit") return submit(arguments, seconds, control);
  std::vector<std::string> words = {name};
  if (arguments.contains("config")) {
    if (!arguments.contains("family")) throw_bad_input("config was given without family: it is of one family; name it");
    if (arguments["config"].empty()) arguments.erase("config");
    else arguments["config"] = config_text(arguments["config"]);
  }
  add_flags(words, arguments, {"problem", "suite", "family", "config", "device", "arch", "key", "seed"});
  if (name == "check") {
    if (arguments.contains("suite")) require_shipped(text_at(arguments, "suite"));
    if (!arguments.contains("suite") && !arguments.contains("problem")) throw_bad_input("give a problem or a suite");
    for (const json& pattern : arguments.value("patterns", json::array()))
      words.push_back("--patterns=" + pattern.get<std::string>());
  }
  return run_verb(words, seconds, control);
}

}  // namespace

const json& tool_list() {
  static const json tools = make_tools();
  return tools;
}

bool is_tool(const std::string& name) {
  return std::any_of(tool_list().begin(), tool_list().end(), [&](const json& t) { return t["name"] == name; });
}

ToolAnswer call_tool(const std::string& name, const json& arguments, const CallControl& control) {
  const auto described =
      std::find_if(tool_list().begin(), tool_list().end(), [&](const json& t) { return t["name"] == name; });
  if (const auto why = why_not_fitting(arguments, (*described)["inputSchema"], "arguments"))
    return {true, *why, json::object()};
  try {
    return carry_out(name, arguments, control);
  } catch (const std::exception& e) {
    return {true, e.what(), json::object()};
  }
}

}  // namespace flashcore::cli::mcp
