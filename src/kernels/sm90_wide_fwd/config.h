#pragma once
// Tunables of sm90_wide_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/ragged_tiles.h"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_wide_fwd {

using tile::Scheduler;

struct Config {
  int block_n = 128;  // keys of one step, of which each consumer computes the scores of half
  int num_slots = 8;  // pieces of K and V in shared memory
  Scheduler scheduler = Scheduler::kFixedStride;
  int cluster = 1;     // CTAs with neighbouring tiles of a key head; each loads its share of K and V for both
  int pack_heads = 1;  // query heads of a key head in a cluster's tiles
  int num_splits = 1;  // clusters that share a tile's keys at the most; 0: as many as leave no SM idle

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("block_n", &Config::block_n, 32, 64, 96, 128, 160, 192);
    visit("num_slots", &Config::num_slots, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16);
    visit("scheduler", &Config::scheduler, Scheduler::kOneTile, Scheduler::kFixedStride, Scheduler::kCounter);
    visit("cluster", &Config::cluster, 1, 2);
    visit("pack_heads", &Config::pack_heads, 1, 2, 4, 8, 16, 32, 64, 128);
    visit("num_splits", &Config::num_splits, 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64);
  }
};

constexpr int kRows = 64;      // of a CTA's tile: both consumers have all of them
constexpr int kConsumers = 2;  // which split the keys of scores, and the columns of O
constexpr int kThreads = (kConsumers + 1) * 128;
constexpr int kRowsPerStore = 16;  // of O: a warp's
constexpr int kMostSplits = 64;    // of a tile's keys
constexpr int kMostHeadDim = 576;
constexpr int kMostHeadDimV = 512;  // a consumer's half of O is 256 columns, which are 128 registers
using tile::column_blocks;

constexpr int threads_per_block(const Config&) { return kThreads; }
constexpr int own_keys(const Config& c) { return c.block_n / kConsumers; }
// A tile's rows are those of its heads, one head's positions after another's. A cluster's CTAs divide its heads, or the
// positions of its one head.
constexpr int own_heads(const Config& c) { return tile::max_int(c.pack_heads / c.cluster, 1); }
constexpr int own_positions(const Config& c) { return kRows / own_heads(c); }
constexpr bool divides_heads(const Config& c) { return c.pack_heads >= c.cluster; }
constexpr int cluster_positions(const Config& c) { return c.cluster * kRows / c.pack_heads; }

// As tiles have the mask function: with lists of the blocks that it leaves, or not at all, and then every pair is
// asked. Lists are of 64 positions of one head and of all keys, not of pages.
constexpr Traits traits_of_tiles(const Config& c, Traits t) {
  t.mask_expression = t.mask_expression && !t.paged && c.cluster == 1 && c.pack_heads == 1 && c.num_splits == 1;
  return t;
}
// Of a head in a box that a warp stores, which is 16 rows.
constexpr int stored_positions(const Config& c) { return tile::min_int(own_positions(c), kRowsPerStore); }

// Columns of O and V are dealt out to the consumers in blocks of 64, one after the other.
constexpr int own_blocks(const Traits& t) { return (column_blocks(t.head_dim_v) + 1) / kConsumers; }

// Q's rows; O leaves through the same bytes.
constexpr int qo_bytes(const Traits& t) {
  return tile::tma_tile_bytes(kRows, t.head_dim > t.head_dim_v ? t.head_dim : t.head_dim_v);
}
// A piece of K or of V: 64 columns of all keys of a block.
constexpr int piece_bytes(const Config& c) { return tile::tma_tile_bytes(c.block_n, 64); }
constexpr int p_bytes(const Config& c) { return tile::tma_tile_bytes(kRows, c.block_n); }
// Of each consumer a number of each row: the maxima of a block, and at the end the sums.
constexpr int row_numbers_bytes() { return 2 * kConsumers * kRows * 4; }

// Warps that load pieces of pages: a box of TMA takes a warp 170 cycles, a piece of two boxes 570, and a consumer a
// piece in 260 (`flashcore timeline`, H200; not kept). Each has slots of its own: with turns at pieces a warp that is
// ahead of another could take a slot's phase before the last for the last. Of a counter one warp takes a tile's number
// for itself.
constexpr int loading_warps(const Config& c) { return c.scheduler == Scheduler::kCounter ? 1 : 4; }

constexpr int kTileSlots = 2;  // tile numbers on their way from the producer to the consumers; of ragged batches tiles
constexpr int tile_slot_bytes(const Traits& t) { return t.ragged ? tile::kRaggedSlotBytes : 8; }
constexpr int ragged_table_bytes(const Traits& t) { return t.ragged ? tile::kRaggedTableBytes : 0; }
// In global memory, in fp32: maximum and sum of each row, then O's blocks of 64 columns (parts.cuh).
constexpr int part_bytes(const Traits& t) { return kRows * (2 + 64 * column_blocks(t.head_dim_v)) * 4; }
// Of the CTAs that merge a row each: a thread has four columns.
constexpr int merge_threads(const Traits& t) { return column_blocks(t.head_dim_v) * 16; }
constexpr int tail_bytes(const Config& c, const Traits& t) {
  return row_numbers_bytes() + ragged_table_bytes(t) + 8 * (2 + 2 * c.num_slots + 2 * kTileSlots) +
         tile_slot_bytes(t) * kTileSlots;
}
constexpr int filler_bytes(const Config& c, const Traits& t) {
  return tile::round_up(tail_bytes(c, t) + 8, 128) - tail_bytes(c, t);
}
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return qo_bytes(t) + c.num_slots * piece_bytes(c) + p_bytes(c) + tail_bytes(c, t) + filler_bytes(c, t);
}

// setmaxnreg: the sum over warpgroups must not exceed what the kernel was launched with, or the kernel hangs.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

// A consumer's half of O, the scores of its keys and P of all of them, row state and addresses: fitted to what ptxas
// needs without spilling.
constexpr int registers_needed(const Config& c, const Traits& t) {
  return own_blocks(t) * 32 + own_keys(c) / 2 + c.block_n / 4 + 36 + (has_expression(t) ? 16 + own_keys(c) / 4 : 0);
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (limits.arch != 90) return "wgmma and setmaxnreg exist on compute capability 9.0 only";
  if (t.element == Element::kF32) return "fp16 and bf16 only";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of Q, P and the pieces of K and V exceeds the device's limit per CTA";
  if (registers_needed(c, t) > kConsumerRegisters)
    return "accumulators of O, S and P do not fit a consumer's registers";
  if (c.pack_heads > c.cluster * kRows) return "pack_heads is at most the rows of the cluster's tiles, 64 * cluster";
  if (t.ragged && c.scheduler == Scheduler::kOneTile)
    return "a ragged batch's tiles are counted on the device: only CTAs that go round them (scheduler=1 or 2)";
  if (c.cluster > 1 && c.scheduler == Scheduler::kCounter)
    return "a cluster takes its tiles in turn: its producers do not share a counter";
  return nullptr;
}

}  // namespace flashcore::sm90_wide_fwd
