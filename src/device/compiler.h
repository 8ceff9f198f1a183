#pragma once
// Run-time compilation for NVIDIA GPUs. Needs NVRTC, no GPU, no toolkit.

#include <memory>
#include <string>
#include <string_view>

#include "device/artifact.h"

namespace flashcore {

// The name that #include has for such a path: paths of includes are relative to src/.
inline std::string included_as(std::string_view path) {
  return path.starts_with("core/") || path.starts_with("device/") ? std::string(path) : "kernels/" + std::string(path);
}
// The other way round. The name itself where no device source is called so.
inline std::string_view source_path(std::string_view included) {
  constexpr std::string_view kFolder = "kernels/";
  return included.starts_with(kFolder) ? included.substr(kFolder.size()) : included;
}

// The compiler said no. `log` is its whole output.
class CompileError : public std::runtime_error {
 public:
  CompileError(const std::string& message, std::string log) : std::runtime_error(message), log_(std::move(log)) {}
  const std::string& log() const { return log_; }

 private:
  std::string log_;
};

class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual std::string version() const = 0;  // "NVRTC 13.0"
  // The same, told from its updates: of one identity, equal sources become equal code.
  virtual std::string identity() const { return version(); }
  // arch: "sm_80", "sm_90a", ... Disk cache first (unless `use_cache` is false). Throws CompileError.
  // Not isolated: a crash of NVRTC ends the calling process, so gates call it in a worker (lab/process/worker.h).
  virtual Artifact compile(const KernelSource& kernel, const SourceMap& sources, const std::string& arch,
                           bool use_cache = true) = 0;
};

// Of a compiler's log the line a reader wants first: the first that says "error", else the first at all.
std::string first_error(const std::string& log);

// Opens NVRTC at run time. Error kEnvironment with the fix if there is none.
std::unique_ptr<Compiler> open_compiler();

}  // namespace flashcore
