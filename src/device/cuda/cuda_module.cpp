#include "device/cuda/cuda_module.h"

#include <cstring>

#include "core/error.h"

namespace flashcore::cuda {
namespace {

// Clusters beyond this need a kernel attribute; smaller ones run on every Hopper and Blackwell GPU.
constexpr unsigned kPortableClusterSize = 8;

unsigned volume(const Dim3& dim) { return dim.x * dim.y * dim.z; }

}  // namespace

void assemble(LaunchCall& call, const LaunchSpec& spec, CUstream stream) {
  if (volume(spec.block) == 0 || spec.grid.x == 0 || spec.grid.y == 0 || spec.grid.z == 0)
    throw_internal("a launch of {}x{}x{} blocks of {}x{}x{} threads is empty", spec.grid.x, spec.grid.y, spec.grid.z,
                   spec.block.x, spec.block.y, spec.block.z);
  const Dim3& cluster = spec.cluster;
  if (volume(cluster) == 0 || spec.grid.x % cluster.x || spec.grid.y % cluster.y || spec.grid.z % cluster.z)
    throw_internal("a grid of {}x{}x{} blocks is not made of clusters of {}x{}x{}", spec.grid.x, spec.grid.y,
                   spec.grid.z, cluster.x, cluster.y, cluster.z);
  CUlaunchConfig& config = call.config;
  config.grid_x = spec.grid.x, config.grid_y = spec.grid.y, config.grid_z = spec.grid.z;
  config.block_x = spec.block.x, config.block_y = spec.block.y, config.block_z = spec.block.z;
  config.shared_bytes = spec.shared_bytes;
  config.stream = stream;
  config.attributes = call.attributes;
  if (volume(cluster) > 1) {
    CUlaunchAttribute& attribute = call.attributes[config.attribute_count++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.cluster = {cluster.x, cluster.y, cluster.z};
  }
  if (spec.programmatic) {
    CUlaunchAttribute& attribute = call.attributes[config.attribute_count++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmatic_allowed = 1;
  }
}

CudaModule::CudaModule(std::shared_ptr<const Context> context, const Artifact& artifact)
    : context_(std::move(context)) {
  if (artifact.cubin.empty())
    throw_internal("{} has no GPU code: it was compiled for {}", artifact.symbol, artifact.arch);
  const RelaxedCapture relaxed(context_->api());
  const DriverApi& api = context_->use();
  context_->check(api.module_load(&module_, artifact.cubin.data()),
                  fmt::format("loading {} ({})", artifact.symbol, artifact.arch));
  try {
    kernels_.push_back(find_kernel(artifact));
    for (const KernelFacts& more : artifact.more_kernels) kernels_.push_back(find_kernel(more));
  } catch (...) {
    api.module_unload(module_);
    throw;
  }
}

CudaModule::Kernel CudaModule::find_kernel(const KernelFacts& facts) const {
  const DriverApi& api = context_->api();
  Kernel kernel;
  kernel.symbol = facts.symbol;
  context_->check(api.module_function(&kernel.function, module_, kernel.symbol.c_str()), "finding " + kernel.symbol);
  kernel.shared_limit = facts.dynamic_shared_bytes;
  if (kernel.shared_limit > 0)
    context_->check(api.function_set_attribute(kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                               kernel.shared_limit),
                    fmt::format("giving {} {} bytes of dynamic shared memory", kernel.symbol, kernel.shared_limit));
  std::size_t offset = 0;
  if (api.function_param_info)
    kernel.param_bytes_known =
        api.function_param_info(kernel.function, 0, &offset, &kernel.param_bytes) == CUDA_SUCCESS;
  return kernel;
}

CudaModule::~CudaModule() {
  const RelaxedCapture relaxed(context_->api());
  try {
    context_->use().module_unload(module_);
  } catch (const std::exception&) {  // the context is lost, and its modules with it
  }
}

void CudaModule::launch(const LaunchSpec& spec) const {
  context_->use();
  launch_on(context_->stream(), spec, spec.params);
}

void CudaModule::launch_on(CUstream stream, const LaunchSpec& spec, std::span<const std::byte> given) const {
  if (spec.kernel >= kernels_.size())
    throw_internal("kernel {} of a module that has {} was launched", spec.kernel, kernels_.size());
  const Kernel& kernel = kernels_[spec.kernel];
  LaunchCall call;
  assemble(call, spec, stream);
  if (static_cast<int>(spec.shared_bytes) > kernel.shared_limit)
    throw_internal("{} was compiled for {} bytes of dynamic shared memory and launched with {}", kernel.symbol,
                   kernel.shared_limit, spec.shared_bytes);
  // The driver copies as many bytes as the kernel's parameter has, so too few would read past the end.
  if (kernel.param_bytes_known && given.size() != kernel.param_bytes)
    throw_internal("{} takes {} bytes of parameters and was given {}", kernel.symbol, kernel.param_bytes, given.size());
  const DriverApi& api = context_->api();
  if (volume(spec.cluster) > kPortableClusterSize && !kernel.large_clusters) {
    const RelaxedCapture relaxed(api);
    context_->check(api.function_set_attribute(kernel.function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
                    "allowing a large cluster");
    kernel.large_clusters = true;
  }
  void* params[] = {const_cast<std::byte*>(given.data())};
  const CUresult result = api.launch_kernel(&call.config, kernel.function, given.empty() ? nullptr : params, nullptr);
  // Formatting what was to be launched would cost as much as a launch.
  if (result != CUDA_SUCCESS)
    context_->check(
        result, fmt::format("launching {} with {}x{}x{} blocks of {} threads, {} bytes of shared memory", kernel.symbol,
                            spec.grid.x, spec.grid.y, spec.grid.z, volume(spec.block), spec.shared_bytes));
}

namespace {

CUtensorMapSwizzle swizzle_mode(TensorSwizzle swizzle) {
  switch (swizzle) {
    case TensorSwizzle::kNone: return CU_TENSOR_MAP_SWIZZLE_NONE;
    case TensorSwizzle::k32: return CU_TENSOR_MAP_SWIZZLE_32B;
    case TensorSwizzle::k64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case TensorSwizzle::k128: return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  throw_internal("no swizzle of {} bytes", static_cast<unsigned>(swizzle));
}

CUtensorMapDataType data_type(TensorElement element) {
  switch (element) {
    case TensorElement::kFloat16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case TensorElement::kBFloat16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case TensorElement::kByte: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
  throw_internal("no tensor element {}", static_cast<unsigned>(element));
}

}  // namespace

void encode_tensor_map(const Context& context, const TensorMapSpec& map, std::span<std::byte> params) {
  const DriverApi& api = context.api();
  if (!api.tensor_map_encode)
    throw_environment("the NVIDIA driver is older than CUDA 12.0 and cannot encode tensor maps; update it");
  if (map.param_offset + sizeof(CUtensorMap) > params.size())
    throw_internal("a tensor map at byte {} does not fit {} bytes of parameters", map.param_offset, params.size());
  constexpr std::uint32_t kUnitStrides[4] = {1, 1, 1, 1};
  CUtensorMap encoded;
  const CUtensorMapDataType type = data_type(map.element);
  // A tile is 128 bytes wide, and so is what L2 fetches where it misses: 256 would bring half a row of the next one
  // too. Decoding read DRAM 7% slower with it (261 against 242 us), and nothing else gained.
  const CUresult result =
      api.tensor_map_encode(&encoded, type, 4, map.first_element(), map.extents, map.strides_bytes, map.box,
                            kUnitStrides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(map.swizzle),
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  context.check(result,
                fmt::format("encoding a tensor map of {}x{}x{}x{} elements, strides {} {} {} bytes, box {}x{}",
                            map.extents[0], map.extents[1], map.extents[2], map.extents[3], map.strides_bytes[0],
                            map.strides_bytes[1], map.strides_bytes[2], map.box[0], map.box[1]));
  std::memcpy(params.data() + map.param_offset, &encoded, sizeof(encoded));
}

}  // namespace flashcore::cuda
