#pragma once
#include "device/emulator/services.h"

namespace flashcore::emulator {

// The engine's side of every ptx/ function.
const Services& service_table();

}  // namespace flashcore::emulator
