#pragma once
// Shared memory of sm90_decode_fwd, rings of stages, and which blocks a CTA works on.

#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_decode_fwd/config.h"
#include "kernels/sm90_decode_fwd/params.h"

namespace flashcore::sm90_decode_fwd {

struct Barrier {
  unsigned long long word;
};

template <Traits T, Config C>
struct SharedStorage {
  unsigned char q[kQStages][q_tile_bytes(T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.num_stages][v_tile_bytes(C, T)];
  Barrier q_full[kQStages], q_empty[kQStages];
  Barrier k_full[C.num_stages], k_empty[C.num_stages];
  Barrier v_full[C.num_stages], v_empty[C.num_stages];
  unsigned arrived[4];
  unsigned char pad[tile::round_up(barrier_bytes(C), 256) - barrier_bytes(C)];
};

// Position in a ring, as a stage and the parity that a reader waits for.
template <int kStages>
struct Ring {
  int stage = 0, parity = 0;
  FC_DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

FC_DEVICE int min_int(int a, int b) { return a < b ? a : b; }

// Blocks of one tile that a CTA works on.
struct Segment {
  int tile;
  int first, count;  // of the tile's blocks
};

template <Traits T, Config C>
struct Context {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  FC_DEVICE explicit Context(const Params<ptx::TensorMap>& p) : params(p) {}

  FC_DEVICE ptx::SharedAddress q(int stage) const {
    return shared + FC_OFFSET_OF(Storage, q) + stage * q_tile_bytes(T);
  }
  FC_DEVICE ptx::SharedAddress k(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k) + stage * k_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress v(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v) + stage * v_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress q_full(int stage) const { return shared + FC_OFFSET_OF(Storage, q_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress q_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, q_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress k_full(int stage) const { return shared + FC_OFFSET_OF(Storage, k_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress k_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, k_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress v_full(int stage) const { return shared + FC_OFFSET_OF(Storage, v_full) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress v_empty(int stage) const { return shared + FC_OFFSET_OF(Storage, v_empty) + 8 * stage; }
  FC_DEVICE ptx::SharedAddress arrived() const { return shared + FC_OFFSET_OF(Storage, arrived); }

  // Blocks are numbered over all tiles. Where a CTA's begin, and whose one is.
  FC_DEVICE int first_block(int cta) const { return cta * params.share + min_int(cta, params.rest); }
  FC_DEVICE int owner(int block) const {
    const int longer = params.rest * (params.share + 1);  // blocks of the CTAs that have one more
    return block < longer ? block / (params.share + 1) : params.rest + (block - longer) / params.share;
  }
  FC_DEVICE Segment segment_at(int block, int end) const {
    Segment segment;
    segment.tile = block / params.tile_blocks;
    segment.first = block - segment.tile * params.tile_blocks;
    segment.count = min_int(params.tile_blocks - segment.first, end - block);
    return segment;
  }

  struct Place {
    int batch, head_kv, first_head, heads;
  };
  FC_DEVICE Place place_of(int tile) const {
    Place place;
    const int head = tile / params.head_tiles, head_tile = tile - head * params.head_tiles;
    place.batch = head / params.problem.heads_kv;
    place.head_kv = head - place.batch * params.problem.heads_kv;
    place.first_head = place.head_kv * params.group_size + head_tile * C.pack_heads;
    place.heads = min_int(C.pack_heads, params.group_size - head_tile * C.pack_heads);
    return place;
  }

  FC_DEVICE unsigned char* part(int cta, int slot, int warp) const {
    return reinterpret_cast<unsigned char*>(params.counters) + params.parts_offset +
           (static_cast<long long>(2 * cta + slot) * params.warps + warp) * part_bytes(T);
  }
};

}  // namespace flashcore::sm90_decode_fwd
