#pragma once
// The part of NVIDIA's binary interfaces that flashcore calls, declared here because a machine without a toolkit has no
// CUDA headers and these interfaces are stable. Names, values and layouts follow cuda.h, nvrtc.h and nvml.h of CUDA 13;
// symbols carry the version suffix that those headers map them to.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flashcore::cuda {

// --- NVRTC -----------------------------------------------------------------------------------------------------------
using NvrtcProgram = struct NvrtcProgramTag*;
using NvrtcResult = int;
inline constexpr NvrtcResult kNvrtcSuccess = 0;

struct NvrtcApi {
  NvrtcResult (*version)(int* major, int* minor) = nullptr;
  NvrtcResult (*num_supported_archs)(int* count) = nullptr;
  NvrtcResult (*supported_archs)(int* archs) = nullptr;
  NvrtcResult (*create_program)(NvrtcProgram* program, const char* source, const char* name, int header_count,
                                const char* const* headers, const char* const* include_names) = nullptr;
  NvrtcResult (*destroy_program)(NvrtcProgram* program) = nullptr;
  NvrtcResult (*compile_program)(NvrtcProgram program, int option_count, const char* const* options) = nullptr;
  NvrtcResult (*cubin_size)(NvrtcProgram program, std::size_t* bytes) = nullptr;
  NvrtcResult (*cubin)(NvrtcProgram program, char* cubin) = nullptr;
  // Also after a compilation for a real architecture, of NVRTC 12.4 and 13.0: the PTX that the cubin was made from.
  NvrtcResult (*ptx_size)(NvrtcProgram program, std::size_t* bytes) = nullptr;
  NvrtcResult (*ptx)(NvrtcProgram program, char* ptx) = nullptr;
  NvrtcResult (*log_size)(NvrtcProgram program, std::size_t* bytes) = nullptr;
  NvrtcResult (*log)(NvrtcProgram program, char* log) = nullptr;
  NvrtcResult (*add_name_expression)(NvrtcProgram program, const char* expression) = nullptr;
  NvrtcResult (*lowered_name)(NvrtcProgram program, const char* expression, const char** lowered) = nullptr;
  const char* (*error_string)(NvrtcResult result) = nullptr;

  std::string path;  // of the library
};

// Opens the library once per process. Null if it is not there; `why` then says what was tried.
const NvrtcApi* nvrtc_api(std::string* why = nullptr);
// What was found on the way and not taken, because somebody else could have put it there: "FILE: why".
std::vector<std::string> nvrtc_passed_over();

// --- driver ----------------------------------------------------------------------------------------------------------
using CUresult = int;
using CUdevice = int;
using CUlimit = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,  // kHz
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36,  // kHz
  CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
  CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};

enum CUfunction_attribute : int {
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned CU_EVENT_DEFAULT = 0;
inline constexpr int CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
inline constexpr int CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
inline constexpr int CU_STREAM_CAPTURE_MODE_RELAXED = 2;
inline constexpr CUlimit CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6;
inline constexpr int CU_STREAM_CAPTURE_STATUS_NONE = 0;
inline constexpr int CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4;
inline constexpr int CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6;

// The value is a union of 64 bytes in cuda.h; only the members that are used are listed.
struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int programmatic_allowed;
    unsigned long long alignment;
  } value;
};
static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, value) == 8);

struct CUlaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, stream) == 32);

// An opaque descriptor for the tensor memory accelerator.
struct alignas(64) CUtensorMap {
  std::uint64_t words[16];
};
enum CUtensorMapDataType : int {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
};
enum CUtensorMapInterleave : int { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle : int {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 1,
  CU_TENSOR_MAP_SWIZZLE_64B = 2,
  CU_TENSOR_MAP_SWIZZLE_128B = 3
};
enum CUtensorMapL2promotion : int { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 };
enum CUtensorMapFloatOOBfill : int { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

struct DriverApi {
  CUresult (*init)(unsigned flags) = nullptr;
  CUresult (*driver_version)(int* version) = nullptr;
  CUresult (*error_name)(CUresult error, const char** name) = nullptr;
  CUresult (*error_string)(CUresult error, const char** text) = nullptr;
  CUresult (*device_count)(int* count) = nullptr;
  CUresult (*device_get)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*device_name)(char* name, int length, CUdevice device) = nullptr;
  CUresult (*device_total_memory)(std::size_t* bytes, CUdevice device) = nullptr;
  CUresult (*device_attribute)(int* value, CUdevice_attribute attribute, CUdevice device) = nullptr;
  CUresult (*device_pci_bus_id)(char* id, int length, CUdevice device) = nullptr;
  CUresult (*primary_context_retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*primary_context_release)(CUdevice device) = nullptr;
  CUresult (*context_set_current)(CUcontext context) = nullptr;
  CUresult (*context_get_current)(CUcontext* context) = nullptr;
  CUresult (*reset_persisting_l2)() = nullptr;
  CUresult (*context_set_limit)(CUlimit limit, std::size_t value) = nullptr;
  CUresult (*mem_alloc)(CUdeviceptr* pointer, std::size_t bytes) = nullptr;
  CUresult (*mem_free)(CUdeviceptr pointer) = nullptr;
  CUresult (*mem_info)(std::size_t* free, std::size_t* total) = nullptr;
  CUresult (*copy_to_device)(CUdeviceptr destination, const void* source, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*copy_to_host)(void* destination, CUdeviceptr source, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*memset_bytes)(CUdeviceptr destination, unsigned char value, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*module_load)(CUmodule* module, const void* image) = nullptr;
  CUresult (*module_unload)(CUmodule module) = nullptr;
  CUresult (*module_function)(CUfunction* function, CUmodule module, const char* name) = nullptr;
  CUresult (*function_set_attribute)(CUfunction function, CUfunction_attribute attribute, int value) = nullptr;
  CUresult (*function_param_info)(CUfunction function, std::size_t index, std::size_t* offset,
                                  std::size_t* bytes) = nullptr;  // CUDA 12.4; may be null
  CUresult (*launch_kernel)(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) = nullptr;
  CUresult (*stream_create)(CUstream* stream, unsigned flags) = nullptr;
  CUresult (*stream_destroy)(CUstream stream) = nullptr;
  CUresult (*stream_synchronize)(CUstream stream) = nullptr;
  CUresult (*stream_is_capturing)(CUstream stream, int* status) = nullptr;
  CUresult (*stream_id)(CUstream stream, unsigned long long* id) = nullptr;  // CUDA 12.0; may be null
  CUresult (*exchange_capture_mode)(int* mode) = nullptr;
  CUresult (*stream_begin_capture)(CUstream stream, int mode) = nullptr;
  CUresult (*stream_end_capture)(CUstream stream, CUgraph* graph) = nullptr;
  CUresult (*graph_instantiate)(CUgraphExec* executable, CUgraph graph, unsigned long long flags) = nullptr;
  CUresult (*graph_upload)(CUgraphExec executable, CUstream stream) = nullptr;
  CUresult (*graph_launch)(CUgraphExec executable, CUstream stream) = nullptr;
  CUresult (*graph_exec_destroy)(CUgraphExec executable) = nullptr;
  CUresult (*graph_destroy)(CUgraph graph) = nullptr;
  CUresult (*event_create)(CUevent* event, unsigned flags) = nullptr;
  CUresult (*event_destroy)(CUevent event) = nullptr;
  CUresult (*event_record)(CUevent event, CUstream stream) = nullptr;
  CUresult (*event_elapsed_ms)(float* milliseconds, CUevent begin, CUevent end) = nullptr;

  std::string path;  // of the library
  // Null on drivers that know no Hopper (before CUDA 12.0).
  CUresult (*tensor_map_encode)(CUtensorMap* map, CUtensorMapDataType type, std::uint32_t rank, void* address,
                                const std::uint64_t* extents, const std::uint64_t* strides_bytes,
                                const std::uint32_t* box, const std::uint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) = nullptr;
  CUresult (*tensor_map_replace_address)(CUtensorMap* map, void* address) = nullptr;
};

// Opens the library and initialises the driver, once per process. Null if there is none or it does not start.
const DriverApi* driver_api(std::string* why = nullptr);

// --- NVML ------------------------------------------------------------------------------------------------------------
using NvmlDevice = struct nvmlDevice_st*;
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlClockSm = 1, kNvmlClockMemory = 2;
inline constexpr int kNvmlTemperatureGpu = 0;

struct NvmlApi {
  int (*init)() = nullptr;
  int (*driver_version)(char* version, unsigned length) = nullptr;
  int (*device_by_pci_bus_id)(const char* id, NvmlDevice* device) = nullptr;
  int (*clock_mhz)(NvmlDevice device, int domain, unsigned* megahertz) = nullptr;
  int (*power_mw)(NvmlDevice device, unsigned* milliwatts) = nullptr;
  int (*temperature_c)(NvmlDevice device, int sensor, unsigned* celsius) = nullptr;
  int (*throttle_reasons)(NvmlDevice device, unsigned long long* reasons) = nullptr;

  std::string path;
};
const NvmlApi* nvml_api(std::string* why = nullptr);

}  // namespace flashcore::cuda
