#include "device/cpu/bf16_units.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace flashcore {
namespace {

bool has_dots() { return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vl") != 0; }

bool asked_for_tiles() {
  constexpr unsigned kLeaf = 7, kTileBit = 24, kBf16Bit = 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!has_dots() || __get_cpuid_count(kLeaf, 0, &a, &b, &c, &d) == 0) return false;
  if ((d >> kTileBit & 1) == 0 || (d >> kBf16Bit & 1) == 0) return false;
  // The kernel gives tiles only to processes that ask: asm/prctl.h and Documentation/arch/x86/xstate.rst.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_tiles() {
  // No function-local static: a child forked while another thread initialises one would wait for ever.
  static std::atomic<int> known{0};
  int answer = known.load(std::memory_order_relaxed);
  if (answer == 0) known.store(answer = asked_for_tiles() ? 1 : -1, std::memory_order_relaxed);
  return answer > 0;
}

struct PeakTiles {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(PeakTiles) == 64);

__attribute__((target("amx-tile,amx-bf16"))) double tile_loop(std::int64_t iterations) {
  alignas(64) const PeakTiles config;
  // GCC 12 takes the intrinsic to read 8 of the 64 bytes, and leaves out writing the others.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  // Zeros: nothing overflows, and the instruction takes as long for any data.
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (std::int64_t i = 0; i < iterations; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
  constexpr double kOfATile = 2.0 * 16 * 16 * 32;
  return 6 * kOfATile * static_cast<double>(iterations);
}

__attribute__((target("avx512f,avx512bf16"))) double dot_loop(std::int64_t iterations) {
  // Two units of latency 6 need 12 results in flight.
  constexpr int kChains = 16;
  __m512 sums[kChains];
  // Zeros: nothing overflows, and the instruction takes as long for any data. The compiler must not know: it would make
  // one chain of equal ones.
  __m512i zeros = _mm512_setzero_si512();
  asm volatile("" : "+v"(zeros));
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) {
    sums[i] = _mm512_setzero_ps();
    asm volatile("" : "+v"(sums[i]));
  }
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i)
      sums[i] = _mm512_dpbf16_ps(sums[i], reinterpret_cast<__m512bh>(zeros), reinterpret_cast<__m512bh>(zeros));
  }
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "v"(sums[i]));
  return 2.0 * 32 * kChains * static_cast<double>(iterations);
}

}  // namespace

bool has_bf16(Bf16Unit unit) { return unit == Bf16Unit::kTiles ? has_tiles() : has_dots(); }

double bf16_loop(Bf16Unit unit, std::int64_t iterations) {
  return unit == Bf16Unit::kTiles ? tile_loop(iterations) : dot_loop(iterations);
}

}  // namespace flashcore

#else

namespace flashcore {

bool has_bf16(Bf16Unit) { return false; }
double bf16_loop(Bf16Unit, std::int64_t) { return 0; }

}  // namespace flashcore

#endif
