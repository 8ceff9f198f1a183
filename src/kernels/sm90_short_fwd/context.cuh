#pragma once
// Shared memory of sm90_short_fwd, and a thread's place in the tile.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm90_short_fwd/config.h"

namespace flashcore::sm90_short_fwd {

struct Barrier {
  unsigned long long word;
};

template <Traits T, Config C>
struct SharedStorage {
  unsigned char q[C.row_groups][q_tile_bytes(T)];
  unsigned char k[C.key_groups][C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.key_groups][C.num_stages][v_tile_bytes(C, T)];
  // From the key groups of the CTA, then from the CTAs of the cluster.
  unsigned char inboxes[4 * warpgroups(C) * (local_inbox_bytes(C, T) + remote_inbox_bytes(C, T)) +
                        tile::round_up(barrier_bytes(C), 128) - barrier_bytes(C)];
  Barrier q_full;
  Barrier k_full[C.key_groups][C.num_stages];
  Barrier v_full[C.key_groups][C.num_stages];
  Barrier inbox_full[4 * warpgroups(C)];
};

struct RowState {
  float maximum[2], total[2];  // the maximum · scale_log2, and the sum of 2^(score - maximum)
};

FC_DEVICE int min_int(int a, int b) { return a < b ? a : b; }

template <Traits T, Config C>
struct Context {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const ptx::SharedAddress shared = ptx::dynamic_shared();
  const int warpgroup, warp, lane;  // warp: of the warpgroup
  const int row_group, key_group;
  const int rank;  // of the CTA in its cluster

  FC_DEVICE Context()
      : warpgroup(ptx::shfl_idx(ptx::tid_x() / 128, 0)),
        warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) % 4),
        lane(ptx::tid_x() % 32),
        row_group(warpgroup % C.row_groups),
        key_group(warpgroup / C.row_groups),
        rank(C.cluster == 1 ? 0 : ptx::cluster_ctarank()) {}

  FC_DEVICE ptx::SharedAddress q(int group) const {
    return shared + FC_OFFSET_OF(Storage, q) + group * q_tile_bytes(T);
  }
  FC_DEVICE ptx::SharedAddress k(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k) + (key_group * C.num_stages + stage) * k_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress v(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v) + (key_group * C.num_stages + stage) * v_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress q_full() const { return shared + FC_OFFSET_OF(Storage, q_full); }
  FC_DEVICE ptx::SharedAddress k_full(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k_full) + 8 * (key_group * C.num_stages + stage);
  }
  FC_DEVICE ptx::SharedAddress v_full(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v_full) + 8 * (key_group * C.num_stages + stage);
  }
  // Of the warp with this one's rows in key group `group`.
  FC_DEVICE int inbox_index(int group) const { return 4 * (group * C.row_groups + row_group) + warp; }
  FC_DEVICE ptx::SharedAddress local_inbox(int group) const {
    return shared + FC_OFFSET_OF(Storage, inboxes) + inbox_index(group) * local_inbox_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress remote_inbox() const {
    return shared + FC_OFFSET_OF(Storage, inboxes) + 4 * warpgroups(C) * local_inbox_bytes(C, T) +
           inbox_index(key_group) * remote_inbox_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress inbox_full() const {
    return shared + FC_OFFSET_OF(Storage, inbox_full) + 8 * inbox_index(key_group);
  }
};

}  // namespace flashcore::sm90_short_fwd
