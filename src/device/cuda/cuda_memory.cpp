#include "device/cuda/cuda_memory.h"

#include "core/error.h"
#include "device/red_zone.h"

namespace flashcore::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

std::vector<unsigned char> pattern(std::size_t bytes) {
  std::vector<unsigned char> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = std::to_integer<unsigned char>(red_zone_byte(i));
  return values;
}

bool holds_pattern(const Context& context, CUdeviceptr at, std::size_t bytes) {
  if (bytes == 0) return true;
  std::vector<unsigned char> found(bytes);
  download(context, found.data(), at, bytes);
  return found == pattern(bytes);
}

}  // namespace

void upload(const Context& context, CUdeviceptr destination, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  const RelaxedCapture relaxed(context.api());
  context.check(context.use().copy_to_device(destination, host, bytes, context.stream()), "copying to the GPU");
  context.synchronize();
}

void download(const Context& context, void* host, CUdeviceptr source, std::size_t bytes) {
  if (bytes == 0) return;
  const RelaxedCapture relaxed(context.api());
  context.check(context.use().copy_to_host(host, source, bytes, context.stream()), "copying from the GPU");
  context.synchronize();
}

CudaBuffer::CudaBuffer(std::shared_ptr<const Context> context, std::size_t bytes, std::size_t red_zone)
    : context_(std::move(context)),
      size_(bytes),
      before_((red_zone + kAlignment - 1) / kAlignment * kAlignment),
      after_(before_) {
  // The driver refuses zero bytes, and a problem of length zero still needs an address.
  const std::size_t total = std::max<std::size_t>(before_ + bytes + after_, 1);
  if (total < bytes) throw_environment("an allocation of {} bytes is beyond any address space", bytes);
  const RelaxedCapture relaxed(context_->api());
  context_->check(context_->use().mem_alloc(&base_, total), fmt::format("allocating {} bytes on the GPU", total));
  try {
    const std::vector<unsigned char> zone = pattern(before_);
    upload(*context_, base_, zone.data(), before_);
    upload(*context_, base_ + before_ + size_, zone.data(), after_);
  } catch (...) {
    context_->use().mem_free(base_);
    throw;
  }
}

CudaBuffer::~CudaBuffer() {
  const RelaxedCapture relaxed(context_->api());
  try {
    context_->use().mem_free(base_);
  } catch (const std::exception&) {  // the context is lost, and its memory with it
  }
}

bool CudaBuffer::red_zones_intact() const {
  return holds_pattern(*context_, base_, before_) && holds_pattern(*context_, base_ + before_ + size_, after_);
}

}  // namespace flashcore::cuda
