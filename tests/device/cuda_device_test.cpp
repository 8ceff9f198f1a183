#include "device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "device/cuda/cuda_ceilings.h"
#include "device/fake_driver.h"

namespace flashcore::cuda {
namespace {

using flashcore::testing::FakeDriver;
using flashcore::testing::FakeGpu;

ErrorKind kind_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kBadInput;
}

LaunchSpec spec_of(unsigned grid, unsigned block, unsigned shared = 0, std::size_t params = 8) {
  LaunchSpec spec;
  spec.grid.x = grid;
  spec.block.x = block;
  spec.shared_bytes = shared;
  spec.params.resize(params);
  return spec;
}

TEST(CudaErrors, ThoseThatLoseTheContextAreFaults) {
  FakeGpu gpu;
  for (const CUresult result : {214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999}) {
    EXPECT_TRUE(is_context_lost(result)) << result;
    EXPECT_THROW(check(gpu.api(), result, "a test"), DeviceFault) << result;
  }
  EXPECT_NO_THROW(check(gpu.api(), CUDA_SUCCESS, "a test"));
}

TEST(CudaErrors, TheOthersSayWhoHasToAct) {
  FakeGpu gpu;
  EXPECT_EQ(kind_of([&] { check(gpu.api(), CUDA_ERROR_OUT_OF_MEMORY, "a test"); }), ErrorKind::kEnvironment);
  EXPECT_EQ(kind_of([&] { check(gpu.api(), CUDA_ERROR_NO_BINARY_FOR_GPU, "a test"); }), ErrorKind::kEnvironment);
  EXPECT_EQ(kind_of([&] { check(gpu.api(), 1, "a test"); }), ErrorKind::kInternal);
  EXPECT_EQ(kind_of([&] { check(gpu.api(), 701, "a test"); }), ErrorKind::kInternal);
  try {
    check(gpu.api(), 700, "launching forward");
  } catch (const DeviceFault& fault) {
    EXPECT_EQ(std::string(fault.what()), "launching forward failed: as planned (CUDA_ERROR_ILLEGAL_ADDRESS 700)");
  }
}

TEST(CudaErrors, AFaultOfAnEarlierLaunchSurfacesAtSynchronize) {
  FakeGpu gpu;
  const auto module = gpu->load(FakeGpu::artifact("forward"));
  gpu->launch(*module, spec_of(1, 32));
  gpu.driver().failures["stream_synchronize"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_THROW(gpu->synchronize(), DeviceFault);
  gpu.driver().failures["context_set_current"] = CUDA_ERROR_CONTEXT_IS_DESTROYED;  // destructors must not throw
}

TEST(CudaDeviceInfo, ComesFromTheDriver) {
  FakeGpu gpu;
  const DeviceInfo& info = gpu->info();
  EXPECT_EQ(info.key, "h200");
  EXPECT_EQ(info.id, "cuda:0");
  EXPECT_EQ(info.name, "NVIDIA H200");
  EXPECT_EQ(info.driver, "CUDA 13.0");
  EXPECT_EQ(info.limits.arch, 90);
  EXPECT_EQ(info.limits.multiprocessors, 4);
  EXPECT_EQ(info.limits.shared_bytes_per_block, 232448);
  EXPECT_EQ(info.limits.l2_bytes, 1 << 20);
  EXPECT_EQ(info.limits.clock_mhz, 1980);
  EXPECT_EQ(info.limits.dram_peak_gbps, find_gpu_model("h200")->dram_peak_gbps);
}

TEST(CudaDeviceInfo, ADriverThatDoesNotSayIsNoError) {
  FakeGpu gpu({13, 37});
  EXPECT_EQ(gpu->info().limits.clock_mhz, 0);
  EXPECT_EQ(gpu->info().limits.dram_peak_gbps, 0);
  EXPECT_EQ(gpu->info().limits.multiprocessors, 4);
}

TEST(CudaDeviceInfo, KeysAreShortAndFileSafe) {
  EXPECT_EQ(gpu_key("NVIDIA H200"), "h200");
  EXPECT_EQ(gpu_key("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(gpu_key("NVIDIA H100 PCIe"), "h100pcie");
  EXPECT_EQ(gpu_key("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(gpu_key("NVIDIA GeForce RTX 4090"), "rtx4090");
  EXPECT_EQ(gpu_key("NVIDIA GeForce RTX 4090 Laptop GPU"), "rtx4090laptop");
  EXPECT_EQ(gpu_key("NVIDIA L40S"), "l40s");
  EXPECT_EQ(gpu_key("NVIDIA RTX 6000 Ada Generation"), "rtx6000ada");
  EXPECT_EQ(gpu_key(""), "gpu");
}

TEST(CudaMemory, RoundTripsAndAligns) {
  FakeGpu gpu;
  for (const std::size_t red_zone : {0, 1, 300}) {
    const auto buffer = gpu->allocate(1000, red_zone);
    EXPECT_EQ(buffer->size(), 1000u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 256, 0u);
    std::vector<char> sent(1000, 'x'), received(1000);
    gpu->upload(buffer->data(), sent.data(), sent.size());
    gpu->download(received.data(), buffer->data(), received.size());
    EXPECT_EQ(sent, received);
    gpu->fill(buffer->data(), 7, 1000);
    gpu->download(received.data(), buffer->data(), received.size());
    EXPECT_EQ(received, std::vector<char>(1000, 7));
    EXPECT_TRUE(buffer->red_zones_intact());
  }
}

TEST(CudaMemory, OneByteOutOfBoundsShows) {
  FakeGpu gpu;
  for (const std::ptrdiff_t at : {-256, -100, -1, 1000, 1001, 1255}) {
    const auto buffer = gpu->allocate(1000, 256);
    char* data = static_cast<char*>(buffer->data());
    data[0] = data[999] = 1;
    EXPECT_TRUE(buffer->red_zones_intact());
    data[at] = static_cast<char>(data[at] ^ 1);
    EXPECT_FALSE(buffer->red_zones_intact()) << at;
  }
}

TEST(CudaMemory, AConstantWrittenOverTheZoneShows) {
  FakeGpu gpu;
  for (int value = 0; value < 256; ++value) {
    const auto buffer = gpu->allocate(64, 256);
    std::memset(static_cast<char*>(buffer->data()) + 64, value, 4);
    EXPECT_FALSE(buffer->red_zones_intact()) << value;
  }
}

TEST(CudaMemory, EmptyBuffersAndFailuresLeakNothing) {
  FakeGpu gpu;
  EXPECT_NE(gpu->allocate(0, 0)->data(), nullptr);
  gpu.driver().failures["copy_to_device"] = 1;
  EXPECT_THROW(gpu->allocate(10, 16), Error);
  EXPECT_TRUE(gpu.driver().memory.empty());
  gpu.driver().failures = {{"mem_alloc", CUDA_ERROR_OUT_OF_MEMORY}};
  EXPECT_EQ(kind_of([&] { gpu->allocate(10, 0); }), ErrorKind::kEnvironment);
}

TEST(CudaMemory, BuffersAndModulesMayOutliveTheDevice) {
  FakeGpu gpu;
  auto buffer = gpu->allocate(10, 16);
  auto module = gpu->load(FakeGpu::artifact("forward"));
  gpu.close();
  EXPECT_EQ(gpu.driver().count("primary_context_release"), 0);
  buffer.reset();
  module.reset();
  EXPECT_EQ(gpu.driver().count("mem_free"), 1);
  EXPECT_EQ(gpu.driver().count("module_unload"), 1);
  EXPECT_EQ(gpu.driver().count("primary_context_release"), 1);
}

TEST(CudaModules, RaiseTheLimitOfSharedMemory) {
  FakeGpu gpu;
  const auto module = gpu->load(FakeGpu::artifact("forward", 100000));
  EXPECT_EQ(gpu.driver().attribute_set.at("forward/8"), 100000);
  gpu->launch(*module, spec_of(1, 128, 100000));
  EXPECT_EQ(gpu.driver().launches.back().config.shared_bytes, 100000u);
  EXPECT_EQ(kind_of([&] { gpu->launch(*module, spec_of(1, 128, 100001)); }), ErrorKind::kInternal);
  EXPECT_THROW(gpu->load(Artifact{}), Error);
}

TEST(CudaModules, AMissingKernelUnloadsTheModule) {
  FakeGpu gpu;
  gpu.driver().failures["module_function"] = CUDA_ERROR_NOT_FOUND;
  EXPECT_THROW(gpu->load(FakeGpu::artifact("forward")), Error);
  EXPECT_EQ(gpu.driver().count("module_unload"), 1);
}

TEST(CudaModules, ParametersOfTheWrongSizeAreRefused) {
  FakeGpu gpu;
  gpu.driver().param_bytes = 176;
  const auto module = gpu->load(FakeGpu::artifact("forward"));
  EXPECT_EQ(kind_of([&] { gpu->launch(*module, spec_of(1, 32, 0, 175)); }), ErrorKind::kInternal);
  EXPECT_NO_THROW(gpu->launch(*module, spec_of(1, 32, 0, 176)));
}

TEST(CudaLaunches, GeometryReachesTheDriver) {
  LaunchSpec spec;
  spec.grid = {2, 3, 4};
  spec.block = {32, 2, 1};
  spec.shared_bytes = 99;
  LaunchCall call;
  assemble(call, spec, FakeDriver::handle<CUstream>(9));
  EXPECT_EQ(call.config.grid_x, 2u);
  EXPECT_EQ(call.config.grid_y, 3u);
  EXPECT_EQ(call.config.grid_z, 4u);
  EXPECT_EQ(call.config.block_x, 32u);
  EXPECT_EQ(call.config.block_y, 2u);
  EXPECT_EQ(call.config.shared_bytes, 99u);
  EXPECT_EQ(call.config.stream, FakeDriver::handle<CUstream>(9));
  EXPECT_EQ(call.config.attribute_count, 0u) << "no cluster, no attribute: sm_80 refuses it";
}

TEST(CudaLaunches, ClustersBecomeAnAttribute) {
  FakeGpu gpu;
  const auto module = gpu->load(FakeGpu::artifact("forward"));
  LaunchSpec spec = spec_of(8, 128);
  spec.cluster = {2, 1, 1};
  gpu->launch(*module, spec);
  const auto& launch = gpu.driver().launches.back();
  ASSERT_EQ(launch.attributes.size(), 1u);
  EXPECT_EQ(launch.attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  EXPECT_EQ(launch.attributes[0].value.cluster.x, 2u);
  EXPECT_EQ(launch.attributes[0].value.cluster.y, 1u);
  EXPECT_FALSE(gpu.driver().attribute_set.contains("forward/14"));
  spec = spec_of(16, 128);
  spec.cluster = {16, 1, 1};
  gpu->launch(*module, spec);
  EXPECT_EQ(gpu.driver().attribute_set.at("forward/14"), 1);
}

TEST(CudaLaunches, EarlyLaunchIsAnAttributeBesideTheCluster) {
  FakeGpu gpu;
  const auto module = gpu->load(FakeGpu::artifact("forward"));
  LaunchSpec spec = spec_of(8, 128);
  spec.programmatic = true;
  gpu->launch(*module, spec);
  ASSERT_EQ(gpu.driver().launches.back().attributes.size(), 1u);
  spec.cluster = {2, 1, 1};
  gpu->launch(*module, spec);
  const auto& attributes = gpu.driver().launches.back().attributes;
  ASSERT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes[0].id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  EXPECT_EQ(attributes[1].id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  EXPECT_EQ(attributes[1].value.programmatic_allowed, 1);
}

TEST(CudaLaunches, ImpossibleGeometryIsRefusedBeforeTheDriver) {
  LaunchCall call;
  LaunchSpec spec = spec_of(0, 32);
  EXPECT_THROW(assemble(call, spec, nullptr), Error);
  spec = spec_of(1, 0);
  EXPECT_THROW(assemble(call, spec, nullptr), Error);
  spec = spec_of(3, 32);
  spec.cluster = {2, 1, 1};
  EXPECT_THROW(assemble(call, spec, nullptr), Error);
}

TEST(CudaCeilings, ComeFromWhatWasTimed) {
  FakeGpu gpu;
  gpu.driver().kernel_us = 50;
  const Ceilings ceilings = measure_ceilings(*gpu, 0);
  EXPECT_NEAR(ceilings.empty_launch_us, 50, 1e-3);
  // 256 iterations took 50 us in trial, so 3000 us would take 15360; the fake takes 50 us all the same.
  EXPECT_NEAR(ceilings.matmul_tflops_16bit, kWgmmaFlopsPerIteration * 15360 * 4 / 50 / 1e6,
              1e-3 * ceilings.matmul_tflops_16bit);
  EXPECT_NEAR(ceilings.read_gbps, (1 << 20) / 100e3, 1e-3 * ceilings.read_gbps);  // a quarter of 4 MB free, 100 us
  EXPECT_NEAR(ceilings.cache_read_gbps, 64.0 * (1 << 19) / 100e3, 1e-3 * ceilings.cache_read_gbps);
}

TEST(Nvml, ReasonsAreWords) {
  EXPECT_EQ(throttle_words(0), "none");
  EXPECT_EQ(throttle_words(4), "sw_power_cap");
  EXPECT_EQ(throttle_words(0x24), "sw_power_cap+sw_thermal");
  EXPECT_EQ(throttle_words(0x100000), "0x100000");
}

TEST(Nvml, WithoutItNothingIsKnown) {
  FakeGpu gpu;
  const EnvironmentReading reading = gpu->read_environment();
  EXPECT_EQ(reading.power_w, 0);
  EXPECT_EQ(reading.throttle_reasons, "");
}

CUresult write_address(CUtensorMap* map, const void* address) {
  *map = {};
  std::memcpy(static_cast<void*>(map), &address, sizeof address);
  return CUDA_SUCCESS;
}

// Element 0 of a map may lie before the tensor (ragged batches): wherever the address is given.
TEST(CudaDevice, ATensorMapBeginsAtItsOffset) {
  FakeDriver driver;
  DriverApi api = FakeDriver::api();
  api.tensor_map_encode = [](CUtensorMap* map, CUtensorMapDataType, std::uint32_t, void* address, auto...) {
    return write_address(map, address);
  };
  alignas(64) std::byte params[128];
  const auto written = [&params] {
    std::uintptr_t address = 0;
    std::memcpy(&address, params, sizeof address);
    return address;
  };
  TensorMapSpec map;
  map.offset_bytes = -0x300;
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<const void*>(address); };
  for (const bool replaces : {false, true}) {
    if (replaces)
      api.tensor_map_replace_address = [](CUtensorMap* to, void* address) { return write_address(to, address); };
    else api.tensor_map_replace_address = nullptr;
    CudaDevice device(api, nullptr, 0, nullptr);
    LaunchSpec spec = spec_of(1, 32, 0, 128);
    map.address = at(0x1000);
    spec.tensor_maps = {map};
    device.encode_tensor_maps(spec);
    std::memcpy(params, spec.params.data(), sizeof params);
    EXPECT_EQ(written(), 0xd00u);
    device.readdress_tensor_map(map, at(0x2000), params);
    EXPECT_EQ(written(), 0x1d00u);
  }
}

}  // namespace
}  // namespace flashcore::cuda
