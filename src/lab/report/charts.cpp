#include "lab/report/charts.h"

#include <algorithm>
#include <cmath>

#include "core/visible_text.h"

namespace flashcore::report {
namespace {

using nlohmann::json;

json finite(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json samples_of(const char* role, const Trial& trial) {
  const std::vector<Sample>& samples = trial.timing->samples;
  const std::size_t step = std::max<std::size_t>(1, (samples.size() + kMaxSamples - 1) / kMaxSamples);
  json index = json::array(), times = json::array(), clocks = json::array();
  bool clock_known = false;
  for (std::size_t i = 0; i < samples.size(); i += step) {
    index.push_back(i);
    times.push_back(finite(samples[i].time_us));
    clocks.push_back(samples[i].clock_mhz > 0 ? finite(samples[i].clock_mhz) : json(nullptr));
    clock_known = clock_known || samples[i].clock_mhz > 0;
  }
  return {{"role", role},
          {"candidate", visible(trial.candidate())},
          {"index", index},
          {"time_us", times},
          {"clock_mhz", clock_known ? clocks : json::array()}};
}

json speedup_of(const ProblemRow& row) {
  if (row.default_won) {
    return {{"value", 1},
            {"low", 1},
            {"high", 1},
            {"verdict", visible(verdict_words(row))},
            {"against", "the default (it remains)"}};
  }
  if (!row.speedup) return nullptr;
  const bool over_default = row.baseline && row.speedup->against == row.baseline->candidate();
  return {{"value", finite(row.speedup->speedup)},
          {"low", finite(row.speedup->ci95_low)},
          {"high", finite(row.speedup->ci95_high)},
          {"verdict", visible(verdict_words(row))},
          {"against", over_default ? "the default" : visible(row.speedup->against)}};
}

json roofline_of(const ProblemRow& row) {
  if (!row.winner || intensity(row.problem) <= 0) return nullptr;
  const Timing& timing = *row.winner->timing;
  json point = {{"intensity", finite(intensity(row.problem))},
                {"winner", finite(tflops(row.problem, timing.p50_us))},
                {"default", nullptr},
                {"floor", nullptr}};
  if (row.baseline && !row.default_won) point["default"] = finite(tflops(row.problem, row.baseline->timing->p50_us));
  if (timing.floor_us > 0) point["floor"] = finite(tflops(row.problem, timing.floor_us));
  return point;
}

json chart_of(const ProblemRow& row) {
  json out = {{"label", visible(row.label)},  {"id", row.problem_id},         {"device", visible(row.device_key)},
              {"stale", row.stale},           {"funnel", counts(row.funnel)}, {"speedup", speedup_of(row)},
              {"roofline", roofline_of(row)}, {"samples", json::array()},     {"floor_us", nullptr}};
  if (!row.winner) return out;
  out["samples"].push_back(samples_of("winner", *row.winner));
  if (row.baseline && !row.default_won) out["samples"].push_back(samples_of("default", *row.baseline));
  if (row.winner->timing->floor_us > 0) out["floor_us"] = finite(row.winner->timing->floor_us);
  return out;
}

}  // namespace

json chart_data(const Model& model) {
  json out = {{"stages", kFunnelStages}, {"problems", json::array()}, {"ceilings", json::array()}};
  for (const ProblemRow& row : model.rows) out["problems"].push_back(chart_of(row));
  for (const DeviceSummary& device : model.devices) {
    if (!device.ceilings) continue;
    out["ceilings"].push_back({{"device", visible(device.info.name)},
                               {"matmul_tflops", finite(device.ceilings->matmul_tflops_16bit)},
                               {"fma_tflops", finite(device.ceilings->fma_tflops_fp32)},
                               {"read_gbps", finite(device.ceilings->read_gbps)},
                               {"cache_read_gbps", finite(device.ceilings->cache_read_gbps)}});
  }
  return out;
}

}  // namespace flashcore::report
