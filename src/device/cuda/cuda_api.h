#pragma once
// The part of NVIDIA's binary interfaces that flashcore calls, declared here because a machine without a toolkit has no
// CUDA headers and these interfaces are stable. Names, values and layouts follow cuda.h, nvrtc.h and nvml.h of CUDA 13;
// symbols carry the version suffix that those headers map them to.

#include <cstddef>
#include <cstdint>
#include <string>

namespace flashcore::cuda {

// --- NVRTC -----------------------------------------------------------------------------------------------------------
using NvrtcProgram = struct NvrtcProgramTag*;
using NvrtcResult = int;
inline constexpr NvrtcResult kNvrtcSuccess = 0;
inline constexpr NvrtcResult kNvrtcErrorCompilation = 6;

struct NvrtcApi {
  NvrtcResult (*version)(int* major, int* minor) = nullptr;
  NvrtcResult (*num_supported_archs)(int* count) = nullptr;
  NvrtcResult (*supported_archs)(int* archs) = nullptr;
  NvrtcResult (*create_program)(NvrtcProgram* program, const char* source, const char* name, int header_count, const char* const* headers,
                                const char* const* include_names) = nullptr;
  NvrtcResult (*destroy_program)(NvrtcProgram* program) = nullptr;
  NvrtcResult (*compile_program)(NvrtcProgram program, int option_count, const char* const* options) = nullptr;
  NvrtcResult (*cubin_size)(NvrtcProgram program, std::size_t* bytes) = nullptr;
  NvrtcResult (*cubin)(NvrtcProgram program, char* cubin) = nullptr;
  NvrtcResult (*log_size)(NvrtcProgram program, std::size_t* bytes) = nullptr;
  NvrtcResult (*log)(NvrtcProgram program, char* log) = nullptr;
  NvrtcResult (*add_name_expression)(NvrtcProgram program, const char* expression) = nullptr;
  NvrtcResult (*lowered_name)(NvrtcProgram program, const char* expression, const char** lowered) = nullptr;
  const char* (*error_string)(NvrtcResult result) = nullptr;

  std::string path;  // of the library
};

// Opens the library once per process. Null if it is not there; `why` then says what was tried.
const NvrtcApi* nvrtc_api(std::string* why = nullptr);

}  // namespace flashcore::cuda
