// The text of device.h's small types.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/foreign_text.h"
#include "device/device.h"

namespace flashcore {

std::string_view to_string(Regime regime) {
  switch (regime) {
    case Regime::kGraph: return "graph";
    case Regime::kCold: return "cold";
    case Regime::kWarm: return "warm";
  }
  throw_internal("no such regime: {}", static_cast<int>(regime));
}

std::string_view to_string(Condition condition) {
  switch (condition) {
    case Condition::kBurst: return "burst";
    case Condition::kSustained: return "sustained";
  }
  throw_internal("no such condition: {}", static_cast<int>(condition));
}

Regime parse_regime(std::string_view name) {
  for (const Regime regime : {Regime::kGraph, Regime::kCold, Regime::kWarm})
    if (name == to_string(regime)) return regime;
  throw_bad_input("'{}' is not a timing regime; choose graph, cold or warm", excerpt(name));
}

Condition parse_condition(std::string_view name) {
  for (const Condition condition : {Condition::kBurst, Condition::kSustained})
    if (name == to_string(condition)) return condition;
  throw_bad_input("'{}' is not a power condition; choose burst or sustained", excerpt(name));
}

void to_json(nlohmann::json& json, const EnvironmentReading& reading) {
  json = nlohmann::json{{"clock_sm_mhz", reading.clock_sm_mhz},
                        {"clock_memory_mhz", reading.clock_memory_mhz},
                        {"power_w", reading.power_w},
                        {"temperature_c", reading.temperature_c},
                        {"throttle_reasons", reading.throttle_reasons}};
}

void from_json(const nlohmann::json& json, EnvironmentReading& reading) {
  json.at("clock_sm_mhz").get_to(reading.clock_sm_mhz);
  json.at("clock_memory_mhz").get_to(reading.clock_memory_mhz);
  json.at("power_w").get_to(reading.power_w);
  json.at("temperature_c").get_to(reading.temperature_c);
  json.at("throttle_reasons").get_to(reading.throttle_reasons);
}

void to_json(nlohmann::json& json, const Ceilings& ceilings) {
  json = nlohmann::json{{"matmul_tflops_16bit", ceilings.matmul_tflops_16bit},
                        {"fma_tflops_fp32", ceilings.fma_tflops_fp32},
                        {"read_gbps", ceilings.read_gbps},
                        {"cache_read_gbps", ceilings.cache_read_gbps},
                        {"empty_launch_us", ceilings.empty_launch_us}};
}

void from_json(const nlohmann::json& json, Ceilings& ceilings) {
  json.at("matmul_tflops_16bit").get_to(ceilings.matmul_tflops_16bit);
  json.at("fma_tflops_fp32").get_to(ceilings.fma_tflops_fp32);
  json.at("read_gbps").get_to(ceilings.read_gbps);
  json.at("cache_read_gbps").get_to(ceilings.cache_read_gbps);
  json.at("empty_launch_us").get_to(ceilings.empty_launch_us);
}

nlohmann::json Device::counters() { return nullptr; }
void Timer::use_launches(int) {}
std::unique_ptr<Timer> Device::make_foreign_timer(ForeignWork) {
  throw_bad_input("{} has no time, so nothing of others can be timed on it; use cuda or cpu", info().id);
}
double Device::now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void Device::encode_tensor_maps(LaunchSpec& spec) {
  if (!spec.tensor_maps.empty())
    throw_internal("{} has no tensor maps; the family should have said so in why_unsupported", info().id);
}

void Device::launch_on(void* stream, const Module& module, const LaunchSpec& spec, std::span<const std::byte> params) {
  if (stream) throw_bad_input("a stream was given, and {} has none; give null", info().id);
  LaunchSpec bound = spec;
  bound.params.assign(params.begin(), params.end());
  launch(module, bound);
}

void Device::readdress_tensor_map(const TensorMapSpec& map, const void* address, std::span<std::byte> params) {
  LaunchSpec one;
  one.params.assign(params.begin(), params.end());
  one.tensor_maps = {map};
  one.tensor_maps.front().address = address;
  encode_tensor_maps(one);
  std::copy(one.params.begin(), one.params.end(), params.begin());
}

StreamOrder Device::order_of(void* stream) {
  if (stream) throw_bad_input("a stream was given, and {} has none; give null", info().id);
  return {};
}

void Device::synchronize_stream(void* stream) {
  if (stream) throw_bad_input("a stream was given, and {} has none; give null", info().id);
  synchronize();
}

}  // namespace flashcore
