#include "lab/record/trial.h"

#include <chrono>
#include <ctime>

#include "core/error.h"
#include "core/json_number.h"
#include "core/json_text.h"
#include "core/problem_row.h"
#include "lab/record/json_io.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr double kMostTrialSeconds = 1e7;  // four months

json to_object(const OutputError& e) {
  return {{"rel", e.rel},
          {"worst_row_rel", e.worst_row_rel},
          {"row_share", e.row_share},
          {"max_abs", e.max_abs},
          {"scale", e.scale},
          {"scale_share", e.scale_share},
          {"bias", e.bias},
          {"lse_max_abs", e.lse_max_abs},
          {"lse_bias", e.lse_bias},
          {"lse_rms", e.lse_rms},
          {"lse_share", e.lse_share},
          {"nonfinite", e.nonfinite},
          {"first_bad_row", e.first_bad_row}};
}

OutputError error_from(const json& j) {
  OutputError e;
  j.at("rel").get_to(e.rel);
  j.at("worst_row_rel").get_to(e.worst_row_rel);
  j.at("max_abs").get_to(e.max_abs);
  j.at("bias").get_to(e.bias);
  j.at("lse_max_abs").get_to(e.lse_max_abs);
  // Trials that were stored before these were judged lack them.
  e.row_share = j.value("row_share", 0.0);
  e.scale = j.value("scale", 0.0);
  e.scale_share = j.value("scale_share", 0.0);
  e.lse_bias = j.value("lse_bias", 0.0);
  e.lse_rms = j.value("lse_rms", 0.0);
  e.lse_share = j.value("lse_share", 0.0);
  get_whole(j, "nonfinite", e.nonfinite);
  get_whole(j, "first_bad_row", e.first_bad_row);
  return e;
}

ErrorBound bound_from(const json& j) {
  ErrorBound b{j.at("rel").get<double>(), j.at("worst_row_rel").get<double>(), j.at("lse_max_abs").get<double>()};
  b.row_share = j.value("row_share", b.row_share);
  b.scale = j.value("scale", b.scale);
  b.scale_share = j.value("scale_share", b.scale_share);
  b.bias = j.value("bias", b.bias);
  b.lse_bias = j.value("lse_bias", b.lse_bias);
  b.lse_rms = j.value("lse_rms", b.lse_rms);
  b.lse_share = j.value("lse_share", b.lse_share);
  return b;
}

template <class T>
std::optional<T> optional_section(const json& j, const char* key) {
  const auto found = j.find(key);
  if (found == j.end() || found->is_null()) return std::nullopt;
  return decode_nonfinite(*found).get<T>();
}

Trial trial_from(const json& j) {
  Trial t;
  get_whole(j, "id", t.id);
  j.at("run").get_to(t.run);
  j.at("created_at").get_to(t.created_at);
  j.at("phase").get_to(t.phase);
  j.at("suite").get_to(t.suite);
  j.at("problem_name").get_to(t.problem_name);
  t.problem = problem_of(j);
  j.at("device").get_to(t.device);
  j.at("family").get_to(t.family);
  j.at("config").get_to(t.config);
  j.at("source_hash").get_to(t.source_hash);
  t.launch_hash = j.value("launch_hash", "");
  if (j.contains("chosen_by")) j.at("chosen_by").get_to(t.chosen_by);
  get_whole(j, "seed", t.seed);
  t.artifact = optional_section<Artifact>(j, "artifact");
  j.at("gates").get_to(t.gates);
  if (const auto e = j.find("error"); e != j.end() && !e->is_null()) t.error = error_from(decode_nonfinite(*e));
  if (const auto b = j.find("bound"); b != j.end() && !b->is_null()) t.bound = bound_from(decode_nonfinite(*b));
  t.timing = optional_section<Timing>(j, "timing");
  if (const auto c = j.find("comparison"); c != j.end() && !c->is_null()) t.comparison = c->get<Comparison>();
  // Before a comparison said it, the gate's evidence did.
  const Verdict* raced = find_gate(t, Gate::kPerformance);
  if (t.comparison && raced && !j["comparison"].contains("processes") && raced->evidence.is_object() &&
      raced->evidence.contains("processes"))
    get_whole(raced->evidence, "processes", t.comparison->processes);
  t.environment = decode_nonfinite(j.at("environment")).get<EnvironmentReading>();
  // Trials of older programs have none.
  if (const auto m = j.find("machine"); m != j.end()) t.machine = m->get<MachineReading>();
  t.seconds = optional_section<TrialSeconds>(j, "seconds");
  const auto sane = [](double seconds) { return seconds >= 0 && seconds < kMostTrialSeconds; };
  if (t.seconds && (!sane(t.seconds->device) || !sane(t.seconds->host)))
    throw_bad_input("a trial's seconds are {} of the device and {} of the host; a trial takes 0 to {:.0f}",
                    t.seconds->device, t.seconds->host, kMostTrialSeconds);
  j.at("ended").get_to(t.ended);
  j.at("message").get_to(t.message);
  return t;
}

}  // namespace

std::string now_iso8601() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, millis);
}

std::optional<double> parse_iso8601(const std::string& when) {
  std::tm utc{};
  if (strptime(when.c_str(), "%Y-%m-%dT%H:%M:%S", &utc) == nullptr) return std::nullopt;
  return static_cast<double>(timegm(&utc));
}

const Verdict* find_gate(const Trial& trial, Gate gate) {
  for (const auto& verdict : trial.gates)
    if (verdict.gate == gate) return &verdict;
  return nullptr;
}

bool passed_gate(const Trial& trial, Gate gate) {
  const Verdict* verdict = find_gate(trial, gate);
  return verdict && verdict->status == GateStatus::kPassed;
}

std::optional<GateLevel> gate_level(const Trial& trial) {
  const Verdict* verdict = find_gate(trial, Gate::kCorrectness);
  if (!verdict || verdict->status != GateStatus::kPassed || !verdict->evidence.is_object()) return std::nullopt;
  const auto level = verdict->evidence.find("level");
  if (level == verdict->evidence.end() || !level->is_string()) return std::nullopt;
  return parse_word<GateLevel>(level->get<std::string>());
}

bool is_ranked(const Trial& trial) {
  return trial.timing && passed_gate(trial, Gate::kCorrectness) && !is_wrong_on_purpose(trial.family);
}

void to_json(json& j, const DeviceInfo& d) {
  const DeviceLimits& l = d.limits;
  j = {{"key", d.key},
       {"name", d.name},
       {"id", d.id},
       {"memory_bytes", d.memory_bytes},
       {"driver", d.driver},
       {"limits",
        {{"kind", l.kind == DeviceKind::kCuda ? "cuda" : "cpu"},
         {"arch", l.arch},
         {"multiprocessors", l.multiprocessors},
         {"shared_bytes_per_block", l.shared_bytes_per_block},
         {"shared_bytes_per_multiprocessor", l.shared_bytes_per_multiprocessor},
         {"registers_per_multiprocessor", l.registers_per_multiprocessor},
         {"max_threads_per_block", l.max_threads_per_block},
         {"max_threads_per_multiprocessor", l.max_threads_per_multiprocessor},
         {"l2_bytes", l.l2_bytes},
         {"clock_mhz", l.clock_mhz},
         {"dram_peak_gbps", l.dram_peak_gbps},
         {"emulated", l.emulated},
         {"amx", l.amx},
         {"avx512_bf16", l.avx512_bf16}}}};
}

void from_json(const json& j, DeviceInfo& d) {
  j.at("key").get_to(d.key);
  j.at("name").get_to(d.name);
  j.at("id").get_to(d.id);
  get_whole(j, "memory_bytes", d.memory_bytes);
  j.at("driver").get_to(d.driver);
  const json& l = j.at("limits");
  d.limits.kind = l.at("kind").get<std::string>() == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  get_whole(l, "arch", d.limits.arch);
  get_whole(l, "multiprocessors", d.limits.multiprocessors);
  get_whole(l, "shared_bytes_per_block", d.limits.shared_bytes_per_block);
  get_whole(l, "shared_bytes_per_multiprocessor", d.limits.shared_bytes_per_multiprocessor);
  get_whole(l, "registers_per_multiprocessor", d.limits.registers_per_multiprocessor);
  get_whole(l, "max_threads_per_block", d.limits.max_threads_per_block);
  get_whole(l, "max_threads_per_multiprocessor", d.limits.max_threads_per_multiprocessor);
  get_whole(l, "l2_bytes", d.limits.l2_bytes);
  // Older trials have neither; of a GPU that is known they are what they were.
  const GpuModel* model = find_gpu_model(d.key);
  d.limits.clock_mhz = l.value("clock_mhz", model ? model->clock_mhz : 0.0);
  d.limits.dram_peak_gbps = l.value("dram_peak_gbps", model ? model->dram_peak_gbps : 0.0);
  d.limits.emulated = l.value("emulated", false);
  // Rows from before it was recorded: a CPU's rate of 16-bit products is measured on its tiles, and 0 without them.
  const bool has_tiles = d.limits.kind == DeviceKind::kCpu && j.contains("ceilings") &&
                         j["ceilings"].value("matmul_tflops_16bit", 0.0) > 0;
  d.limits.amx = l.value("amx", has_tiles);
  d.limits.avx512_bf16 = l.value("avx512_bf16", false);
}

void to_json(json& j, const Verdict& v) {
  j = {{"gate", v.gate}, {"status", v.status}, {"reason", v.reason}, {"evidence", encode_nonfinite(v.evidence)}};
}

void from_json(const json& j, Verdict& v) {
  j.at("gate").get_to(v.gate);
  j.at("status").get_to(v.status);
  j.at("reason").get_to(v.reason);
  v.evidence = decode_nonfinite(j.at("evidence"));
}

void to_json(json& j, const Timing& t) {
  json times = json::array(), clocks = json::array(), powers = json::array(), throttles = json::array();
  for (const Sample& s : t.samples) {
    times.push_back(s.time_us);
    clocks.push_back(s.clock_mhz);
    powers.push_back(s.power_w);
    throttles.push_back(s.throttle);
  }
  j = encode_nonfinite({{"p10_us", t.p10_us},
                        {"p50_us", t.p50_us},
                        {"p90_us", t.p90_us},
                        {"samples_us", times},
                        {"clocks_mhz", clocks},
                        {"powers_w", powers},
                        {"throttles", throttles},
                        {"launches_per_sample", t.launches_per_sample},
                        {"regime", to_string(t.regime)},
                        {"condition", to_string(t.condition)},
                        {"floor_us", t.floor_us},
                        {"kcycles", t.kcycles}});
}

void from_json(const json& encoded, Timing& t) {
  const json j = decode_nonfinite(encoded);
  j.at("p10_us").get_to(t.p10_us);
  j.at("p50_us").get_to(t.p50_us);
  j.at("p90_us").get_to(t.p90_us);
  const auto times = j.at("samples_us").get<std::vector<double>>();
  const auto clocks = j.at("clocks_mhz").get<std::vector<double>>();
  if (times.size() != clocks.size())
    throw_bad_input("a timing has {} samples but {} clocks; it was cut short", times.size(), clocks.size());
  // Older stores have neither.
  auto powers = j.value("powers_w", std::vector<double>());
  auto throttles = j.value("throttles", std::vector<std::string>());
  powers.resize(times.size());
  throttles.resize(times.size());
  t.samples.clear();
  for (std::size_t i = 0; i < times.size(); ++i) t.samples.push_back({times[i], clocks[i], powers[i], throttles[i]});
  get_whole(j, "launches_per_sample", t.launches_per_sample);
  t.regime = parse_regime(j.at("regime").get<std::string>());
  t.condition = parse_condition(j.at("condition").get<std::string>());
  j.at("floor_us").get_to(t.floor_us);
  j.at("kcycles").get_to(t.kcycles);
}

void to_json(json& j, const Comparison& c) {
  j = encode_nonfinite({{"against", c.against},
                        {"speedup", c.speedup},
                        {"ci95", {c.ci95_low, c.ci95_high}},
                        {"verdict", c.verdict},
                        {"blocks", c.blocks},
                        {"margin", c.margin},
                        {"p_value", c.p_value},
                        {"detectable", c.detectable},
                        {"processes", c.processes}});
}

void from_json(const json& j, Comparison& c) {
  j.at("against").get_to(c.against);
  j.at("verdict").get_to(c.verdict);
  get_whole(j, "blocks", c.blocks);
  const auto number = [&](const char* key) { return decode_nonfinite(j.at(key)).get<double>(); };
  c.speedup = number("speedup");
  c.margin = number("margin");
  c.p_value = number("p_value");
  c.detectable = number("detectable");
  if (j.contains("processes")) get_whole(j, "processes", c.processes);
  const json interval = decode_nonfinite(j.at("ci95"));
  interval.at(0).get_to(c.ci95_low);
  interval.at(1).get_to(c.ci95_high);
}

void to_json(json& j, const Trial& t) {
  j = {{"id", t.id},
       {"run", t.run},
       {"created_at", t.created_at},
       {"phase", t.phase},
       {"suite", t.suite},
       {"problem_name", t.problem_name},
       {"device", t.device},
       {"family", t.family},
       {"config", t.config},
       {"chosen_by", t.chosen_by},
       {"source_hash", t.source_hash},
       {"launch_hash", t.launch_hash},
       {"seed", t.seed},
       {"gates", t.gates},
       {"environment", encode_nonfinite(json(t.environment))},
       {"machine", t.machine},
       {"ended", t.ended},
       {"message", t.message}};
  put_problem(j, t.problem);
  j["artifact"] = t.artifact ? encode_nonfinite(json(*t.artifact)) : json();
  j["error"] = t.error ? encode_nonfinite(to_object(*t.error)) : json();
  j["bound"] = t.bound ? encode_nonfinite({{"rel", t.bound->rel},
                                           {"worst_row_rel", t.bound->worst_row_rel},
                                           {"row_share", t.bound->row_share},
                                           {"lse_max_abs", t.bound->lse_max_abs},
                                           {"scale", t.bound->scale},
                                           {"scale_share", t.bound->scale_share},
                                           {"bias", t.bound->bias},
                                           {"lse_bias", t.bound->lse_bias},
                                           {"lse_rms", t.bound->lse_rms},
                                           {"lse_share", t.bound->lse_share}})
                       : json();
  j["timing"] = t.timing ? json(*t.timing) : json();
  j["comparison"] = t.comparison ? json(*t.comparison) : json();
  if (t.seconds) j["seconds"] = *t.seconds;
}

void from_json(const json& j, Trial& t) {
  try {
    t = trial_from(j);
  } catch (const json::exception& e) {
    throw_bad_input("a stored trial cannot be read: {}; it was written by another version of flashcore or is damaged",
                    e.what());
  }
}

Trial parse_trial(std::string_view text) { return parse_json(text, "the trial").get<Trial>(); }

}  // namespace flashcore
