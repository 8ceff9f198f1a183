// What is here, what is missing, and the fix: what `doctor` prints.
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/parallel.h"
#include "device/compiler.h"
#include "device/cpu/ceilings.h"
#include "device/cuda/compile_cache.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"

namespace flashcore {
namespace {

constexpr const char* kNvrtcFix =
    "run ./quickstart, or: pip install nvidia-cuda-nvrtc, or set FLASHCORE_NVRTC to the path of libnvrtc.so";
constexpr const char* kPassedOverFix =
    "make what was passed over, and the folders above it, yours alone (chown, chmod go-w), or set FLASHCORE_NVRTC to "
    "its "
    "path if you trust it";

Finding survey_driver() {
  std::string why;
  const cuda::DriverApi* api = cuda::driver_api(&why);
  if (!api)
    return {"NVIDIA driver", false, false, why,
            "install NVIDIA's driver to use a GPU; without one, everything runs on the CPU"};
  int version = 0;
  api->driver_version(&version);
  return {"NVIDIA driver", true, false, fmt::format("CUDA {}.{}, {}", version / 1000, version % 1000 / 10, api->path),
          ""};
}

void survey_gpus(std::vector<Finding>& findings) {
  const int count = cuda::cuda_device_count();
  if (count == 0)
    findings.push_back({"GPU", false, false, "none that the driver shows",
                        "look at nvidia-smi and CUDA_VISIBLE_DEVICES; without a GPU, everything runs on the CPU"});
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::string item = fmt::format("GPU cuda:{}", ordinal);
    try {
      const DeviceInfo info = cuda::open_cuda_device(ordinal)->info();
      findings.push_back({item, true, false,
                          fmt::format("{}, sm_{}, {} SMs, {} GB, driver {}", info.name, info.limits.arch,
                                      info.limits.multiprocessors, info.memory_bytes >> 30, info.driver),
                          ""});
    } catch (const std::exception& error) {
      findings.push_back({item, false, true, error.what(),
                          "free the GPU or restart its driver; or hide it with CUDA_VISIBLE_DEVICES"});
    }
  }
}

// With a GPU nothing runs without a compiler. Without one it is needed only to compile for other machines.
Finding survey_nvrtc(bool required) {
  std::string why;
  const cuda::NvrtcApi* api = cuda::nvrtc_api(&why);
  if (!api) return {"NVRTC", false, required, why, kNvrtcFix};
  return {"NVRTC", true, required, fmt::format("{}, {}", open_compiler()->version(), api->path), ""};
}

Finding survey_nvml() {
  std::string why;
  const cuda::NvmlApi* api = cuda::nvml_api(&why);
  if (!api)
    return {"NVML", false, false, why,
            "it comes with NVIDIA's driver; without it, clocks, power and temperature are not recorded"};
  return {"NVML", true, false, api->path, ""};
}

Finding survey_cache() {
  const std::filesystem::path folder = cache_directory();
  const std::string item = "compile cache";
  if (const std::string why = cuda::CompileCache(folder).why_unused(); !why.empty())
    return {item, false, false, why, "see there; until then every run compiles anew"};
  try {
    std::filesystem::create_directories(folder);
    const std::filesystem::path probe = folder / ".probe";
    write_file_atomically(probe, "probe");
    std::filesystem::remove(probe);
    return {item, true, false, folder.string(), ""};
  } catch (const std::exception& error) {
    return {item, false, false, error.what(),
            "set FLASHCORE_CACHE to a folder that can be written; until then every run compiles anew"};
  }
}

}  // namespace

std::vector<Finding> survey_environment() {
  std::vector<Finding> findings;
  findings.push_back(survey_driver());
  if (findings.back().present) survey_gpus(findings);
  findings.push_back(survey_nvrtc(cuda::cuda_device_count() > 0));
  for (const std::string& passed_over : cuda::nvrtc_passed_over())
    findings.push_back({"NVRTC not taken", false, false, passed_over, kPassedOverFix});
  findings.push_back(survey_nvml());
  findings.push_back(survey_cache());
  findings.push_back(
      {"CPU cores", true, true, fmt::format("{}, {} instructions", hardware_threads(), simd_target_name()), ""});
  return findings;
}

}  // namespace flashcore
