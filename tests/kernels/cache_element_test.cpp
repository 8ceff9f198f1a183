// Codes of a quantised cache as 16-bit operands (tile/cache_element.cuh): every code, on the emulator, by the
// instruction and by arithmetic, which architectures before sm_89 are compiled with.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "core/dtype.h"
#include "device/emulator/emulator_compiler.h"
#include "device/emulator/emulator_device.h"
#include "kernels/embedded.h"

namespace flashcore {
namespace {

constexpr int kCodes = 256;

// out[2 n], out[2 n + 1]: the codes 4n .. 4n + 3 as two pairs.
std::string kernel_text(const std::string& element, const std::string& stored, const std::string& function) {
  return fmt::format(R"(#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/cache_element.cuh"
namespace flashcore {{
struct Params {{ unsigned* out; }};
FC_KERNEL(32, 1) kernel(const __grid_constant__ Params p) {{
  for (unsigned n = ptx::tid_x(); n < {} / 4; n += 32) {{
    unsigned pairs[2];
    {}(0x03020100u + n * 0x04040404u, pairs);
    ptx::st_global_u32(p.out + 2 * n, pairs[0]);
    ptx::st_global_u32(p.out + 2 * n + 1, pairs[1]);
  }}
}}
}}
)",
                     kCodes, fmt::format(fmt::runtime(function), element, stored));
}

std::vector<std::uint16_t> run(const std::string& text) {
  SourceMap sources = device_sources();
  sources["cache_element_test/kernel.cuh"] = text;
  const std::unique_ptr<Device> device = open_emulator();
  const KernelSource kernel{"cache_element_test/kernel.cuh", "flashcore::kernel", 0, 32, {}};
  const auto module = device->load(open_emulator_compiler()->compile(kernel, sources, "sm_90"));
  std::vector<std::uint16_t> out(kCodes);
  const std::unique_ptr<Buffer> buffer = device->allocate(out.size() * sizeof out[0], 256);
  const void* address = buffer->data();
  LaunchSpec spec;
  spec.block.x = 32;
  spec.params.resize(sizeof address);
  std::memcpy(spec.params.data(), &address, sizeof address);
  device->launch(*module, spec);
  device->download(out.data(), buffer->data(), out.size() * sizeof out[0]);
  return out;
}

TEST(CacheElementTest, EveryCodeIsExact) {
  for (const auto& [element, dtype] : {std::pair("Element::kF16", DType::kF16), {"Element::kBF16", DType::kBF16}})
    for (const auto& [stored, code] : {std::pair("Element::kE4M3", DType::kE4M3),
                                       {"Element::kE5M2", DType::kE5M2},
                                       {"Element::kInt8", DType::kInt8}})
      for (const char* function : {"tile::widen<{}, {}>", "tile::widen_by_arithmetic<{}, {}>"}) {
        const std::vector<std::uint16_t> made = run(kernel_text(element, stored, function));
        for (int i = 0; i < kCodes; ++i) {
          const auto byte = static_cast<std::uint8_t>(i);
          const float expected = load_element(code, &byte, 0), value = load_element(dtype, made.data(), i);
          EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected)))
              << element << " " << stored << " " << function << " code " << i << ": " << value << ", not " << expected;
          EXPECT_TRUE(std::isnan(value) || std::signbit(value) == std::signbit(expected)) << stored << " code " << i;
        }
      }
}

}  // namespace
}  // namespace flashcore
