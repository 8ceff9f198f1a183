#pragma once
// A module of compiled kernels on the GPU, and the assembly of its launches.

#include <memory>
#include <string>
#include <vector>

#include "device/cuda/context.h"
#include "device/device.h"

namespace flashcore::cuda {

// What cuLaunchKernelEx is handed. Holds its own attributes, so it must not move once assembled into `config`.
struct LaunchCall {
  CUlaunchConfig config{};
  CUlaunchAttribute attributes[2]{};
};
// Error kInternal: an empty grid or block, or a grid that the cluster does not divide.
void assemble(LaunchCall& call, const LaunchSpec& spec, CUstream stream);

class CudaModule final : public Module {
 public:
  CudaModule(std::shared_ptr<const Context> context, const Artifact& artifact);
  ~CudaModule() override;
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  void launch(const LaunchSpec& spec) const;
  // With other parameter bytes than the spec's, on any stream of the current context.
  void launch_on(CUstream stream, const LaunchSpec& spec, std::span<const std::byte> params) const;

 private:
  struct Kernel {
    CUfunction function = nullptr;
    std::string symbol;
    std::size_t param_bytes = 0;     // of the kernel's one parameter
    bool param_bytes_known = false;  // the driver is new enough to say
    int shared_limit = 0;
    mutable bool large_clusters = false;  // asked for already
  };
  Kernel find_kernel(const KernelFacts& facts) const;

  std::shared_ptr<const Context> context_;
  CUmodule module_ = nullptr;
  std::vector<Kernel> kernels_;  // by LaunchSpec::kernel
};

// Writes the 128 bytes of an encoded tensor map into `params`. Error kEnvironment if the driver knows no tensor maps.
void encode_tensor_map(const Context& context, const TensorMapSpec& map, std::span<std::byte> params);

}  // namespace flashcore::cuda
