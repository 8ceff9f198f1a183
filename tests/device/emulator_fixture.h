#pragma once
// Kernels of a few lines on the emulated GPU.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "device/emulator/emulator_compiler.h"
#include "device/emulator/emulator_device.h"

namespace flashcore {

struct alignas(64) Params {
  std::byte map[128];  // of data as 8 rows × 64 columns of 16 bits: boxes of 8 columns, not swizzled
  float* data;
  int n;
  float* other = nullptr;  // a buffer of 64 bytes beside data's
};

// A kernel whose body is `body`, with `p` its parameters and `t` the thread's number.
inline SourceMap sources_of(const std::string& body) {
  SourceMap sources;
  for (const auto& [path, text] : emulator::embedded_emulator_sources()) {
    if (path.starts_with("ptx/")) sources.emplace(path, "the device's own, which the emulator exchanges");
  }
  std::string text;
  for (const char* header : {"atomic",
                             "atomic_float",
                             "barrier",
                             "bulk",
                             "cluster",
                             "cp_async",
                             "distributed_shared",
                             "globaltimer",
                             "griddepcontrol",
                             "ldmatrix",
                             "matrix_tiles",
                             "mbarrier",
                             "memory",
                             "mma_fp8",
                             "shuffle",
                             "special_registers",
                             "tma",
                             "vote",
                             "wgmma",
                             "wgmma_fp8_shapes",
                             "wgmma_layouts"})
    text += fmt::format("#include \"kernels/ptx/{}.cuh\"\n", header);
  sources["test/kernel.cuh"] =
      text +
      "using namespace flashcore;\nstruct Params { ptx::TensorMap map; float* data; int n; float* other; "
      "};\nFC_KERNEL(64, 1) "
      "kernel(const "
      "__grid_constant__ Params p) {\n"
      "const int t = ptx::tid_x(); const unsigned s = ptx::dynamic_shared(); (void)t; (void)s; (void)p;\n#line 1\n" +
      body + "\n}\n";
  return sources;
}

class EmulatorTest : public ::testing::Test {
 protected:
  // The report of the fault, or "" if the launch ended well.
  std::string run(const std::string& body, unsigned grid = 1, unsigned threads = 64, int launches = 2) {
    LaunchSpec spec;
    spec.grid.x = grid;
    spec.block.x = threads;
    return run(body, spec, launches);
  }
  std::string run(const std::string& body, LaunchSpec spec, int launches = 2) {
    static const std::unique_ptr<Compiler> compiler = open_emulator_compiler();
    const auto device = open_emulator();
    buffer_ = device->allocate(1024, 256);
    device->label(*buffer_, {"data", DType::kF32, std::nullopt});
    device->fill(buffer_->data(), 0, 1024);
    KernelSource kernel{"test/kernel.cuh", "kernel", 1024, static_cast<int>(spec.block.x), {}};
    const auto module = device->load(compiler->compile(kernel, sources_of(body), "sm_90"));
    const auto other = device->allocate(64, 256);
    device->fill(other->data(), 0, 64);
    const Params params{{}, static_cast<float*>(buffer_->data()), 256, static_cast<float*>(other->data())};
    spec.shared_bytes = 1024;
    spec.params.resize(sizeof params);
    std::memcpy(spec.params.data(), &params, sizeof params);
    spec.tensor_maps = {{0,
                         buffer_->data(),
                         TensorElement::kFloat16,
                         {64, 8, 1, 1},
                         {128, 1024, 1024},
                         {8, 8, 1, 1},
                         TensorSwizzle::kNone}};
    device->encode_tensor_maps(spec);
    try {
      for (int i = 0; i < launches; ++i) device->launch(*module, spec);
    } catch (const DeviceFault& fault) {
      EXPECT_NE(std::string(fault.what()).find("FLASHCORE_EMULATOR_SEED="), std::string::npos) << fault.what();
      return fault.what();
    }
    counters_ = device->counters();
    return "";
  }
  void expect(const std::string& body, const std::vector<std::string>& words, unsigned grid = 1,
              unsigned threads = 64) {
    expect_in(run(body, grid, threads), words);
  }
  // A cluster of two CTAs of a warp each.
  static LaunchSpec pair() {
    LaunchSpec spec;
    spec.grid.x = spec.cluster.x = 2;
    spec.block.x = 32;
    return spec;
  }
  static void expect_in(const std::string& report, const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const std::size_t bar = word.find('|');  // which of two comes first depends on the order of threads
      const bool found = report.find(word.substr(0, bar)) != std::string::npos ||
                         (bar != std::string::npos && report.find(word.substr(bar + 1)) != std::string::npos);
      EXPECT_TRUE(found) << "missing: " << word << "\n" << report;
    }
  }
  float at(int i) const { return static_cast<const float*>(buffer_->data())[i]; }

  std::unique_ptr<Buffer> buffer_;
  nlohmann::json counters_;
};

}  // namespace flashcore
