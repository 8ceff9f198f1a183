#pragma once
// One GPU made current: its primary context and the single stream that everything of flashcore runs on.

#include <string_view>

#include "device/cuda/cuda_api.h"

namespace flashcore::cuda {

// Errors after which the context is lost: nothing of this process will run on the GPU again.
bool is_context_lost(CUresult result);

// Returns on success. DeviceFault if the context is lost; Error kEnvironment if the machine has to change (memory,
// driver); Error kInternal for a call that we made wrongly. `what` completes "... failed".
void check(const DriverApi& api, CUresult result, std::string_view what);

// Puts back, at its end, the context that was current on the calling thread at its start: for calls that a framework
// with several GPUs makes in the middle of its own work. Does nothing if `api` is null.
class KeepCurrentContext {
 public:
  explicit KeepCurrentContext(const DriverApi* api);
  ~KeepCurrentContext();
  KeepCurrentContext(const KeepCurrentContext&) = delete;
  KeepCurrentContext& operator=(const KeepCurrentContext&) = delete;

 private:
  const DriverApi* api_;
  CUcontext before_ = nullptr;
};

// Lets the calling thread allocate, load and wait while it lives, whatever is being captured into a CUDA graph, as
// PyTorch's allocator does. The driver forbids such calls otherwise, and the attempt alone ends the capture, since work
// that is no part of the graph is not repeated with it. Ours need not be: memory and kernels are made once and kept.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverApi& api);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverApi& api_;
  int mode_;  // this one's, then the one to go back to
  bool exchanged_;
};

// Shared by the device and by all that it hands out, so that the order of destruction does not matter.
class Context {
 public:
  Context(const DriverApi& api, int ordinal);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // The driver's table, with this context made current on the calling thread.
  const DriverApi& use() const;
  void check(CUresult result, std::string_view what) const { cuda::check(api_, result, what); }
  void synchronize() const;

  // For calls in the middle of somebody else's work: the context is current while the object lives, and what was
  // current before is current again after.
  class Scope {
   public:
    explicit Scope(const Context& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const DriverApi& api_;
    CUcontext before_ = nullptr;
    bool changed_ = false;
  };

  const DriverApi& api() const { return api_; }
  CUdevice device() const { return device_; }
  CUstream stream() const { return stream_; }

 private:
  const DriverApi& api_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace flashcore::cuda
