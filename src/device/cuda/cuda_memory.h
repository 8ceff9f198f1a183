#pragma once
// Device memory between red zones, and the byte traffic with the host.

#include <memory>

#include "device/cuda/context.h"
#include "device/device.h"

namespace flashcore::cuda {

// All on the context's stream, so after the launches enqueued before; all wait until the bytes have moved.
void upload(const Context& context, CUdeviceptr destination, const void* host, std::size_t bytes);
void download(const Context& context, void* host, CUdeviceptr source, std::size_t bytes);

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(std::shared_ptr<const Context> context, std::size_t bytes, std::size_t red_zone);
  ~CudaBuffer() override;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  void* data() const override { return reinterpret_cast<void*>(base_ + before_); }
  std::size_t size() const override { return size_; }
  bool red_zones_intact() const override;
  CUdeviceptr address() const { return base_ + before_; }

 private:
  std::shared_ptr<const Context> context_;
  CUdeviceptr base_ = 0;
  std::size_t size_ = 0;
  std::size_t before_ = 0, after_ = 0;  // red-zone bytes; the one behind starts at the very next byte
};

}  // namespace flashcore::cuda
