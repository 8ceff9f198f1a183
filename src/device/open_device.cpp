#include <charconv>

#include "core/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "device/emulator/emulator_device.h"

namespace flashcore {

std::unique_ptr<Device> open_device(std::string_view name) {
  if (name.empty()) return cuda::cuda_device_count() > 0 ? cuda::open_cuda_device(0) : open_cpu_device();
  if (name == "cpu") return open_cpu_device();
  if (name == "emulator") return open_emulator();
  if (name.starts_with("emulator:")) return open_emulator(name.substr(9));
  if (name == "cuda") return cuda::open_cuda_device(0);
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(5);
    int ordinal = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc() && end == digits.data() + digits.size() && ordinal >= 0)
      return cuda::open_cuda_device(ordinal);
  }
  throw_bad_input(
      "'{}' is not a device; choose cpu, cuda, cuda:N with N from 0, emulator, or emulator:sm_80 and the like", name);
}

}  // namespace flashcore
