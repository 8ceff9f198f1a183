#include "device/emulator/emulator_compiler.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/child_process.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/scratch_folder.h"
#include "device/cuda/compile_cache.h"
#include "device/sandbox/sandbox.h"

namespace flashcore {
namespace {

// A kernel takes a fraction of a second; this tells a hang from a slow machine, it does not judge speed.
constexpr double kCompileSeconds = 240, kVersionSeconds = 30;

// -O1 without unrolling keeps a kernel of any tile size at a fraction of a second. Frame pointers, sibling calls and
// line tables: a return address must name its line. No contraction: a·b + c is what the source says.
const std::vector<std::string>& options() {
  static const std::vector<std::string> all = {"-std=c++20",
                                               "-O1",
                                               "-g1",
                                               "-fPIC",
                                               "-shared",
                                               "-w",
                                               "-fno-rtti",
                                               "-fno-optimize-sibling-calls",
                                               "-ffp-contract=off",
                                               "-Wl,--as-needed"};
  return all;
}

// A GPU's assembly is not for this compiler, and the host's (".incbin") is not for kernels. Our own sources write
// __asm__, which the check of patches refuses (lab/harness/device_code.h).
const std::string kNoAssembly = "-Dasm=no_assembly_on_the_emulator";

// The kernel's sources with ptx/ exchanged.
SourceMap exchanged(const SourceMap& sources) {
  SourceMap all;
  const auto& ours = emulator::embedded_emulator_sources();
  for (const auto& [path, text] : sources) {
    const auto found = ours.find(path);
    if (found != ours.end()) all[included_as(path)] = std::string(found->second);
    else if (path.starts_with("ptx/"))
      all[included_as(path)] = fmt::format(
          "#error \"kernels/{} has no counterpart in src/device/emulator/ptx: add one with the same functions\"\n",
          path);
    else all[included_as(path)] = text;
  }
  all["device/emulator/services.h"] = std::string(ours.at("services.h"));
  return all;
}

// Of `all`, `path` and every file that it includes at any depth: another family's change compiles nothing anew.
void add_with_includes(const SourceMap& all, const std::string& path, SourceMap& found) {
  constexpr std::string_view kInclude = "#include \"";
  const auto source = all.find(path);
  if (source == all.end() || !found.insert(*source).second) return;
  const std::string_view text = source->second;
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at)) {
    at += kInclude.size();
    add_with_includes(all, std::string(text.substr(at, text.find('"', at) - at)), found);
  }
}

// What EmulatorModule looks for: of kernel 0 without a number.
std::string entries(const KernelSource& kernel) {
  std::string text;
  const auto add = [&](const std::string& suffix, const std::string& name) {
    text += fmt::format(R"(extern "C" unsigned long flashcore_param_bytes{0};
unsigned long flashcore_param_bytes{0} = bytes_of({1});
extern "C" void flashcore_entry{0}(const void* params) {{ call({1}, params); }}
)",
                        suffix, name);
  };
  add("", kernel.name_expression);
  for (std::size_t i = 0; i < kernel.more_kernels.size(); ++i)
    add(std::to_string(i + 1), kernel.more_kernels[i].name_expression);
  return text;
}

std::string translation_unit(const KernelSource& kernel) {
  return fmt::format(R"(#include "kernels/{}"
extern "C" {{ const flashcore::emulator::Services* flashcore_services; }}
template <class Params> constexpr unsigned long bytes_of(void (*)(Params)) {{ return sizeof(Params); }}
template <class Params> void call(void (*kernel)(Params), const void* params) {{ kernel(*static_cast<const Params*>(params)); }}
{})",
                     kernel.file, entries(kernel));
}

// The line of a compiler's output that says that the machine, not the source, is at fault.
std::optional<std::string> what_machine_lacks(const std::string& output) {
  for (const char* sign : {"No space left on device", "Cannot create temporary file", "cannot create temporary file",
                           "virtual memory exhausted", "out of memory", "Cannot allocate memory", "Killed signal"}) {
    const std::size_t at = output.find(sign);
    if (at == std::string::npos) continue;
    const std::size_t before = output.rfind('\n', at);
    const std::size_t begin = before == std::string::npos ? 0 : before + 1;
    return output.substr(begin, output.find('\n', begin) - begin);
  }
  return std::nullopt;
}

class EmulatorCompiler final : public Compiler {
 public:
  EmulatorCompiler(std::string program, std::string version)
      : program_(std::move(program)), version_(std::move(version)), cache_(cache_directory() / "kernels") {}

  std::string version() const override { return version_; }

  Artifact compile(const KernelSource& kernel, const SourceMap& sources, const std::string& arch,
                   bool use_cache) override {
    if (!sources.contains(kernel.file))
      throw_internal("'{}' is not among the {} device sources", kernel.file, sources.size());
    SourceMap needed;
    add_with_includes(exchanged(kernel.headers.empty() ? sources : sources_of(kernel, sources)),
                      "kernels/" + kernel.file, needed);
    Hasher hasher;
    hasher.add("emulator")
        .add(version_)
        .add(arch)
        .add(translation_unit(kernel))
        .add(fmt::format("{} {}", kernel.dynamic_shared_bytes, kernel.threads_per_block));
    for (const std::string& option : options()) hasher.add(option);
    if (const std::string extras = kernel.extras(); !extras.empty()) hasher.add(extras);
    for (const auto& [path, text] : needed) hasher.add(path).add(text);
    const std::string key = hasher.sha256_hex();
    std::optional<Artifact> cached = use_cache ? cache_.find(key) : std::nullopt;
    Artifact artifact = cached ? std::move(*cached) : compile_fresh(kernel, needed, arch);
    artifact.code_hash = key;
    artifact.compiler = version_;
    if (use_cache && !cached) cache_.store(key, artifact);
    // Not of the entry: one key may come from both.
    artifact.foreign = kernel.foreign;
    return artifact;
  }

 private:
  Artifact compile_fresh(const KernelSource& kernel, const SourceMap& sources, const std::string& arch) const {
    const auto begin = std::chrono::steady_clock::now();
    const ScratchFolder folder;
    const std::string root = folder.path().string() + "/";
    for (const auto& [path, text] : sources) folder.write(path, text);
    folder.write("kernel.cpp", translation_unit(kernel));
    const auto command = [&](const std::string& at) {
      std::vector<std::string> words = {program_};
      words.insert(words.end(), options().begin(), options().end());
      words.insert(words.end(), {"-I" + at + ".", "-DFLASHCORE_EMULATOR=1", "-o", at + "kernel.so", at + "kernel.cpp"});
      if (kernel.foreign) words.push_back(kNoAssembly);
      return words;
    };
    if (kernel.foreign) sandbox::require("the kernel " + kernel.file);
    const ProgramResult result = kernel.foreign ? sandbox::run_tool(command("./"), root, kCompileSeconds)
                                                : run_program(command(root), {.seconds = kCompileSeconds});
    if (!result.stopped.empty())
      throw CompileError(
          fmt::format("{}: the compiler for the emulator, {}, {}", kernel.name_expression, version_, result.stopped),
          result.output);
    if (!result.started || result.exit_code == 127)
      throw_environment("the compiler for the emulator, '{}', cannot be run any more; install it again", program_);
    if (result.exit_code != 0) {
      if (const auto lack = what_machine_lacks(result.output))
        throw_environment("the compiler for the emulator, {}, could not do its work: {}", version_, *lack);
      throw CompileError(fmt::format("{} does not compile for the emulator with {}: {}", kernel.name_expression,
                                     version_, first_error(result.output)),
                         result.output);
    }
    // A compiler that was turned against us may have left a link.
    if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(root + "kernel.so")))
      throw CompileError("the compiler for the emulator left no file behind", result.output);
    Artifact artifact;
    artifact.cubin = read_file(root + "kernel.so");
    artifact.symbol = "flashcore_entry";
    artifact.arch = "emulator " + arch;
    artifact.dynamic_shared_bytes = kernel.dynamic_shared_bytes;
    artifact.threads_per_block = kernel.threads_per_block;
    for (const KernelEntry& more : kernel.more_kernels) {
      KernelFacts& facts = artifact.more_kernels.emplace_back();
      facts.symbol = fmt::format("flashcore_entry{}", artifact.more_kernels.size());
      facts.dynamic_shared_bytes = more.dynamic_shared_bytes, facts.threads_per_block = more.threads_per_block;
    }
    artifact.compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    return artifact;
  }

  std::string program_, version_;
  cuda::CompileCache cache_;
};

}  // namespace

std::unique_ptr<Compiler> open_emulator_compiler() {
  const char* named = std::getenv("FLASHCORE_CXX");
  const std::string program = named && *named ? named : "c++";
  const ProgramResult result = run_program({program, "--version"}, {.seconds = kVersionSeconds});
  if (!result.started || !result.stopped.empty() || result.exit_code != 0) {
    throw_environment(
        "the emulated GPU compiles kernels with the system's C++ compiler, and '{}' {}. Install one (Debian: apt-get "
        "install g++), or set FLASHCORE_CXX to GCC 12 or newer",
        program,
        !result.started          ? "is not there"
        : result.stopped.empty() ? fmt::format("ends with code {} when asked for its version", result.exit_code)
                                 : result.stopped);
  }
  return std::make_unique<EmulatorCompiler>(program, result.output.substr(0, result.output.find('\n')));
}

}  // namespace flashcore
