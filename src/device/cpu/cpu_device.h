#pragma once
// The CPU as a Device: memory is host memory, a launch runs when it is called, time is the steady clock's.

#include <memory>
#include <string>
#include <string_view>

#include "device/device.h"

namespace flashcore {

std::unique_ptr<Device> open_cpu_device();

// "Intel(R) Xeon(R) Processor @ 2.70GHz", 2 -> "cpu_xeon_2c". Letters, digits and '_' only.
std::string cpu_key(std::string_view model_name, int cores);

}  // namespace flashcore
