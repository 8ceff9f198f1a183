#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "device/compiler.h"
#include "device/cuda/compile_cache.h"
#include "device/cuda/cubin.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/ptx_state.h"
#include "device/cuda/ptxas_log.h"

namespace flashcore {
namespace {

using cuda::NvrtcApi;
using cuda::NvrtcProgram;
using cuda::NvrtcResult;

class Program {
 public:
  Program(const NvrtcApi& api, const KernelSource& kernel, const SourceMap& sources) : api_(api) {
    std::vector<std::string> names;
    std::vector<const char*> name_pointers, texts;
    for (const auto& [path, text] : sources) {
      names.push_back(included_as(path));
      texts.push_back(text.c_str());
    }
    for (const std::string& name : names) name_pointers.push_back(name.c_str());
    const std::string text = fmt::format("#include \"{}\"\n", included_as(kernel.file));
    check(api_.create_program(&program_, text.c_str(), "flashcore.cu", static_cast<int>(texts.size()), texts.data(),
                              name_pointers.data()),
          "nvrtcCreateProgram");
  }
  ~Program() { api_.destroy_program(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void add_name(const std::string& expression) {
    check(api_.add_name_expression(program_, expression.c_str()), "nvrtcAddNameExpression");
  }

  NvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return api_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    std::size_t bytes = 0;
    if (api_.log_size(program_, &bytes) != cuda::kNvrtcSuccess || bytes == 0) return {};
    std::string text(bytes, '\0');
    if (api_.log(program_, text.data()) != cuda::kNvrtcSuccess) return {};
    text.resize(text.find_last_not_of('\0') + 1);
    return text;
  }

  std::string cubin() const {
    std::size_t bytes = 0;
    check(api_.cubin_size(program_, &bytes), "nvrtcGetCUBINSize");
    std::string image(bytes, '\0');
    check(api_.cubin(program_, image.data()), "nvrtcGetCUBIN");
    return image;
  }

  std::string ptx() const {
    std::size_t bytes = 0;
    check(api_.ptx_size(program_, &bytes), "nvrtcGetPTXSize");
    std::string text(bytes, '\0');
    check(api_.ptx(program_, text.data()), "nvrtcGetPTX");
    text.resize(std::min(text.find('\0'), text.size()));
    // Without it nothing would be found in it, and every foreign kernel would pass.
    if (text.find(".entry") == std::string::npos) throw_internal("nvrtcGetPTX gave no kernel ({})", api_.path);
    return text;
  }

  std::string lowered(const std::string& expression) const {
    const char* name = nullptr;
    check(api_.lowered_name(program_, expression.c_str(), &name), "nvrtcGetLoweredName");
    return name;
  }

 private:
  void check(NvrtcResult result, const char* call) const {
    if (result != cuda::kNvrtcSuccess) throw_internal("{} failed: {} ({})", call, api_.error_string(result), api_.path);
  }

  const NvrtcApi& api_;
  NvrtcProgram program_ = nullptr;
};

class NvrtcCompiler final : public Compiler {
 public:
  explicit NvrtcCompiler(const NvrtcApi& api) : api_(api), cache_(cache_directory() / "kernels") {
    api_.version(&major_, &minor_);
    int count = 0;
    if (api_.num_supported_archs(&count) == cuda::kNvrtcSuccess && count > 0) {
      archs_.resize(static_cast<std::size_t>(count));
      if (api_.supported_archs(archs_.data()) != cuda::kNvrtcSuccess) archs_.clear();
    }
    // nvrtcVersion tells 13.0 but not which update; the library's size tells those apart well enough for a cache.
    std::error_code ignored;
    identity_ = fmt::format("{} ({} bytes)", version(), std::filesystem::file_size(api_.path, ignored));
  }

  std::string version() const override { return fmt::format("NVRTC {}.{}", major_, minor_); }
  std::string identity() const override { return identity_; }

  Artifact compile(const KernelSource& kernel, const SourceMap& sources, const std::string& arch,
                   bool use_cache) override {
    require_arch(arch);
    if (!sources.contains(kernel.file))
      throw_internal("'{}' is not among the {} device sources", kernel.file, sources.size());
    const std::vector<std::string> options = options_for(kernel, arch);
    const std::string key = cache_key(kernel, sources, options);
    std::optional<Artifact> cached = use_cache ? cache_.find(key) : std::nullopt;
    Artifact artifact = cached ? std::move(*cached) : compile_fresh(kernel, sources, arch, options);
    artifact.compiler = identity_;  // part of the key
    if (use_cache && !cached) cache_.store(key, artifact);
    return artifact;
  }

 private:
  std::vector<std::string> options_for(const KernelSource& kernel, const std::string& arch) const {
    // --minimal leaves out textures and the device runtime: a third of the time of a small kernel.
    std::vector<std::string> options = {"--gpu-architecture=" + arch, "--std=c++20",
                                        "--ptxas-options=-v",         "--device-as-default-execution-space",
                                        "--no-source-include",        "--minimal"};
    // NVRTC's own cache would make compile_ms a lie and drops the ptxas report. Not known before version 13.
    if (major_ >= 13) options.push_back("--no-cache");
    options.insert(options.end(), kernel.options.begin(), kernel.options.end());
    return options;
  }

  std::string cache_key(const KernelSource& kernel, const SourceMap& sources,
                        const std::vector<std::string>& options) const {
    Hasher hasher;
    hasher.add(identity_).add(kernel.file).add(kernel.name_expression);
    hasher.add(fmt::format("{} {}", kernel.dynamic_shared_bytes, kernel.threads_per_block));
    for (const std::string& option : options) hasher.add(option);
    if (kernel.foreign) hasher.add("kept variables");  // which an artifact of the library's kernels does not tell
    if (const std::string extras = kernel.extras(); !extras.empty()) hasher.add(extras);
    hasher.add("sources");
    for (const auto& [path, text] : sources) hasher.add(path).add(text);
    return hasher.sha256_hex();
  }

  Artifact compile_fresh(const KernelSource& kernel, const SourceMap& sources, const std::string& arch,
                         const std::vector<std::string>& options) const {
    const auto begin = std::chrono::steady_clock::now();
    Program program(api_, kernel, kernel.headers.empty() ? sources : sources_of(kernel, sources));
    program.add_name(kernel.name_expression);
    for (const KernelEntry& more : kernel.more_kernels) program.add_name(more.name_expression);
    const NvrtcResult result = program.compile(options);
    const double elapsed_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    const std::string log = program.log();
    if (result != cuda::kNvrtcSuccess) {
      const std::string reason = log.empty() ? api_.error_string(result) : first_error(log);
      throw CompileError(
          fmt::format("{} does not compile for {} with {}: {}", kernel.name_expression, arch, version(), reason), log);
    }
    Artifact artifact;
    artifact.cubin = program.cubin();
    artifact.arch = arch;
    if (kernel.foreign) artifact.kept_variables = cuda::find_kept_variables(program.ptx());
    artifact.compile_ms = elapsed_ms;
    static_cast<KernelFacts&>(artifact) = facts_of(program.lowered(kernel.name_expression), kernel.dynamic_shared_bytes,
                                                   kernel.threads_per_block, log, artifact.warnings);
    for (const KernelEntry& more : kernel.more_kernels)
      artifact.more_kernels.push_back(facts_of(program.lowered(more.name_expression), more.dynamic_shared_bytes,
                                               more.threads_per_block, log, artifact.warnings));
    // Beside the code, what is resident per SM decides the speed: equal code with other resources is another kernel.
    Hasher hasher;
    hasher.add(cuda::hash_machine_code(artifact.cubin));
    const auto add = [&](const KernelFacts& facts) {
      hasher.add(fmt::format("{} {} {} {}", facts.registers, facts.static_shared_bytes, facts.dynamic_shared_bytes,
                             facts.threads_per_block));
    };
    add(artifact);
    for (const KernelFacts& more : artifact.more_kernels) add(more);
    artifact.code_hash = hasher.hex();
    return artifact;
  }

  // `warnings`: of the whole compilation, whichever kernel they are about.
  static KernelFacts facts_of(const std::string& symbol, int dynamic_shared_bytes, int threads_per_block,
                              const std::string& log, std::vector<std::string>& warnings) {
    cuda::PtxasReport report = cuda::parse_ptxas_log(log, symbol);
    // Without the report every gate on spills would pass unseen.
    if (!report.found) throw CompileError(fmt::format("ptxas reported nothing about {}", symbol), log);
    warnings = std::move(report.warnings);
    return {symbol,
            report.registers,
            report.spill_store_bytes,
            report.spill_load_bytes,
            report.stack_bytes,
            report.static_shared_bytes,
            dynamic_shared_bytes,
            report.barriers,
            threads_per_block};
  }

  // "sm_90a" -> 90; anything else is the caller's mistake.
  void require_arch(const std::string& arch) const {
    std::string_view digits = std::string_view(arch).substr(std::min<std::size_t>(arch.size(), 3));
    if (!digits.empty() && (digits.back() == 'a' || digits.back() == 'f')) digits.remove_suffix(1);
    const bool numeric = !digits.empty() && digits.size() <= 3 &&
                         std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!arch.starts_with("sm_") || !numeric)
      throw_bad_input("'{}' is not a GPU architecture; write it like sm_80 or sm_90a", arch);
    const int number = std::stoi(std::string(digits));
    if (!archs_.empty() && std::find(archs_.begin(), archs_.end(), number) == archs_.end())
      throw_environment(
          "{} ({}) does not compile for {}: it knows sm_{} to sm_{}. Run ./quickstart, or install a newer one: pip "
          "install nvidia-cuda-nvrtc",
          version(), api_.path, arch, *std::min_element(archs_.begin(), archs_.end()),
          *std::max_element(archs_.begin(), archs_.end()));
  }

  const NvrtcApi& api_;
  cuda::CompileCache cache_;
  int major_ = 0, minor_ = 0;
  std::vector<int> archs_;
  std::string identity_;
};

}  // namespace

std::unique_ptr<Compiler> open_compiler() {
  std::string why;
  const NvrtcApi* api = cuda::nvrtc_api(&why);
  if (!api)
    throw_environment(
        "NVRTC, NVIDIA's run-time compiler, is not here ({}). Run ./quickstart, or: pip install nvidia-cuda-nvrtc, or "
        "set FLASHCORE_NVRTC to libnvrtc.so",
        why);
  return std::make_unique<NvrtcCompiler>(*api);
}

}  // namespace flashcore
