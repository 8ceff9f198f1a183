#include "core/error.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/dynamic_library.h"
#include "device/cuda/load_symbols.h"

namespace flashcore::cuda {
namespace {

struct LoadedDriver {
  DriverApi api;
  bool present = false;
  std::string why;
};

void load_symbols(SymbolLoader& loader, DriverApi& api) {
  loader.need("cuInit", api.init);
  loader.need("cuDriverGetVersion", api.driver_version);
  loader.need("cuGetErrorName", api.error_name);
  loader.need("cuGetErrorString", api.error_string);
  loader.need("cuDeviceGetCount", api.device_count);
  loader.need("cuDeviceGet", api.device_get);
  loader.need("cuDeviceGetName", api.device_name);
  loader.need("cuDeviceTotalMem_v2", api.device_total_memory);
  loader.need("cuDeviceGetAttribute", api.device_attribute);
  loader.need("cuDeviceGetPCIBusId", api.device_pci_bus_id);
  loader.need("cuDevicePrimaryCtxRetain", api.primary_context_retain);
  loader.need("cuDevicePrimaryCtxRelease_v2", api.primary_context_release);
  loader.need("cuCtxSetCurrent", api.context_set_current);
  loader.need("cuCtxGetCurrent", api.context_get_current);
  loader.need("cuCtxResetPersistingL2Cache", api.reset_persisting_l2);
  loader.need("cuCtxSetLimit", api.context_set_limit);
  loader.need("cuMemAlloc_v2", api.mem_alloc);
  loader.need("cuMemFree_v2", api.mem_free);
  loader.need("cuMemGetInfo_v2", api.mem_info);
  loader.need("cuMemcpyHtoDAsync_v2", api.copy_to_device);
  loader.need("cuMemcpyDtoHAsync_v2", api.copy_to_host);
  loader.need("cuMemsetD8Async", api.memset_bytes);
  loader.need("cuModuleLoadData", api.module_load);
  loader.need("cuModuleUnload", api.module_unload);
  loader.need("cuModuleGetFunction", api.module_function);
  loader.need("cuFuncSetAttribute", api.function_set_attribute);
  loader.want("cuFuncGetParamInfo", api.function_param_info);
  loader.need("cuLaunchKernelEx", api.launch_kernel);
  loader.want("cuTensorMapEncodeTiled", api.tensor_map_encode);
  loader.want("cuTensorMapReplaceAddress", api.tensor_map_replace_address);
  loader.need("cuStreamCreate", api.stream_create);
  loader.need("cuStreamDestroy_v2", api.stream_destroy);
  loader.need("cuStreamSynchronize", api.stream_synchronize);
  loader.need("cuStreamIsCapturing", api.stream_is_capturing);
  loader.want("cuStreamGetId", api.stream_id);
  loader.need("cuThreadExchangeStreamCaptureMode", api.exchange_capture_mode);
  loader.need("cuStreamBeginCapture_v2", api.stream_begin_capture);
  loader.need("cuStreamEndCapture", api.stream_end_capture);
  loader.need("cuGraphInstantiateWithFlags", api.graph_instantiate);
  loader.need("cuGraphUpload", api.graph_upload);
  loader.need("cuGraphLaunch", api.graph_launch);
  loader.need("cuGraphExecDestroy", api.graph_exec_destroy);
  loader.need("cuGraphDestroy", api.graph_destroy);
  loader.need("cuEventCreate", api.event_create);
  loader.need("cuEventDestroy_v2", api.event_destroy);
  loader.need("cuEventRecord", api.event_record);
  // The second version differs only in how it reports captured events; drivers before CUDA 12.8 lack it.
  loader.need("cuEventElapsedTime", api.event_elapsed_ms);
}

LoadedDriver load_driver() {
  LoadedDriver loaded;
  const auto library = DynamicLibrary::open_first(driver_candidates(), &loaded.why);
  if (!library) return loaded;
  loaded.api.path = library->path();
  SymbolLoader loader(*library);
  load_symbols(loader, loaded.api);
  loaded.why = loader.missing();
  if (!loaded.why.empty()) {
    loaded.why += " (a driver of CUDA 12 or newer has them)";
    return loaded;
  }
  if (const CUresult result = loaded.api.init(0); result != CUDA_SUCCESS) {
    const char* name = nullptr;
    const char* text = nullptr;
    loaded.api.error_name(result, &name);
    loaded.api.error_string(result, &text);
    loaded.why = fmt::format("{} does not start: {} ({})", loaded.api.path, text ? text : "unknown error",
                             name ? name : std::to_string(result));
    return loaded;
  }
  loaded.present = true;
  return loaded;
}

struct LoadedNvml {
  NvmlApi api;
  bool present = false;
  std::string why;
};

LoadedNvml load_nvml() {
  LoadedNvml loaded;
  const auto library = DynamicLibrary::open_first(nvml_candidates(), &loaded.why);
  if (!library) return loaded;
  NvmlApi& api = loaded.api;
  api.path = library->path();
  SymbolLoader loader(*library);
  loader.need("nvmlInit_v2", api.init);
  loader.need("nvmlSystemGetDriverVersion", api.driver_version);
  loader.need("nvmlDeviceGetHandleByPciBusId_v2", api.device_by_pci_bus_id);
  loader.need("nvmlDeviceGetClockInfo", api.clock_mhz);
  loader.need("nvmlDeviceGetPowerUsage", api.power_mw);
  loader.want("nvmlDeviceGetTemperature", api.temperature_c);
  // Renamed in newer drivers, which keep the old name; very new ones may not.
  loader.want("nvmlDeviceGetCurrentClocksEventReasons", api.throttle_reasons);
  if (!api.throttle_reasons) loader.want("nvmlDeviceGetCurrentClocksThrottleReasons", api.throttle_reasons);
  loaded.why = loader.missing();
  if (loaded.why.empty() && api.init() != kNvmlSuccess) loaded.why = api.path + " does not start";
  loaded.present = loaded.why.empty();
  return loaded;
}

}  // namespace

const DriverApi* driver_api(std::string* why) {
  static const LoadedDriver loaded = load_driver();
  if (why) *why = loaded.why;
  return loaded.present ? &loaded.api : nullptr;
}

const NvmlApi* nvml_api(std::string* why) {
  static const LoadedNvml loaded = load_nvml();
  if (why) *why = loaded.why;
  return loaded.present ? &loaded.api : nullptr;
}

}  // namespace flashcore::cuda
