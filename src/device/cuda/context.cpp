#include "device/cuda/context.h"

#include "core/error.h"
#include "device/device.h"

namespace flashcore::cuda {
namespace {

bool is_capture_conflict(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

bool is_environment(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: return true;
    default: return false;
  }
}

std::string_view advice(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ": choose a smaller problem, or free memory on the GPU (nvidia-smi lists who uses it)";
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return ": this GPU or its driver does not take the compiled code; a driver older than the compiler is the usual "
             "reason";
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return ": another process holds the GPU exclusively";
    default: return "";
  }
}

}  // namespace

bool is_context_lost(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_UNKNOWN: return true;
    default: return false;
  }
}

void check(const DriverApi& api, CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.error_name(result, &name) != CUDA_SUCCESS || !name) name = "unknown error";
  if (api.error_string(result, &text) != CUDA_SUCCESS || !text) text = "no description";
  const std::string message = fmt::format("{} failed: {} ({} {})", what, text, name, result);
  if (is_context_lost(result)) throw DeviceFault(message);
  if (is_capture_conflict(result))
    throw_bad_input(
        "{}: a CUDA graph is being captured, and this call cannot be part of it; make it before or after the capture, "
        "or on the stream that is captured",
        message);
  if (is_environment(result)) throw_environment("{}{}", message, advice(result));
  throw_internal("{}", message);
}

KeepCurrentContext::KeepCurrentContext(const DriverApi* api) : api_(api) {
  if (api_ && api_->context_get_current(&before_) != CUDA_SUCCESS) api_ = nullptr;
}

KeepCurrentContext::~KeepCurrentContext() {
  if (api_) api_->context_set_current(before_);
}

RelaxedCapture::RelaxedCapture(const DriverApi& api)
    : api_(api), mode_(CU_STREAM_CAPTURE_MODE_RELAXED), exchanged_(api.exchange_capture_mode(&mode_) == CUDA_SUCCESS) {}

RelaxedCapture::~RelaxedCapture() {
  if (exchanged_) api_.exchange_capture_mode(&mode_);
}

Context::Context(const DriverApi& api, int ordinal) : api_(api) {
  const RelaxedCapture relaxed(api_);
  cuda::check(api_, api_.device_get(&device_, ordinal), fmt::format("opening cuda:{}", ordinal));
  cuda::check(api_, api_.primary_context_retain(&context_, device_),
              fmt::format("making a context on cuda:{}", ordinal));
  try {
    cuda::check(api_, api_.context_set_current(context_), "making the context current");
    cuda::check(api_, api_.stream_create(&stream_, CU_STREAM_NON_BLOCKING), "making a stream");
  } catch (...) {
    api_.primary_context_release(device_);
    throw;
  }
}

Context::~Context() {
  const RelaxedCapture relaxed(api_);
  // After a fault these fail, and there is nobody left to tell.
  api_.context_set_current(context_);
  api_.stream_destroy(stream_);
  api_.primary_context_release(device_);
}

const DriverApi& Context::use() const {
  cuda::check(api_, api_.context_set_current(context_), "making the context current");
  return api_;
}

// Asking first: most callers have the primary context current already, and setting costs more than asking.
Context::Scope::Scope(const Context& context) : api_(context.api_) {
  cuda::check(api_, api_.context_get_current(&before_), "asking for the current context");
  if (before_ == context.context_) return;
  cuda::check(api_, api_.context_set_current(context.context_), "making the context current");
  changed_ = true;
}

Context::Scope::~Scope() {
  if (changed_) api_.context_set_current(before_);
}

void Context::synchronize() const {
  const RelaxedCapture relaxed(api_);
  check(use().stream_synchronize(stream_), "work on the GPU");
}

}  // namespace flashcore::cuda
