#pragma once
// A GPU on the CPU, as a Device: kernels run their own source under every check of docs/emulator.md.

#include <memory>
#include <string_view>

#include "device/device.h"

namespace flashcore {

// `arch`: what it pretends to be, "sm_80", "sm_90", ...; Error kBadInput if not known.
std::unique_ptr<Device> open_emulator(std::string_view arch = "sm_90");

}  // namespace flashcore
