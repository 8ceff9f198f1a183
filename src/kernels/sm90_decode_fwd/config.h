#pragma once
// Tunables of sm90_decode_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_decode_fwd {

struct Config {
  int block_n = 64;     // keys of one step
  int num_stages = 2;   // K tiles, and V tiles, in shared memory
  int ctas_per_sm = 2;  // whose waits fill each other
  int pack_heads = 64;  // query heads of one key head that share a tile of 64 rows

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("block_n", &Config::block_n, 32, 48, 64, 96, 128);
    visit("num_stages", &Config::num_stages, 2, 3, 4, 5, 6, 8);
    visit("ctas_per_sm", &Config::ctas_per_sm, 1, 2, 3);
    visit("pack_heads", &Config::pack_heads, 1, 2, 4, 8, 16, 32, 64);
  }
};

using tile::column_blocks;
using tile::padded_dim;

constexpr int kTileRows = 64;
constexpr int kQStages = 2;    // the next head's Q comes while this one's is used
constexpr int kMaxCtas = 512;  // as many have room for their parts in the workspace
constexpr int kRescaleThreshold = 8;

// A consumer warpgroup, and a warp that loads.
constexpr int threads_per_block(const Config&) { return 128 + 32; }
// Query positions of a tile: row r is position r % positions of head r / positions.
constexpr int positions(const Config& c) { return kTileRows / c.pack_heads; }

constexpr int q_tile_bytes(const Traits& t) { return kTileRows * column_blocks(t.head_dim) * 128; }
constexpr int k_tile_bytes(const Config& c, const Traits& t) { return c.block_n * column_blocks(t.head_dim) * 128; }
constexpr int v_tile_bytes(const Config& c, const Traits& t) { return c.block_n * column_blocks(t.head_dim_v) * 128; }
constexpr int barrier_bytes(const Config& c) { return 8 * (2 * kQStages + 4 * c.num_stages) + 16; }
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return kQStages * q_tile_bytes(t) + c.num_stages * (k_tile_bytes(c, t) + v_tile_bytes(c, t)) +
         tile::round_up(barrier_bytes(c), 256);
}

// A part of a head that waits for the others: O in chunks of 8 columns, 16 bytes of every lane, and 16 bytes of maxima
// and sums of every 4 lanes, warp by warp.
constexpr int chunks(const Traits& t) { return padded_dim(t.head_dim_v) / 8; }
constexpr int kStateBytes = 8 * 16;
constexpr int kChunkBytes = 32 * 16;
constexpr int part_bytes(const Traits& t) { return kStateBytes + chunks(t) * kChunkBytes; }

// A multiprocessor's registers are in four parts, and a warp's lie in one of them.
constexpr int registers_available(const Config& c) {
  const int warps_of_part = (c.ctas_per_sm * threads_per_block(c) / 32 + 3) / 4;
  const int share = 65536 / 4 / 32 / warps_of_part / 8 * 8;
  return share < 255 ? share : 255;
}
constexpr int registers_needed(const Config& c, const Traits& t) {
  const int descriptors = t.head_dim > 160 ? (padded_dim(t.head_dim) - 160) / 2 : 0;
  const int others = c.ctas_per_sm > 1 ? 32 : 20;  // ptxas spills sooner where it may use fewer
  return padded_dim(t.head_dim_v) / 2 + c.block_n / 2 + c.block_n / 4 + c.block_n / 16 + padded_dim(t.head_dim_v) / 8 +
         descriptors + others;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (limits.arch != 90) return "wgmma exists on compute capability 9.0 only";
  if (t.element == Element::kF32) return "fp16 and bf16 only";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of Q, K and V tiles exceeds the device's limit per CTA";
  // Each CTA reserves 1 KB beside its own.
  if (c.ctas_per_sm * (smem_bytes(c, t) + 1024) > 233472)
    return "shared memory of so many CTAs exceeds that of a multiprocessor";
  if (registers_needed(c, t) > registers_available(c)) return "accumulators of O, S and P do not fit the registers";
  return nullptr;
}

}  // namespace flashcore::sm90_decode_fwd
