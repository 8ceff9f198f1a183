#pragma once
// Compiles a kernel for the emulator with the system's C++ compiler, giving it the emulator's ptx/ headers.

#include <map>
#include <memory>
#include <string_view>

#include "device/compiler.h"

namespace flashcore {

// Error kEnvironment with the fix if there is no C++ compiler. $FLASHCORE_CXX names another than c++.
std::unique_ptr<Compiler> open_emulator_compiler();

namespace emulator {

// The emulator's headers, "ptx/mma.cuh" and "services.h" -> text. Made by cmake/embed.cmake.
const std::map<std::string_view, std::string_view>& embedded_emulator_sources();

}  // namespace emulator
}  // namespace flashcore
