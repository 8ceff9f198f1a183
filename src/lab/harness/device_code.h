#pragma once
// Is a patched source device code, and nothing else? Asked before any compiler sees it: the first wall. It keeps out
// what reaches for the host in the ways that are known; the sandbox holds what gets past it (docs/security.md).

#include <optional>
#include <string>
#include <string_view>

#include "device/compiler.h"

namespace flashcore {

// Why `text`, to be included as `path` ("sm80_fwd/kernel.cuh"), is refused: "sm80_fwd/kernel.cuh:12: 'extern' ...";
// none if it is not. It may include what is in `sources`, as "kernels/<path>", and define macros only as `original`
// does: the library's file of that path, empty if there is none.
//
// Refused are other directives than conditions and `#pragma unroll`, attributes, the standard library, names of the
// compiler and of the C library, `extern`, raw strings, digraphs and trigraphs, and variables of a namespace that are
// not constexpr: those of a GPU keep their values from launch to launch, and the others' initialisers would run when
// the kernel is loaded. So is what else outlives the launch or leaves it (device_code_state.h). Inline assembly may be
// there for GPUs; where the emulator compiles it, it is an error (emulator_compiler.cpp).
struct DeviceCodeRefusal {
  std::string why;
  bool keeps_state = false;  // it outlives the launch: a cheat, whoever has read it
};
std::optional<DeviceCodeRefusal> refuse_device_code(const std::string& path, std::string_view text,
                                                    std::string_view original, const SourceMap& sources);
// The words alone.
std::optional<std::string> why_not_device_code(const std::string& path, std::string_view text,
                                               std::string_view original, const SourceMap& sources);

}  // namespace flashcore
