#pragma once
// A libcuda that lives in host memory: device memory is host memory, time is a number that launches advance. What the
// driver part does with a GPU can then be watched, and made to fail, where there is none.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/cuda_device.h"

namespace flashcore::testing {

struct FakeDriver {
  static inline FakeDriver* now = nullptr;

  struct LaunchRecord {
    std::string kernel;
    cuda::CUlaunchConfig config;
    std::vector<cuda::CUlaunchAttribute> attributes;
    bool captured;
    std::vector<char> params;  // as many as function_param_info says
  };

  // Knobs.
  int devices = 1;
  double kernel_us = 10;  // device time of one launch of a kernel that is not a microkernel
  double clock_mhz = 1500;
  int slow_submits = 0;                            // so many graphs take the host longer than any hold
  std::size_t param_bytes = 0;                     // what function_param_info says
  std::set<int> unknown_attributes;                // of the device: the driver refuses to say
  std::map<std::string, cuda::CUresult> failures;  // by member name of DriverApi
  // A capture of somebody else's that this thread has begun, by its mode (global, thread local); none if negative.
  int foreign_capture = -1;

  std::size_t persisting_l2_bytes = 0;  // set aside by somebody

  // Record.
  std::map<cuda::CUdeviceptr, std::unique_ptr<char[]>> memory;
  std::map<std::string, int> calls;
  std::vector<LaunchRecord> launches;
  std::map<std::string, int> attribute_set;  // "kernel/attribute" -> value
  cuda::CUcontext current = nullptr;
  int thread_mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::string invalidated_by;  // the call that ended the foreign capture
  bool capturing = false;
  int captured = 0;
  double time_us = 1000;
  std::map<void*, double> event_us;
  std::map<void*, std::string> function_name;
  std::vector<std::unique_ptr<std::string>> names;

  FakeDriver() { now = this; }
  ~FakeDriver() { now = nullptr; }

  int count(const std::string& call) const {
    const auto found = calls.find(call);
    return found == calls.end() ? 0 : found->second;
  }
  // What cuda.h calls potentially unsafe: work that no capture sees.
  static bool is_unsafe(const std::string& call) {
    static const std::set<std::string> kUnsafe = {"mem_alloc",          "mem_free",       "module_load",
                                                  "module_unload",      "stream_create",  "stream_destroy",
                                                  "stream_synchronize", "copy_to_device", "copy_to_host"};
    return kUnsafe.contains(call);
  }
  cuda::CUresult enter(const std::string& call) {
    ++calls[call];
    if (foreign_capture >= 0 && foreign_capture != cuda::CU_STREAM_CAPTURE_MODE_RELAXED &&
        thread_mode != cuda::CU_STREAM_CAPTURE_MODE_RELAXED && is_unsafe(call)) {
      invalidated_by += (invalidated_by.empty() ? "" : ", ") + call;
      return cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    const auto found = failures.find(call);
    return found == failures.end() ? cuda::CUDA_SUCCESS : found->second;
  }
  template <class T>
  static T handle(std::uintptr_t value) {
    return reinterpret_cast<T>(value);
  }
  static cuda::CUstream foreign_stream() { return handle<cuda::CUstream>(99); }

  void run(const std::string& kernel, const cuda::CUlaunchConfig&, void** params) {
    if (kernel == "stamp") {
      cuda::StampParams stamp;
      std::memcpy(&stamp, params[0], sizeof(stamp));
      time_us += stamp.hold_ns / 1e3;
      auto* out = reinterpret_cast<cuda::Stamp*>(stamp.out);
      for (std::uint32_t sm = 0; sm < stamp.slots; ++sm)
        out[sm] = {static_cast<std::uint64_t>(time_us * clock_mhz), static_cast<std::uint64_t>(time_us * 1e3)};
    } else if (capturing) {
      ++captured;
    } else {
      time_us += kernel == "read" ? 100 : kernel_us;
    }
  }

  static cuda::DriverApi api() {
    using namespace cuda;
    DriverApi table;
    table.init = [](unsigned) { return now->enter("init"); };
    table.driver_version = [](int* version) { return *version = 13000, now->enter("driver_version"); };
    table.error_name = [](CUresult error, const char** name) {
      return *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_FAKE", CUresult{0};
    };
    table.error_string = [](CUresult, const char** text) { return *text = "as planned", CUresult{0}; };
    table.device_count = [](int* count) { return *count = now->devices, now->enter("device_count"); };
    table.device_get = [](CUdevice* device, int ordinal) {
      return *device = ordinal, ordinal < now->devices ? now->enter("device_get") : CUresult{CUDA_ERROR_INVALID_DEVICE};
    };
    table.device_name = [](char* name, int length, CUdevice) {
      return std::strncpy(name, "NVIDIA H200", static_cast<std::size_t>(length)), now->enter("device_name");
    };
    table.device_total_memory = [](std::size_t* bytes, CUdevice) {
      return *bytes = std::size_t{141} << 30, now->enter("device_total_memory");
    };
    table.device_attribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
      const std::map<int, int> values = {{1, 1024},  {13, 1980000}, {16, 4}, {36, 3201000}, {37, 6144},  {38, 1 << 20},
                                         {39, 2048}, {75, 9},       {76, 0}, {81, 233472},  {82, 65536}, {97, 232448}};
      if (now->unknown_attributes.contains(attribute)) return CUresult{1};  // CUDA_ERROR_INVALID_VALUE
      return *value = values.at(attribute), now->enter("device_attribute");
    };
    table.device_pci_bus_id = [](char* id, int length, CUdevice) {
      return std::strncpy(id, "0000:01:00.0", static_cast<std::size_t>(length)), now->enter("device_pci_bus_id");
    };
    table.primary_context_retain = [](CUcontext* context, CUdevice) {
      return *context = handle<CUcontext>(1), now->enter("primary_context_retain");
    };
    table.primary_context_release = [](CUdevice) { return now->enter("primary_context_release"); };
    table.context_set_current = [](CUcontext context) {
      return now->current = context, now->enter("context_set_current");
    };
    table.context_get_current = [](CUcontext* context) {
      return *context = now->current, now->enter("context_get_current");
    };
    table.reset_persisting_l2 = [] { return now->enter("reset_persisting_l2"); };
    table.context_set_limit = [](CUlimit limit, std::size_t value) {
      if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) now->persisting_l2_bytes = value;
      return now->enter("context_set_limit");
    };
    table.mem_alloc = [](CUdeviceptr* pointer, std::size_t bytes) {
      if (const CUresult result = now->enter("mem_alloc")) return result;
      // As the driver does: aligned to 256, and zero bytes refused.
      if (bytes == 0) return CUresult{1};
      std::unique_ptr<char[]> block(new char[bytes + 256]);
      *pointer = (reinterpret_cast<CUdeviceptr>(block.get()) + 255) / 256 * 256;
      now->memory[*pointer] = std::move(block);
      return CUresult{CUDA_SUCCESS};
    };
    table.mem_free = [](CUdeviceptr pointer) {
      return now->enter("mem_free"), now->memory.erase(pointer) == 1 ? CUresult{CUDA_SUCCESS} : CUresult{1};
    };
    table.mem_info = [](std::size_t* free, std::size_t* total) {
      return *free = 1 << 22, *total = 1 << 23, now->enter("mem_info");
    };
    table.copy_to_device = [](CUdeviceptr destination, const void* source, std::size_t bytes, CUstream) {
      return std::memcpy(reinterpret_cast<void*>(destination), source, bytes), now->enter("copy_to_device");
    };
    table.copy_to_host = [](void* destination, CUdeviceptr source, std::size_t bytes, CUstream) {
      return std::memcpy(destination, reinterpret_cast<const void*>(source), bytes), now->enter("copy_to_host");
    };
    table.memset_bytes = [](CUdeviceptr destination, unsigned char value, std::size_t bytes, CUstream) {
      return std::memset(reinterpret_cast<void*>(destination), value, bytes), now->enter("memset_bytes");
    };
    table.module_load = [](CUmodule* module, const void*) {
      return *module = handle<CUmodule>(2), now->enter("module_load");
    };
    table.module_unload = [](CUmodule) { return now->enter("module_unload"); };
    table.module_function = [](CUfunction* function, CUmodule, const char* name) {
      now->names.push_back(std::make_unique<std::string>(name));
      *function = reinterpret_cast<CUfunction>(now->names.back().get());
      return now->enter("module_function");
    };
    table.function_set_attribute = [](CUfunction function, CUfunction_attribute attribute, int value) {
      now->attribute_set[*reinterpret_cast<std::string*>(function) + "/" + std::to_string(attribute)] = value;
      return now->enter("function_set_attribute");
    };
    table.function_param_info = [](CUfunction, std::size_t, std::size_t* offset, std::size_t* bytes) {
      *offset = 0, *bytes = now->param_bytes;
      return now->param_bytes ? CUresult{CUDA_SUCCESS} : CUresult{1};
    };
    table.launch_kernel = [](const CUlaunchConfig* config, CUfunction function, void** params, void**) {
      if (const CUresult result = now->enter("launch_kernel")) return result;
      const std::string& kernel = *reinterpret_cast<std::string*>(function);
      now->launches.push_back(
          {kernel, *config, {config->attributes, config->attributes + config->attribute_count}, now->capturing, {}});
      if (params && now->param_bytes) {
        const auto* bytes = static_cast<const char*>(params[0]);
        now->launches.back().params.assign(bytes, bytes + now->param_bytes);
      }
      now->run(kernel, *config, params);
      return CUresult{CUDA_SUCCESS};
    };
    table.stream_create = [](CUstream* stream, unsigned flags) {
      return *stream = handle<CUstream>(3), flags == CU_STREAM_NON_BLOCKING ? now->enter("stream_create") : CUresult{1};
    };
    table.stream_destroy = [](CUstream) { return now->enter("stream_destroy"); };
    table.stream_synchronize = [](CUstream stream) {
      if (now->foreign_capture >= 0 && stream == foreign_stream()) now->invalidated_by = "waiting for the stream";
      return now->capturing ? CUresult{900} : now->enter("stream_synchronize");
    };
    table.stream_is_capturing = [](CUstream stream, int* status) {
      return *status = now->foreign_capture >= 0 && stream == foreign_stream(), now->enter("stream_is_capturing");
    };
    table.stream_id = [](CUstream stream, unsigned long long* id) {
      return *id = reinterpret_cast<std::uintptr_t>(stream) + 1000, now->enter("stream_id");
    };
    table.exchange_capture_mode = [](int* mode) {
      return std::swap(*mode, now->thread_mode), now->enter("exchange_capture_mode");
    };
    table.stream_begin_capture = [](CUstream, int) {
      return now->capturing = true, now->captured = 0, now->enter("stream_begin_capture");
    };
    table.stream_end_capture = [](CUstream, CUgraph* graph) {
      return now->capturing = false, *graph = handle<CUgraph>(4), now->enter("stream_end_capture");
    };
    table.graph_instantiate = [](CUgraphExec* executable, CUgraph, unsigned long long) {
      return *executable = handle<CUgraphExec>(5), now->enter("graph_instantiate");
    };
    table.graph_upload = [](CUgraphExec, CUstream) { return now->enter("graph_upload"); };
    table.graph_launch = [](CUgraphExec, CUstream) {
      if (now->slow_submits > 0) --now->slow_submits, std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return now->time_us += now->captured * now->kernel_us, now->enter("graph_launch");
    };
    table.graph_exec_destroy = [](CUgraphExec) { return now->enter("graph_exec_destroy"); };
    table.graph_destroy = [](CUgraph) { return now->enter("graph_destroy"); };
    table.event_create = [](CUevent* event, unsigned) {
      return *event = handle<CUevent>(static_cast<std::uintptr_t>(100 + now->count("event_create"))),
             now->enter("event_create");
    };
    table.event_destroy = [](CUevent) { return now->enter("event_destroy"); };
    table.event_record = [](CUevent event, CUstream) {
      return now->event_us[event] = now->time_us, now->enter("event_record");
    };
    table.event_elapsed_ms = [](float* milliseconds, CUevent begin, CUevent end) {
      *milliseconds = static_cast<float>((now->event_us[end] - now->event_us[begin]) / 1e3);
      return now->enter("event_elapsed_ms");
    };
    return table;
  }
};

// A device on the fake driver. Its microkernels are names that FakeDriver::run knows.
class FakeGpu {
 public:
  explicit FakeGpu(const std::set<int>& unknown_attributes = {}) {
    driver_.unknown_attributes = unknown_attributes;
    const auto compile = [](cuda::Microkernel kernel, const std::string& arch) {
      static const std::map<cuda::Microkernel, const char*> names = {
          {cuda::Microkernel::kEmpty, "empty"}, {cuda::Microkernel::kStamp, "stamp"},
          {cuda::Microkernel::kFill, "fill"},   {cuda::Microkernel::kRead, "read"},
          {cuda::Microkernel::kMma, "mma"},     {cuda::Microkernel::kWgmma, "wgmma"}};
      return artifact(names.at(kernel), cuda::microkernel_source(kernel).dynamic_shared_bytes, arch);
    };
    device_ = std::make_unique<cuda::CudaDevice>(api_, nullptr, 0, compile);
  }
  static Artifact artifact(const std::string& symbol, int dynamic_shared_bytes = 0, const std::string& arch = "sm_90") {
    Artifact made;
    made.cubin = "code";
    made.symbol = symbol;
    made.arch = arch;
    made.dynamic_shared_bytes = dynamic_shared_bytes;
    return made;
  }
  cuda::CudaDevice& operator*() { return *device_; }
  cuda::CudaDevice* operator->() { return device_.get(); }
  FakeDriver& driver() { return driver_; }
  const cuda::DriverApi& api() const { return api_; }
  void close() { device_.reset(); }

 private:
  FakeDriver driver_;
  cuda::DriverApi api_ = FakeDriver::api();
  std::unique_ptr<cuda::CudaDevice> device_;
};

}  // namespace flashcore::testing
