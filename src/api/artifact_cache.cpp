#include "api/artifact_cache.h"

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "device/cuda/compile_cache.h"
#include "kernels/embedded.h"

namespace flashcore::api {
namespace {

namespace fs = std::filesystem;

// Tells one build of NVRTC from another without asking it; none if it is not known which file will be opened.
std::optional<std::string> compiler_identity() {
  const char* file = std::getenv("FLASHCORE_NVRTC");
  std::error_code error;
  if (!file || !*file || !fs::is_regular_file(file, error)) return std::nullopt;
  const auto size = fs::file_size(file, error);
  const auto changed = fs::last_write_time(file, error).time_since_epoch().count();
  if (error) return std::nullopt;
  return fmt::format("{} {} {}", file, size, changed);
}

std::string key_of(const KernelSource& source, const std::string& arch, const std::string& compiler) {
  Hasher hasher;
  hasher.add("plan").add(compiler).add(FLASHCORE_VERSION).add(arch).add(source.file).add(source.name_expression);
  hasher.add(fmt::format("{} {}", source.dynamic_shared_bytes, source.threads_per_block));
  for (const std::string& option : source.options) hasher.add(option);
  hasher.add(source.extras());
  // Two milliseconds, and the same for every plan of the process.
  static const std::string sources = [] {
    Hasher all;
    for (const auto& [path, text] : device_sources()) all.add(path).add(text);
    return all.sha256_hex();
  }();
  return hasher.add("sources").add(sources).sha256_hex();
}

cuda::CompileCache plan_cache() { return cuda::CompileCache(cache_directory() / "plans"); }

template <class Compile>
Artifact find_or(const KernelSource& source, const std::string& arch, const DeviceLimits& limits, Compile compile) {
  const std::optional<std::string> compiler = compiler_identity();
  if (limits.emulated || !compiler) return compile();
  const cuda::CompileCache cache = plan_cache();
  const std::string key = key_of(source, arch, *compiler);
  if (auto found = cache.find(key)) return std::move(*found);
  Artifact artifact = compile();
  cache.store(key, artifact);
  return artifact;
}

}  // namespace

std::string why_not_kept() {
  try {
    return plan_cache().why_unused();
  } catch (const Error&) {  // nowhere to keep them: compile_candidate says so
    return "";
  }
}

Artifact find_or_compile(const Candidate& candidate, const Problem& problem, const DeviceLimits& limits) {
  const Family& family = *candidate.family;
  const auto compile = [&] { return compile_candidate(candidate, problem, limits); };
  if (family.kind() == DeviceKind::kCpu) return compile();
  return find_or(family.source(candidate.config, problem, limits), family.compile_arch(limits), limits, compile);
}

Artifact find_or_compile(const KernelSource& source, const DeviceLimits& limits) {
  const std::string arch = fmt::format("sm_{}", limits.arch);
  return find_or(source, arch, limits, [&] { return compile_kernel(source, device_sources(), arch, limits); });
}

}  // namespace flashcore::api
