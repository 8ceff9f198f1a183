#pragma once
// Which part of the problem a CTA works on, and which one next.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

struct TileIndex {
  int batch, head_q, head_kv;
  int first_row;
};

// By division, for kernels with few tiles to a CTA: tiles of `block_m` query rows. Tiles of one head are neighbours, so
// that its K and V stay in L2. Rows run downwards: under a causal mask the last rows see the most keys, and long tiles
// first leaves the short ones to fill the end of the grid.
FC_DEVICE TileIndex tile_at(const ForwardParams& params, int index, int block_m) {
  const int row_tiles = (params.seqlen_q + block_m - 1) / block_m;
  const int head_index = index / row_tiles;
  const int batch = head_index / params.heads_q;
  const int head_q = head_index - batch * params.heads_q;
  const int row_tile = row_tiles - 1 - (index - head_index * row_tiles);
  return {batch, head_q, head_q / (params.heads_q / params.heads_kv), row_tile * block_m};
}

FC_DEVICE int tile_count(const ForwardParams& params, int block_m) {
  return (params.seqlen_q + block_m - 1) / block_m * params.heads_q * params.batch;
}

// Without a division, in the order that the host has found.
template <bool kLongestFirst>
FC_DEVICE TileIndex tile_at(const TileOrder& order, const ForwardParams& params, int number, int block_m) {
  int head, row_tile;
  if constexpr (kLongestFirst) {
    const int section = order.by_section_tiles.quotient(number);
    const int within = number - section * order.row_tiles * order.heads_per_section;
    const bool whole = section < order.whole_sections;
    const FastDivide by_heads = whole ? order.by_section_heads : order.by_last_section_heads;
    const int section_heads =
        whole ? order.heads_per_section : params.heads_q * params.batch - section * order.heads_per_section;
    const int rank = by_heads.quotient(within);
    row_tile = order.row_tiles - 1 - rank;
    head = section * order.heads_per_section + within - rank * section_heads;
  } else {
    head = order.by_row_tiles.quotient(number);
    row_tile = number - head * order.row_tiles;
  }
  TileIndex tile;
  tile.batch = order.by_heads_q.quotient(head);
  tile.head_q = head - tile.batch * params.heads_q;
  tile.head_kv = order.by_group_size.quotient(tile.head_q);
  tile.first_row = row_tile * block_m;
  return tile;
}

// The tile after tile `number` of `count`, for one of `takers` that began with the first ones; `count` or more: none.
// `counter` is zero before and after the kernel.
template <Scheduler kScheduler>
FC_DEVICE int next_tile(int number, int count, int takers, unsigned* counter) {
  if constexpr (kScheduler == Scheduler::kCounter) {
    const unsigned handed_out = ptx::atomic_add_global(counter, 1);
    // Every taker asks until it is refused: count requests in all, and the last one leaves the counter as it was.
    if (handed_out == static_cast<unsigned>(count) - 1) ptx::st_global_u32(counter, 0);
    return takers + static_cast<int>(handed_out);
  }
  return kScheduler == Scheduler::kFixedStride ? number + takers : count;
}

// A tile of kRows rows that packs kPackHeads query heads of one key head: row r is query position r % kPositions of
// head r / kPositions. Where queries are few, as in decoding, most of a tile of one head's rows would be empty.
template <int kRows, int kPackHeads>
struct PackedTile {
  static constexpr int kPositions = kRows / kPackHeads;

  int batch, head_kv;
  int first_head;      // query head of row 0
  int heads;           // of the tile that exist
  int first_position;  // of row 0

  FC_DEVICE static int head_of(int row) { return kPackHeads == 1 ? 0 : row / kPositions; }
  FC_DEVICE int position_of(int row) const { return first_position + (kPackHeads == 1 ? row : row % kPositions); }
  FC_DEVICE bool exists(int row, int seqlen_q) const { return head_of(row) < heads && position_of(row) < seqlen_q; }
  // Of a row that may be of a head that does not exist: then the last that does.
  FC_DEVICE int query_head(int row) const { return first_head + min_int(head_of(row), heads - 1); }

  // The head_tile-th tile of the key head's `group_size` query heads.
  FC_DEVICE void set_heads(int kv, int head_tile, int group_size) {
    head_kv = kv;
    first_head = kv * group_size + head_tile * kPackHeads;
    heads = min_int(kPackHeads, group_size - head_tile * kPackHeads);
  }
};

// Of a grid (heads, batch, row tiles), which needs no division to find the row tile. Longest first as above.
template <bool kLongestFirst>
FC_DEVICE int row_tile_of_grid() {
  return kLongestFirst ? ptx::nctaid_z() - 1 - ptx::ctaid_z() : ptx::ctaid_z();
}

// A pointer to row 0 of one head of a tensor of 16-bit elements.
FC_DEVICE const unsigned short* head_pointer(const void* tensor, const Strides& strides, int batch, int head) {
  return static_cast<const unsigned short*>(tensor) + batch * strides.batch + head * strides.head;
}

// Where the log-sum-exp of a row lies; params.lse is not null. Heads of all batches are fewer than 2^30.
template <class Params>
FC_DEVICE float* lse_pointer(const Params& params, int batch, int head, int row) {
  return params.lse + (static_cast<long long>(batch * params.heads_q + head) * params.seqlen_q + row);
}

}  // namespace flashcore::tile
