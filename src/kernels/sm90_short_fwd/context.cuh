#pragma once
// Shared memory of sm90_short_fwd, and a thread's place in the tile.

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/sm90_short_fwd/config.h"
#include "kernels/tile/pipeline.cuh"

namespace flashcore::sm90_short_fwd {

using tile::Barrier;
using tile::min_int;

template <Traits T, Config C>
struct SharedStorage {
  unsigned char q[C.row_groups][q_tile_bytes(T)];
  unsigned char k[C.key_groups][C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.key_groups][C.num_stages][v_tile_bytes(C, T)];
  // From the key groups of the CTA, then from the CTAs of the cluster.
  unsigned char exchange[4 * warpgroups(C) * (local_exchange_bytes(C, T) + remote_exchange_bytes(C, T)) +
                         tile::round_up(barrier_bytes(C), 128) - barrier_bytes(C)];
  Barrier q_full[1];
  Barrier k_full[C.key_groups][C.num_stages];
  Barrier v_full[C.key_groups][C.num_stages];
  Barrier exchange_full[4 * warpgroups(C)];
};

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

  FC_SHARED_ADDRESS(q)
  FC_SHARED_ADDRESS(q_full)
  FC_SHARED_ADDRESS_2D(k)
  FC_SHARED_ADDRESS_2D(v)
  FC_SHARED_ADDRESS_2D(k_full)
  FC_SHARED_ADDRESS_2D(v_full)

  // Of the warp with this one's rows in key group `group`: what it receives from the other key groups of its CTA, and
  // from the other CTAs.
  FC_DEVICE int exchange_index(int group) const { return 4 * (group * C.row_groups + row_group) + warp; }
  FC_DEVICE ptx::SharedAddress local_exchange(int group) const {
    return shared + FC_OFFSET_OF(Storage, exchange) + exchange_index(group) * local_exchange_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress remote_exchange() const {
    return shared + FC_OFFSET_OF(Storage, exchange) + 4 * warpgroups(C) * local_exchange_bytes(C, T) +
           exchange_index(key_group) * remote_exchange_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress exchange_full() const {
    return shared + FC_OFFSET_OF(Storage, exchange_full) + 8 * exchange_index(key_group);
  }
};

}  // namespace flashcore::sm90_short_fwd
