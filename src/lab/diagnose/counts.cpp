#include "lab/diagnose/counts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace flashcore {
namespace {

using nlohmann::json;

CountedTraffic counted_traffic(const json& counters, const char* kind, const char* unit) {
  const json& of = counters.at(kind);
  CountedTraffic traffic;
  of.at("bytes").get_to(traffic.bytes);
  of.at("requests").get_to(traffic.requests);
  of.at(unit).get_to(traffic.units);
  of.at(std::string("least_") + unit).get_to(traffic.least_units);
  of.at("lanes").get_to(traffic.lanes);
  of.at("possible_lanes").get_to(traffic.possible_lanes);
  return traffic;
}

CountedTraffic sum_of(const CountedTraffic& a, const CountedTraffic& b) {
  return {a.bytes + b.bytes, a.requests + b.requests,
          a.units + b.units, a.least_units + b.least_units,
          a.lanes + b.lanes, a.possible_lanes + b.possible_lanes};
}

CountedLine counted_line(const json& site) {
  const char* unit = site.contains("sectors_per_request") ? "sectors" : "passes";
  return {site.at("where").get<std::string>(),
          site.at("caller").get<std::string>(),
          site.at("kind").get<std::string>(),
          site.at("requests").get<double>(),
          site.at(fmt::format("{}_per_request", unit)).get<double>(),
          site.at(fmt::format("least_{}_per_request", unit)).get<double>()};
}

EmulatorCounts counts_of_json(const json& c) {
  EmulatorCounts counts;
  c.at("ctas").get_to(counts.ctas);
  c.at("mma_flops").get_to(counts.mma_flops);
  c.at("mma_instructions").get_to(counts.mma_instructions);
  c.at("mma_with_copies_in_flight").get_to(counts.mma_under_copies);
  c.at("ex2").get_to(counts.ex2);
  c.at("async_copies").get_to(counts.async_copies);
  c.at("tma_bytes").get_to(counts.tma_bytes);
  c.at("tma_stored_bytes").get_to(counts.tma_stored_bytes);
  c.at("barrier_waits").get_to(counts.barrier_waits);
  c.at("copy_waits").get_to(counts.copy_waits);
  counts.global_load = counted_traffic(c, "global_load", "sectors");
  counts.global_store = counted_traffic(c, "global_store", "sectors");
  counts.shared_load = counted_traffic(c, "shared_load", "passes");
  counts.shared_store = counted_traffic(c, "shared_store", "passes");
  for (const json& site : c.at("sites")) counts.lines.push_back(counted_line(site));
  for (const json& wait : c.at("waits"))
    counts.waits.push_back({wait.at("where").get<std::string>(), wait.at("caller").get<std::string>(),
                            wait.at("kind").get<std::string>(), wait.at("threads").get<double>()});
  return counts;
}

// Dense 16-bit tensor-core FLOPs of an SM per cycle, accumulated in fp32.
struct TensorRate {
  int arch;
  double flops;
};
constexpr std::array<TensorRate, 6> kTensorRates = {
    {{80, 2048}, {86, 512}, {89, 1024}, {90, 4096}, {100, 8192}, {120, 512}}};

}  // namespace

CountedTraffic EmulatorCounts::global() const { return sum_of(global_load, global_store); }
CountedTraffic EmulatorCounts::shared() const { return sum_of(shared_load, shared_store); }

EmulatorCounts read_counts(const json& counters, const Problem& problem, int threads_per_cta) {
  EmulatorCounts counts;
  try {
    counts = counts_of_json(counters);
  } catch (const json::exception& e) {
    throw_bad_input("these are not the emulator's counters: {}", e.what());
  }
  counts.problem = problem.id();
  counts.flops = problem.flops();
  counts.exps = exponentials_of(problem);
  counts.threads_per_cta = threads_per_cta;
  std::stable_sort(counts.lines.begin(), counts.lines.end(),
                   [](const CountedLine& a, const CountedLine& b) { return a.excess_units() > b.excess_units(); });
  std::stable_sort(counts.waits.begin(), counts.waits.end(),
                   [](const CountedWait& a, const CountedWait& b) { return a.threads > b.threads; });
  return counts;
}

double exponentials_of(const Problem& problem) {
  const auto dims = static_cast<double>(problem.head_dim + problem.head_dim_v);
  return dims > 0 ? problem.flops() / (2 * dims) : 0;
}

SmRates sm_rates(const DeviceLimits& limits, const Problem& problem) {
  SmRates rates;
  const auto row = std::find_if(kTensorRates.begin(), kTensorRates.end(),
                                [&](const TensorRate& rate) { return rate.arch == limits.arch; });
  // A GPU of no known architecture is weighed as the one that most kernels here are made for.
  rates.tensor_flops = row == kTensorRates.end() ? 4096 : row->flops;
  if (problem.is_8bit() && (row == kTensorRates.end() || has_fp8_tensor_cores(limits))) rates.tensor_flops *= 2;
  if (limits.arch == 80) rates.fma_flops = 128;
  return rates;
}

PipeCycles cycles_of(const EmulatorCounts& counts, const SmRates& rates) {
  constexpr double kSectorBytes = 32;
  const double l2_bytes = counts.global().units * kSectorBytes + counts.tma_bytes + counts.tma_stored_bytes;
  const double fma_flops = counts.mma_instructions == 0 ? counts.flops : 0;
  return {counts.mma_flops / rates.tensor_flops, fma_flops / rates.fma_flops, counts.ex2 / rates.special,
          counts.shared().units / rates.shared_passes, l2_bytes / rates.l2_bytes};
}

}  // namespace flashcore
