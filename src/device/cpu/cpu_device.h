#pragma once
// The CPU as a Device: memory is host memory, a launch runs when it is called, time is the steady clock's.

#include <memory>
#include <string>
#include <string_view>

#include "device/device.h"

namespace flashcore {

std::unique_ptr<Device> open_cpu_device();

// A name without a number of a model, as hypervisors give it, stands for CPUs of very different speed. The instructions
// tell them apart: "AMD EPYC", "AVX512-BF16" -> "AMD EPYC (AVX512-BF16)".
std::string cpu_name(const std::string& model_name, std::string_view instructions);

// "Intel(R) Xeon(R) Processor (AMX) @ 2.70GHz", 2 -> "cpu_xeon_amx_2c". Letters, digits and '_' only.
std::string cpu_key(std::string_view model_name, int cores);

}  // namespace flashcore
