#pragma once
// Work that may crash, done in forked children: the resource gate over many candidates without a device. NVRTC has been
// seen to end its process on malformed asm; here that is a result like any other. Candidates that run on a device go
// through lab/process/worker.h instead.

#include <cstdint>
#include <functional>
#include <string>

namespace flashcore {

struct Isolated {
  bool completed = false;
  std::string output;   // what body returned
  std::string failure;  // "crashed with SIGSEGV", "still running after 60 s, stopped", "threw: ..."
};

struct IsolateOptions {
  int parallel = 1;             // children at a time
  int batch = 1;                // items one child does in a row: spreads the cost of loading a compiler
  double timeout_seconds = 60;  // of one item
};

// Calls body(i) for 0 <= i < count in children, and done(i, result) here, in the order they finish. A child that dies
// fails only the item in hand; the rest of its batch goes to a new child. `stop` is polled; when true no new item is
// started and those in hand are ended without a result. Fork carries over only the calling thread: call it before
// other threads hold locks. Error kEnvironment if no child can be started.
void run_isolated(std::int64_t count, const IsolateOptions& options,
                  const std::function<std::string(std::int64_t)>& body,
                  const std::function<void(std::int64_t, const Isolated&)>& done,
                  const std::function<bool()>& stop = {});

}  // namespace flashcore
