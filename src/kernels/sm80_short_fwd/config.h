#pragma once
// Tunables of sm80_short_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_short_fwd {

struct Config {
  int row_blocks = 1;    // of 16 query rows that share a warp's K and V
  int key_warps = 4;     // warps that share their rows, each with its part of the keys
  int block_n = 32;      // keys of a warp's step
  int pack_heads = 1;    // query heads of one key head that share a tile of rows
  int early_launch = 0;  // programmatic dependent launch: the next launch starts under the end of this one

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("row_blocks", &Config::row_blocks, 1, 2);
    visit("key_warps", &Config::key_warps, 1, 2, 4, 8, 16);
    visit("block_n", &Config::block_n, 16, 32, 48, 64);
    visit("pack_heads", &Config::pack_heads, 1, 2, 4, 8, 16);
    visit("early_launch", &Config::early_launch, 0, 1);
  }
};

constexpr int kMaxDim = 128;
constexpr int kColumnsQk = 32, kColumnsV = 64;  // of a row: 16 bytes of each of four lanes, and of eight

// What the fragments hold; columns past the head dim are zeros.
constexpr int padded_dim_qk(const Traits& t) { return tile::round_up(t.head_dim, kColumnsQk); }
constexpr int padded_dim_v(const Traits& t) { return tile::round_up(t.head_dim_v, kColumnsV); }

constexpr int threads_per_block(const Config& c) { return c.key_warps * 32; }
constexpr int tile_rows(const Config& c) { return 16 * c.row_blocks; }
// Query positions of one tile: row r is position r % positions of head r / positions.
constexpr int positions(const Config& c) { return tile_rows(c) / c.pack_heads; }

// The merge: O of every warp in fp32, and the maximum and sum of two rows as 16 bytes. The pitch puts two rows of 16
// floats into different banks.
constexpr int pitch_bytes(const Traits& t) { return (padded_dim_v(t) + 16) * 4; }
constexpr int part_bytes(const Config& c, const Traits& t) {
  return c.row_blocks * tile::kStateBytes + tile_rows(c) * pitch_bytes(t);
}
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return c.key_warps == 1 ? 0 : c.key_warps * part_bytes(c, t);
}

// Q, K and V as they come, the accumulators of S and O, addresses: fitted to what ptxas needs without spilling.
constexpr int registers_needed(const Config& c, const Traits& t) {
  const int of_rows = padded_dim_qk(t) / 4 + padded_dim_v(t) / 2 + c.block_n * 5 / 8 + 6;
  const int of_keys = c.block_n * (padded_dim_qk(t) + padded_dim_v(t)) / 64;
  const int packed = c.pack_heads > 1 ? 4 : 0;  // more addresses of rows
  // Conditions on columns, and addresses of more pieces of a row.
  const int cut = t.head_dim % kColumnsQk != 0 || t.head_dim_v % kColumnsV != 0 ? 8 : 0;
  const int wide = padded_dim_qk(t) > 64 ? 8 : 0;
  // One warp of all keys keeps both ends of each row's window: with less, ptxas 13.0 spilled 16 bytes on sm_90.
  const int window = t.bounded_left && c.key_warps == 1 ? 2 : 0;
  return c.row_blocks * (of_rows + packed + window) + of_keys + cut + wide + 40;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (t.element == Element::kF32) return "fp16 and bf16 only";
  if (tile_rows(c) % c.pack_heads != 0) return "packed heads must share the tile's rows evenly";
  if (c.early_launch && limits.arch < 90) return "programmatic dependent launch needs compute capability 9.0";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of the merge exceeds the device's limit per CTA";
  const int share = limits.registers_per_multiprocessor / threads_per_block(c) / 8 * 8;
  if (registers_needed(c, t) > (share < 255 ? share : 255))
    return "Q, K, V and the accumulators do not fit the registers";
  return nullptr;
}

}  // namespace flashcore::sm80_short_fwd
