#pragma once
// A GPU as a Device. Memory, modules, timing and ceilings are in files of their own; this ties them to one context.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "device/cuda/clock_stamps.h"
#include "device/cuda/cuda_timer.h"
#include "device/cuda/nvml.h"
#include "device/device.h"

namespace flashcore::cuda {

// Compiles one of the measuring kernels for an architecture.
using MicrokernelCompiler = std::function<Artifact(Microkernel, const std::string& arch)>;

class CudaDevice final : public Device {
 public:
  // `api` and `nvml` must outlive the device; `nvml` may be null. Error kEnvironment if there is no GPU `ordinal`.
  CudaDevice(const DriverApi& api, const NvmlApi* nvml, int ordinal, MicrokernelCompiler compile);

  const DeviceInfo& info() const override { return info_; }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, std::size_t red_zone) override;
  void upload(void* destination, const void* host, std::size_t bytes) override;
  void download(void* host, const void* source, std::size_t bytes) override;
  void fill(void* destination, unsigned char byte, std::size_t bytes) override;
  void synchronize() override;
  std::unique_ptr<Module> load(const Artifact& artifact) override;
  void launch(const Module& module, const LaunchSpec& spec) override;
  void encode_tensor_maps(LaunchSpec& spec) override;
  void launch_on(void* stream, const Module& module, const LaunchSpec& spec,
                 std::span<const std::byte> params) override;
  void readdress_tensor_map(const TensorMapSpec& map, const void* address, std::span<std::byte> params) override;
  StreamOrder order_of(void* stream) override;
  void synchronize_stream(void* stream) override;
  std::unique_ptr<Timer> make_timer(std::span<const Launch> rotation, Regime regime, double sample_us) override;
  std::unique_ptr<Timer> make_foreign_timer(ForeignWork work) override;
  void idle(double milliseconds) override;
  EnvironmentReading read_environment() override;
  const Ceilings& ceilings() override;

  // For measuring: compiled and loaded on first use.
  std::shared_ptr<const CudaModule> microkernel(Microkernel kernel);
  std::size_t free_memory() const;
  const std::shared_ptr<const Context>& context() const { return context_; }

 private:
  void flush_cache();
  TimerTools timer_tools();

  std::shared_ptr<const Context> context_;
  MicrokernelCompiler compile_;
  std::optional<NvmlReader> nvml_;
  DeviceInfo info_;
  std::map<Microkernel, std::shared_ptr<const CudaModule>> microkernels_;
  std::shared_ptr<ClockStamps> stamps_;
  std::unique_ptr<CudaBuffer> flush_;
  std::optional<Ceilings> ceilings_;
};

// "NVIDIA GeForce RTX 4090" -> "rtx4090", "NVIDIA A100-SXM4-80GB" -> "a100".
std::string gpu_key(std::string_view name);
// Error kEnvironment, with the fix, if there is no driver or no such GPU.
std::unique_ptr<Device> open_cuda_device(int ordinal);
int cuda_device_count();  // 0 also where there is no driver

}  // namespace flashcore::cuda
