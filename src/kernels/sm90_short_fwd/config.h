#pragma once
// Tunables of sm90_short_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_short_fwd {

struct Config {
  int row_groups = 1;    // warpgroups of 64 rows each that share their keys
  int key_groups = 1;    // warpgroups that share their rows, each with its part of the keys
  int cluster = 1;       // CTAs that share their rows, each with its part of the keys
  int block_n = 64;      // keys of one step
  int num_stages = 2;    // K tiles, and V tiles, of one key group in shared memory
  int pack_heads = 1;    // query heads of one key head that share a tile of 64 rows
  int early_launch = 0;  // programmatic dependent launch: the next launch starts under the end of this one

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("row_groups", &Config::row_groups, 1, 2, 3, 4);
    visit("key_groups", &Config::key_groups, 1, 2, 4);
    visit("cluster", &Config::cluster, 1, 2, 4, 8, 16);
    visit("block_n", &Config::block_n, 32, 48, 64, 80, 96, 112, 128, 160, 192);
    visit("num_stages", &Config::num_stages, 1, 2, 3, 4, 6, 8);
    visit("pack_heads", &Config::pack_heads, 1, 2, 4, 8, 16, 32, 64);
    visit("early_launch", &Config::early_launch, 0, 1);
  }
};

using tile::padded_dim;

constexpr int kTileRows = 64;  // of one warpgroup

constexpr int warpgroups(const Config& c) { return c.row_groups * c.key_groups; }
constexpr int threads_per_block(const Config& c) { return warpgroups(c) * 128; }
// Into how many parts the keys of a tile are split.
constexpr int parts(const Config& c) { return c.key_groups * c.cluster; }
// Query positions of one tile: row r is position r % positions of head r / positions.
constexpr int positions(const Config& c) { return kTileRows / c.pack_heads; }

constexpr int q_tile_bytes(const Traits& t) { return tile::tma_tile_bytes(kTileRows, t.head_dim); }
constexpr int k_tile_bytes(const Config& c, const Traits& t) { return tile::tma_tile_bytes(c.block_n, t.head_dim); }
constexpr int v_tile_bytes(const Config& c, const Traits& t) { return tile::tma_tile_bytes(c.block_n, t.head_dim_v); }

constexpr int kRescaleThreshold = 8;  // O is rescaled once a probability exceeds 2 to this

// The merge. O's columns are dealt out in chunks of 8, first to the key groups, then to the CTAs of the cluster, and
// handed over as tile::partial_bytes says.
constexpr int chunks(const Traits& t) { return padded_dim(t.head_dim_v) / 8; }
constexpr int group_chunks(const Config& c, const Traits& t) { return (chunks(t) + c.key_groups - 1) / c.key_groups; }
constexpr int part_chunks(const Config& c, const Traits& t) { return (group_chunks(c, t) + c.cluster - 1) / c.cluster; }
// Exchange buffers: what one warp receives from the other key groups of its CTA, and from the other CTAs.
constexpr int local_exchange_bytes(const Config& c, const Traits& t) {
  return (c.key_groups - 1) * tile::partial_bytes(group_chunks(c, t));
}
constexpr int remote_exchange_bytes(const Config& c, const Traits& t) {
  return (c.cluster - 1) * tile::partial_bytes(part_chunks(c, t));
}

constexpr int barrier_bytes(const Config& c) { return 8 * (1 + 2 * c.key_groups * c.num_stages + 4 * warpgroups(c)); }
// Warps of a key group that load its keys: boxes of pages are many, and a warp issues one after the other.
constexpr int loading_warps(const Traits& t) { return t.paged ? 4 : 1; }
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return c.row_groups * q_tile_bytes(t) + c.key_groups * c.num_stages * (k_tile_bytes(c, t) + v_tile_bytes(c, t)) +
         4 * warpgroups(c) * (local_exchange_bytes(c, t) + remote_exchange_bytes(c, t)) +
         tile::round_up(barrier_bytes(c), 128);
}

constexpr int registers_available(const Config& c) {
  const int share = 65536 / threads_per_block(c) / 8 * 8;
  return share < 255 ? share : 255;
}
// Accumulators of O and S, P as 16-bit operands, row state and addresses, of which a wide Q·Kᵀ has many: fitted to what
// ptxas needs without spilling.
constexpr int registers_needed(const Config& c, const Traits& t) {
  const int descriptors = t.head_dim > 160 ? (padded_dim(t.head_dim) - 160) / 2 : 0;
  return padded_dim(t.head_dim_v) / 2 + c.block_n / 2 + c.block_n / 4 + c.block_n / 16 + padded_dim(t.head_dim_v) / 8 +
         descriptors + 15;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (limits.arch != 90) return "wgmma exists on compute capability 9.0 only";
  if (t.element == Element::kF32) return "fp16 and bf16 only";
  if (warpgroups(c) > 4) return "more than 4 warpgroups in a CTA leave too few registers to each";
  if (parts(c) > 16) return "more than 16 parts of a row's keys";
  if (c.row_groups > 1 && c.pack_heads > 1) return "packed heads are for few query rows, and row groups for many";
  if (t.paged && c.early_launch != 0) return "lengths are read before a launch could wait for the one before it";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of Q, K and V tiles and of the merge exceeds the device's limit per CTA";
  if (registers_needed(c, t) > registers_available(c)) return "accumulators of O, S and P do not fit the registers";
  return nullptr;
}

}  // namespace flashcore::sm90_short_fwd
