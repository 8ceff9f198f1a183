#pragma once
// Products in AMX's tiles (bf16.cpp): 16 rows of 64 bytes each, 16 fp32 sums or 32 bf16 of the depth.

#include "kernels/cpu_fwd/bf16_block-inl.h"

#define FC_AMX_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))

namespace flashcore::cpu_fwd {
namespace {

struct TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

class Tiles {
 public:
  // Of the calling thread, and only while it computes: tiles that stay configured are saved at each change of threads.
  FC_AMX_TARGET Tiles() {
    alignas(64) TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.bytes_per_row[tile] = 64, config.rows[tile] = kTile;
    // GCC 12 takes the intrinsic to read 8 of the 64 bytes, and may leave out writing the others.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  FC_AMX_TARGET ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Of 16 or 32 rows, of which the last may be nobody's.
  template <bool kAdds>
  static void multiply(const Product& of, int rows) {
    if (rows > kTile) return multiply_tiles<kAdds, true>(of);
    multiply_tiles<kAdds, false>(of);
  }

 private:
  // Four sums of two tiles of A and two of B each load two tiles for two products, as many as the load ports sustain.
  template <bool kAdds, bool kBoth>
  FC_AMX_TARGET static void multiply_tiles(const Product& of) {
    const long a_bytes = of.a_stride * 2, c_bytes = of.c_stride * 4;
    float* lower = of.c + kTile * of.c_stride;
    if (kAdds) {
      _tile_loadd(0, of.c, c_bytes);
      _tile_loadd(1, of.c + kTile, c_bytes);
      if (kBoth) {
        _tile_loadd(2, lower, c_bytes);
        _tile_loadd(3, lower + kTile, c_bytes);
      }
    } else {
      _tile_zero(0);
      _tile_zero(1);
      if (kBoth) {
        _tile_zero(2);
        _tile_zero(3);
      }
    }
    for (int tile = 0; tile < of.tiles; ++tile) {
      const std::uint16_t* a = of.a + tile * kDepth;
      _tile_loadd(4, a, a_bytes);
      _tile_loadd(6, of.left + tile * of.b_step, 64);
      _tile_loadd(7, of.right + tile * of.b_step, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (kBoth) {
        _tile_loadd(5, a + kTile * of.a_stride, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, of.c, c_bytes);
    _tile_stored(1, of.c + kTile, c_bytes);
    if (kBoth) {
      _tile_stored(2, lower, c_bytes);
      _tile_stored(3, lower + kTile, c_bytes);
    }
  }
};

}  // namespace
}  // namespace flashcore::cpu_fwd
