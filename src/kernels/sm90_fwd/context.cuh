#pragma once
// What producer and consumers of sm90_fwd share: the layout of shared memory, rings of stages, and where a tile lies.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_fwd/config.h"
#include "kernels/sm90_fwd/params.h"

namespace flashcore::sm90_fwd {

struct Barrier {
  unsigned long long word;
};

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[C.q_stages][row_groups(C)][qo_slab_bytes(T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.num_stages][v_tile_bytes(C, T)];
  // From the warps of the other key groups, and what fills up.
  unsigned char parts[parts_bytes(C, T) + tile::round_up(tail_bytes(C, T), 1024) - tail_bytes(C, T)];
  Barrier q_full[C.q_stages][row_groups(C)], q_empty[C.q_stages][row_groups(C)];
  Barrier k_full[C.num_stages], k_empty[C.num_stages];
  Barrier v_full[C.num_stages], v_empty[C.num_stages];
  Barrier tile_full[kTileSlots], tile_empty[kTileSlots];
  int tile[kTileSlots][2];
};

// Position in a ring as the number of items passed: one register, where a stage and a parity would be two.
template <int kStages>
struct Ring {
  unsigned count = 0;
  FC_DEVICE int stage() const { return static_cast<int>(ptx::opaque(count) % kStages); }
  FC_DEVICE int parity() const {
    return static_cast<int>(ptx::opaque(count) / kStages % 2);
  }  // of the phase that a reader waits for
  FC_DEVICE void advance() { ++count; }
};

// Where a tile lies and which keys it needs.
struct Tile {
  int batch, head_q, head_kv;
  int first_row;
  int blocks;  // of block_n keys that some row of the tile sees, or of its neighbours in the cluster
};

FC_DEVICE int min_int(int a, int b) { return a < b ? a : b; }

template <Traits T, Config C>
struct Context {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));
  static constexpr int kBlockM = block_m(C);
  static constexpr int kBlockN = C.block_n;

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  FC_DEVICE explicit Context(const Params<ptx::TensorMap>& p) : params(p) {}

  FC_DEVICE static int rank() { return C.cluster == 1 ? 0 : ptx::cluster_ctarank(); }

  FC_DEVICE ptx::SharedAddress qo(int stage, int group) const {
    return shared + FC_OFFSET_OF(Storage, qo) + (stage * row_groups(C) + group) * qo_slab_bytes(T);
  }
  // Of a row group's warp, from key group `sender`.
  FC_DEVICE ptx::SharedAddress part(int sender, int group, int warp) const {
    return shared + FC_OFFSET_OF(Storage, parts) + (((sender - 1) * row_groups(C) + group) * 4 + warp) * part_bytes(T);
  }
  FC_DEVICE ptx::SharedAddress k(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k) + stage * k_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress v(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v) + stage * v_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress q_full(int stage, int group) const {
    return shared + FC_OFFSET_OF(Storage, q_full) + 8 * (stage * row_groups(C) + group);
  }
  FC_DEVICE ptx::SharedAddress q_empty(int stage, int group) const {
    return shared + FC_OFFSET_OF(Storage, q_empty) + 8 * (stage * row_groups(C) + group);
  }
  FC_DEVICE ptx::SharedAddress k_full(int stage) const { return shared + FC_OFFSET_OF(Storage, k_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress k_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, k_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress v_full(int stage) const { return shared + FC_OFFSET_OF(Storage, v_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress v_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, v_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress tile_full(int slot) const {
    return shared + FC_OFFSET_OF(Storage, tile_full) + 8 * slot;
  }
  FC_DEVICE ptx::SharedAddress tile_empty(int slot) const {
    return shared + FC_OFFSET_OF(Storage, tile_empty) + 8 * slot;
  }
  FC_DEVICE ptx::SharedAddress tile_number(int slot) const { return shared + FC_OFFSET_OF(Storage, tile) + 8 * slot; }

  // Full attention: a head's tiles together. Causal: longest tiles first, over as many heads as fit in L2.
  FC_DEVICE Tile tile_at(int number) const {
    const ForwardParams& p = params.problem;
    int head, row_tile;
    if constexpr (T.bounded_right) {
      const int section = params.by_section_tiles.quotient(number);
      const int within = number - section * params.row_tiles * params.heads_per_section;
      const bool whole = section < params.whole_sections;
      const tile::FastDivide by_heads = whole ? params.by_section_heads : params.by_last_section_heads;
      const int section_heads =
          whole ? params.heads_per_section : p.heads_q * p.batch - section * params.heads_per_section;
      const int rank = by_heads.quotient(within);
      row_tile = params.row_tiles - 1 - rank;
      head = section * params.heads_per_section + within - rank * section_heads;
    } else {
      head = params.by_row_tiles.quotient(number);
      row_tile = number - head * params.row_tiles;
    }
    Tile tile;
    tile.batch = params.by_heads_q.quotient(head);
    tile.head_q = head - tile.batch * p.heads_q;
    tile.head_kv = params.by_group_size.quotient(tile.head_q);
    const int first_row = row_tile * cluster_m(C);
    tile.first_row = first_row + rank() * kBlockM;
    tile.blocks = key_blocks(min_int(first_row + cluster_m(C), p.seqlen_q) - 1);
    return tile;
  }
  // Blocks of keys that rows up to `last_row` see.
  FC_DEVICE int key_blocks(int last_row) const {
    int end = params.problem.seqlen_kv;
    if constexpr (T.bounded_right) end = min_int(end, last_row + params.problem.right_offset + 1);
    return end <= 0 ? 0 : (end + kBlockN - 1) / kBlockN;
  }
};

}  // namespace flashcore::sm90_fwd
