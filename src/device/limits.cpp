// What each architecture offers, from the CUDA C++ Programming Guide ("Technical Specifications per Compute
// Capability"); SM counts and L2 sizes are those of one common model of each.
#include <algorithm>
#include <array>

#include "core/error.h"
#include "device/device.h"
#include "device/model_keys.h"

namespace flashcore {
namespace {

struct ArchRow {
  int arch;
  const char* model;
  int multiprocessors;
  int shared_kb_per_block, shared_kb_per_multiprocessor;
  int max_threads_per_multiprocessor;
  int l2_mb;
};

constexpr std::array<ArchRow, 6> kRows = {{{80, "A100", 108, 163, 164, 2048, 40},
                                           {86, "RTX 3090", 82, 99, 100, 1536, 6},
                                           {89, "L40S", 142, 99, 100, 1536, 96},
                                           {90, "H100, H200", 132, 227, 228, 2048, 50},
                                           {100, "B200", 148, 227, 228, 2048, 126},
                                           {120, "RTX 5090", 170, 99, 100, 1536, 96}}};

// Clocks and bus as the driver tells them (H100 and H200: results/), else from NVIDIA's data sheets.
constexpr std::array<GpuModel, 3> kModels = {{{"h100", 90, 132, 1980, dram_peak_gbps(2619, 5120)},
                                              {"h100pcie", 90, 114, 1755, dram_peak_gbps(1593, 5120)},
                                              {"h200", 90, 132, 1980, dram_peak_gbps(3201, 6144)}}};

}  // namespace

const std::vector<std::string>& known_archs() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ArchRow& row : kRows) all.push_back(fmt::format("sm_{}", row.arch));
    return all;
  }();
  return names;
}

DeviceLimits limits_of_arch(std::string_view arch) {
  std::string_view digits = arch.starts_with("sm_") ? arch.substr(3) : arch;
  if (digits.ends_with('a') || digits.ends_with('f')) digits.remove_suffix(1);
  for (const ArchRow& row : kRows) {
    if (digits != std::to_string(row.arch)) continue;
    DeviceLimits limits;
    limits.kind = DeviceKind::kCuda;
    limits.arch = row.arch;
    limits.multiprocessors = row.multiprocessors;
    limits.shared_bytes_per_block = row.shared_kb_per_block * 1024;
    limits.shared_bytes_per_multiprocessor = row.shared_kb_per_multiprocessor * 1024;
    limits.registers_per_multiprocessor = 65536;
    limits.max_threads_per_block = 1024;
    limits.max_threads_per_multiprocessor = row.max_threads_per_multiprocessor;
    limits.l2_bytes = std::int64_t{row.l2_mb} << 20;
    return limits;
  }
  throw_bad_input("'{}' is not an architecture known here; choose among {}", arch, fmt::join(known_archs(), ", "));
}

std::vector<std::string> known_model_keys() {
  std::vector<std::string> keys;
  for (const GpuModel& model : kModels) keys.emplace_back(model.key);
  return keys;
}

const GpuModel* find_gpu_model(std::string_view key) {
  const auto found = std::find_if(kModels.begin(), kModels.end(), [&](const GpuModel& m) { return m.key == key; });
  return found == kModels.end() ? nullptr : &*found;
}

DeviceLimits limits_of_model(std::string_view arch, std::string_view key) {
  DeviceLimits limits = limits_of_arch(arch);
  const GpuModel* model = find_gpu_model(key);
  if (model && model->arch == limits.arch) {
    limits.multiprocessors = model->multiprocessors;
    limits.clock_mhz = model->clock_mhz;
    limits.dram_peak_gbps = model->dram_peak_gbps;
  }
  return limits;
}

}  // namespace flashcore
