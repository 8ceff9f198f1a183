// Codes of a quantised cache as 16-bit operands (tile/cache_element.cuh): every code, on the emulator, by the
// instruction and by arithmetic, which architectures before sm_89 are compiled with. And rows of Q that meet them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

std::vector<std::byte> run(const std::string& text, std::size_t bytes) {
  SourceMap sources = device_sources();
  sources["cache_element_test/kernel.cuh"] = text;
  const std::unique_ptr<Device> device = open_emulator();
  const KernelSource kernel{"cache_element_test/kernel.cuh", "flashcore::kernel", 0, 32, {}};
  const auto module = device->load(open_emulator_compiler()->compile(kernel, sources, "sm_90"));
  std::vector<std::byte> out(bytes);
  const std::unique_ptr<Buffer> buffer = device->allocate(out.size(), 256);
  const void* address = buffer->data();
  LaunchSpec spec;
  spec.block.x = 32;
  spec.params.resize(sizeof address);
  std::memcpy(spec.params.data(), &address, sizeof address);
  device->launch(*module, spec);
  device->download(out.data(), buffer->data(), out.size());
  return out;
}

// Rows of a bf16 Q as fp16 (sm80_decode_fwd/quantised.cuh). Element k of row r is 1 + k/16 times 2^(exponent of r - 3
// k), of both signs; some rows have an infinity or NaN, and one is all zeros.
constexpr int kRows = 16, kColumns = 32, kSteps = kColumns / 16;
constexpr int kExponents[kRows] = {127, 126, 100, 50, 20, 15, 14, 1, 0, -1, -14, -30, -100, -120, 0, 0};
constexpr int kInfinite = 3, kNan = 5, kZero = 15;  // rows

float of_row(int row, int column) {
  if (row == kZero) return 0;
  if (column == 7 && row == kInfinite) return -std::numeric_limits<float>::infinity();
  if (column == 7 && row == kNan) return std::numeric_limits<float>::quiet_NaN();
  const float value = std::ldexp(1.0f + static_cast<float>(column % 8) / 8, kExponents[row] - 3 * (column / 2));
  return bfloat16_to_float(float_to_bfloat16(column % 2 ? -value : value));  // some are below what bf16 has
}

TEST(CacheElementTest, RowsOfAnyMagnitudeFitFp16) {
  std::string table;
  for (int row = 0; row < kRows; ++row)
    for (int column = 0; column < kColumns; ++column)
      table += fmt::format("{}u, ", float_to_bfloat16(of_row(row, column)));
  // Lane l has in q[d][i] columns 16 d + i/2 8 + 2 (l % 4) and the next, of row l/4 + i % 2 8.
  const std::string text = fmt::format(R"(#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm80_decode_fwd/quantised.cuh"
namespace flashcore {{
struct Params {{ float* out; }};
FC_KERNEL(32, 1) kernel(const __grid_constant__ Params p) {{
  const unsigned short table[] = {{{0}}};
  const int lane = ptx::tid_x();
  const auto place = [&](int d, int i, int half) {{
    return (lane / 4 + i % 2 * 8) * {1} + 16 * d + i / 2 * 8 + 2 * (lane % 4) + half;
  }};
  unsigned q[{2}][4];
  for (int d = 0; d < {2}; ++d)
    for (int i = 0; i < 4; ++i) q[d][i] = table[place(d, i, 0)] | static_cast<unsigned>(table[place(d, i, 1)]) << 16;
  float undone[2] = {{3.0f, 3.0f}};
  sm80_decode_fwd::scale_rows_to_f16(q, undone);
  for (int d = 0; d < {2}; ++d)
    for (int i = 0; i < 4; ++i)
      for (int half = 0; half < 2; ++half) {{
        const float value = ptx::cvt_f32_f16(static_cast<unsigned short>(q[d][i] >> 16 * half));
        ptx::st_global_f32(p.out + 2 * place(d, i, half), value);
        ptx::st_global_f32(p.out + 2 * place(d, i, half) + 1, undone[i % 2]);
      }}
}}
}}
)",
                                       table, kColumns, kSteps);
  const std::vector<std::byte> bytes = run(text, 2 * kRows * kColumns * sizeof(float));
  std::vector<float> made(2 * kRows * kColumns);
  std::memcpy(made.data(), bytes.data(), bytes.size());
  for (int row = 0; row < kRows; ++row) {
    double largest = 0;
    for (int column = 0; column < kColumns; ++column)
      if (std::isfinite(of_row(row, column))) largest = std::max(largest, std::abs(double{of_row(row, column)}));
    for (int column = 0; column < kColumns; ++column) {
      const float expected = of_row(row, column);
      const auto at = static_cast<std::size_t>(2 * (row * kColumns + column));
      const double value = double{made[at]} * made[at + 1] / 3;
      if (std::isfinite(expected)) {
        // Half of fp16's smallest step, 2^-24, where the largest is at least 2^14. A scale is 2^126 at the most.
        EXPECT_NEAR(value, expected, std::max(largest * 0x1p-39, 0x1p-150)) << row << " " << column;
      } else {
        EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << row << " " << column;
      }
    }
  }
}

TEST(CacheElementTest, EveryCodeIsExact) {
  for (const auto& [element, dtype] : {std::pair("Element::kF16", DType::kF16), {"Element::kBF16", DType::kBF16}})
    for (const auto& [stored, code] : {std::pair("Element::kE4M3", DType::kE4M3),
                                       {"Element::kE5M2", DType::kE5M2},
                                       {"Element::kInt8", DType::kInt8}})
      for (const char* function : {"tile::widen<{}, {}>", "tile::widen_by_arithmetic<{}, {}>"}) {
        const std::vector<std::byte> made = run(kernel_text(element, stored, function), kCodes * sizeof(std::uint16_t));
        for (int i = 0; i < kCodes; ++i) {
          const auto byte = static_cast<std::uint8_t>(i);
          const float expected = load_element(code, &byte, 0), value = load_element(dtype, made.data(), i);
          EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected)))
              << element << " " << stored << " " << function << " code " << i << ": " << value << ", not " << expected;
          EXPECT_TRUE(std::isnan(value) || std::signbit(value) == std::signbit(expected)) << stored << " code " << i;
        }
      }
}

// The words n, n * 0x01010101 and so on: each of the 16 codes in each of the eight places.
TEST(CacheElementTest, EveryNibbleIsExact) {
  constexpr int kWords = 128;
  const auto word_of = [](int n) { return static_cast<std::uint32_t>(n % 16) << n / 16 * 4 ^ 0x5a3c0f96u; };
  for (const auto& [element, dtype] : {std::pair("Element::kF16", DType::kF16), {"Element::kBF16", DType::kBF16}}) {
    const std::string text = fmt::format(R"(#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/cache_nibbles.cuh"
namespace flashcore {{
struct Params {{ unsigned* out; }};
FC_KERNEL(32, 1) kernel(const __grid_constant__ Params p) {{
  for (unsigned n = ptx::tid_x(); n < {}; n += 32) {{
    unsigned pairs[4];
    tile::widen_nibbles<{}>(n % 16 << n / 16 * 4 ^ 0x5a3c0f96u, pairs);
    for (int i = 0; i < 4; ++i) ptx::st_global_u32(p.out + 4 * n + i, pairs[i]);
  }}
}}
}}
)",
                                         kWords, element);
    const std::vector<std::byte> made = run(text, kWords * 16);
    for (int n = 0; n < kWords; ++n) {
      const std::uint32_t word = word_of(n);
      for (int i = 0; i < 8; ++i)  // pair i % 4 has the codes i % 4 and i % 4 + 4
        EXPECT_EQ(load_element(dtype, made.data(), 8 * n + i % 4 * 2 + i / 4), load_element(DType::kInt4, &word, i))
            << element << " word " << n << " code " << i;
    }
  }
}

}  // namespace
}  // namespace flashcore
