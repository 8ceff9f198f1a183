#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "core/error.h"
#include "device/cuda/cuda_ceilings.h"

namespace flashcore::cuda {
namespace {

// Smaller caches may hold more than twice the reported L2 of other levels; never flush with less than this.
constexpr std::size_t kMinFlushBytes = std::size_t{64} << 20;

int attribute(const DriverApi& api, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  check(api, api.device_attribute(&value, which, device), "reading what the GPU can do");
  return value;
}

// What only sharpens an expectation. 0 where a driver does not say (of GPUs without a memory of their own).
int attribute_or_zero(const DriverApi& api, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  return api.device_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

DeviceLimits read_limits(const DriverApi& api, CUdevice device) {
  DeviceLimits limits;
  limits.kind = DeviceKind::kCuda;
  limits.arch = 10 * attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  limits.multiprocessors = attribute(api, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  limits.shared_bytes_per_block = attribute(api, device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  limits.shared_bytes_per_multiprocessor =
      attribute(api, device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  limits.registers_per_multiprocessor = attribute(api, device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  limits.max_threads_per_block = attribute(api, device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  limits.max_threads_per_multiprocessor = attribute(api, device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  limits.l2_bytes = attribute(api, device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  limits.clock_mhz = attribute_or_zero(api, device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000.0;
  limits.dram_peak_gbps = dram_peak_gbps(attribute_or_zero(api, device, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / 1000.0,
                                         attribute_or_zero(api, device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH));
  return limits;
}

std::string driver_text(const DriverApi& api, const NvmlReader& nvml) {
  int version = 0;
  api.driver_version(&version);
  const std::string cuda = fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
  const std::string driver = nvml.driver_version();
  return driver.empty() ? cuda : fmt::format("{} ({})", driver, cuda);
}

}  // namespace

std::string gpu_key(std::string_view name) {
  static constexpr std::array kNoise = {"nvidia",   "geforce", "tesla",      "quadro",  "gpu",
                                        "graphics", "device",  "generation", "edition", "pg506"};
  std::string key, word;
  const auto finish = [&] {
    const bool memory = word.size() > 2 && word.ends_with("gb") && std::isdigit(static_cast<unsigned char>(word[0]));
    const bool noise = std::find(kNoise.begin(), kNoise.end(), word) != kNoise.end() || word.starts_with("hbm") ||
                       word.starts_with("sxm");
    if (!memory && !noise) key += word;
    word.clear();
  };
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else finish();
  }
  finish();
  return key.empty() ? "gpu" : key;
}

CudaDevice::CudaDevice(const DriverApi& api, const NvmlApi* nvml, int ordinal, MicrokernelCompiler compile)
    : context_(std::make_shared<const Context>(api, ordinal)), compile_(std::move(compile)) {
  const CUdevice device = context_->device();
  std::array<char, 256> name{};
  std::array<char, 64> bus{};
  std::size_t memory = 0;
  context_->check(api.device_name(name.data(), static_cast<int>(name.size()), device), "reading the GPU's name");
  context_->check(api.device_total_memory(&memory, device), "reading the GPU's memory size");
  if (api.device_pci_bus_id(bus.data(), static_cast<int>(bus.size()), device) != CUDA_SUCCESS) bus[0] = '\0';
  nvml_.emplace(nvml, bus.data());
  info_.limits = read_limits(api, device);
  info_.name = name.data();
  info_.key = gpu_key(info_.name);
  info_.id = fmt::format("cuda:{}", ordinal);
  info_.memory_bytes = static_cast<std::int64_t>(memory);
  info_.driver = driver_text(api, *nvml_);
}

std::unique_ptr<Buffer> CudaDevice::allocate(std::size_t bytes, std::size_t red_zone) {
  return std::make_unique<CudaBuffer>(context_, bytes, red_zone);
}

void CudaDevice::upload(void* destination, const void* host, std::size_t bytes) {
  cuda::upload(*context_, reinterpret_cast<CUdeviceptr>(destination), host, bytes);
}

void CudaDevice::download(void* host, const void* source, std::size_t bytes) {
  cuda::download(*context_, host, reinterpret_cast<CUdeviceptr>(source), bytes);
}

void CudaDevice::fill(void* destination, unsigned char byte, std::size_t bytes) {
  if (bytes == 0) return;
  const RelaxedCapture relaxed(context_->api());
  context_->check(
      context_->use().memset_bytes(reinterpret_cast<CUdeviceptr>(destination), byte, bytes, context_->stream()),
      "filling GPU memory");
}

void CudaDevice::synchronize() { context_->synchronize(); }

std::unique_ptr<Module> CudaDevice::load(const Artifact& artifact) {
  return std::make_unique<CudaModule>(context_, artifact);
}

void CudaDevice::launch(const Module& module, const LaunchSpec& spec) {
  const auto* kernel = dynamic_cast<const CudaModule*>(&module);
  FC_CHECK(kernel != nullptr);
  kernel->launch(spec);
}

void CudaDevice::encode_tensor_maps(LaunchSpec& spec) {
  context_->use();
  for (const TensorMapSpec& map : spec.tensor_maps) encode_tensor_map(*context_, map, spec.params);
  spec.tensor_maps.clear();
}

void CudaDevice::launch_on(void* stream, const Module& module, const LaunchSpec& spec,
                           std::span<const std::byte> params) {
  const auto* kernel = dynamic_cast<const CudaModule*>(&module);
  FC_CHECK(kernel != nullptr);
  const Context::Scope current(*context_);
  kernel->launch_on(static_cast<CUstream>(stream), spec, params);
}

void CudaDevice::readdress_tensor_map(const TensorMapSpec& map, const void* address, std::span<std::byte> params) {
  const Context::Scope current(*context_);
  const DriverApi& api = context_->api();
  FC_CHECK(map.param_offset + sizeof(CUtensorMap) <= params.size());
  auto* encoded = reinterpret_cast<CUtensorMap*>(params.data() + map.param_offset);
  TensorMapSpec moved = map;
  moved.address = address;
  if (api.tensor_map_replace_address && reinterpret_cast<std::uintptr_t>(encoded) % alignof(CUtensorMap) == 0) {
    const CUresult result = api.tensor_map_replace_address(encoded, moved.first_element());
    if (result != CUDA_SUCCESS) context_->check(result, "giving a tensor map another address");
    return;
  }
  encode_tensor_map(*context_, moved, params);
}

StreamOrder CudaDevice::order_of(void* stream) {
  const Context::Scope current(*context_);
  const DriverApi& api = context_->api();
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  context_->check(api.stream_is_capturing(static_cast<CUstream>(stream), &status), "looking at a stream");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) return {0, true};
  unsigned long long id = 0;
  if (api.stream_id) {
    context_->check(api.stream_id(static_cast<CUstream>(stream), &id), "looking at a stream");
  } else {
    // Handles serve older drivers, where each thread's own default stream has the same, CU_STREAM_PER_THREAD.
    constexpr unsigned long long kPerThreadStream = 2;
    id = reinterpret_cast<std::uintptr_t>(stream);
    if (id == kPerThreadStream) id += std::hash<std::thread::id>{}(std::this_thread::get_id()) | 1;
  }
  return {id, false};
}

void CudaDevice::synchronize_stream(void* stream) {
  const Context::Scope current(*context_);
  const RelaxedCapture relaxed(context_->api());
  // Waiting for a stream that is captured would end the capture.
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = context_->api().stream_is_capturing(static_cast<CUstream>(stream), &status);
  if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE) result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (result == CUDA_SUCCESS) result = context_->api().stream_synchronize(static_cast<CUstream>(stream));
  context_->check(result, "waiting for a stream");
}

TimerTools CudaDevice::timer_tools() {
  if (!stamps_)
    stamps_ = std::make_shared<ClockStamps>(context_, microkernel(Microkernel::kStamp), info_.limits.multiprocessors);
  return {context_, stamps_, [this] { flush_cache(); }};
}

std::unique_ptr<Timer> CudaDevice::make_timer(std::span<const Launch> rotation, Regime regime, double sample_us) {
  return std::make_unique<CudaTimer>(timer_tools(), std::vector<Launch>(rotation.begin(), rotation.end()), regime,
                                     sample_us);
}

std::unique_ptr<Timer> CudaDevice::make_foreign_timer(ForeignWork work) {
  if (!work.graph)
    throw_bad_input("{} times captured graphs, and there is none; give a CUgraphExec (cudaGraphExec_t)", info_.id);
  return std::make_unique<ForeignGraphTimer>(timer_tools(), static_cast<CUgraphExec>(work.graph), work.launches);
}

// Reads rather than writes: dirty lines would still be going to memory while the timed kernel runs.
void CudaDevice::flush_cache() {
  if (!flush_) {
    const std::size_t bytes =
        std::max(kMinFlushBytes, static_cast<std::size_t>(info_.limits.l2_bytes) * 5 / 2) / 16 * 16;
    flush_ = std::make_unique<CudaBuffer>(context_, bytes, 0);
    fill(flush_->data(), 0x3c, bytes);
  }
  enqueue_read(*this, *flush_, flush_->size(), 1);
}

void CudaDevice::idle(double milliseconds) {
  context_->synchronize();
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
}

EnvironmentReading CudaDevice::read_environment() { return nvml_->read(); }

const Ceilings& CudaDevice::ceilings() {
  if (!ceilings_) ceilings_ = measure_ceilings(*this);
  return *ceilings_;
}

std::shared_ptr<const CudaModule> CudaDevice::microkernel(Microkernel kernel) {
  std::shared_ptr<const CudaModule>& module = microkernels_[kernel];
  // wgmma exists only in the "a" variant of its architecture.
  const std::string arch = fmt::format("sm_{}{}", info_.limits.arch, kernel == Microkernel::kWgmma ? "a" : "");
  if (!module) module = std::make_shared<const CudaModule>(context_, compile_(kernel, arch));
  return module;
}

std::size_t CudaDevice::free_memory() const {
  std::size_t free = 0, total = 0;
  context_->check(context_->use().mem_info(&free, &total), "reading the GPU's free memory");
  return free;
}

int cuda_device_count() {
  const DriverApi* api = driver_api();
  int count = 0;
  return api && api->device_count(&count) == CUDA_SUCCESS ? count : 0;
}

std::unique_ptr<Device> open_cuda_device(int ordinal) {
  std::string why;
  const DriverApi* api = driver_api(&why);
  if (!api)
    throw_environment("cuda:{} needs an NVIDIA driver, and there is none ({}). Install one, or use the device \"cpu\"",
                      ordinal, why);
  const int count = cuda_device_count();
  if (count == 0)
    throw_environment(
        "cuda:{} is not here: the NVIDIA driver shows no GPU. Look at CUDA_VISIBLE_DEVICES, or use the device \"cpu\"",
        ordinal);
  if (ordinal >= count)
    throw_environment(
        "cuda:{} is not here: the NVIDIA driver shows cuda:0 to cuda:{}. Choose one of them, or look at "
        "CUDA_VISIBLE_DEVICES",
        ordinal, count - 1);
  auto compiler = std::make_shared<std::unique_ptr<Compiler>>();
  const auto compile = [compiler](Microkernel kernel, const std::string& arch) {
    if (!*compiler) *compiler = open_compiler();
    return (*compiler)->compile(microkernel_source(kernel), microkernel_sources(), arch);
  };
  return std::make_unique<CudaDevice>(*api, nvml_api(), ordinal, compile);
}

}  // namespace flashcore::cuda
