#pragma once
// How the parts of a tile merge in sm90_short_fwd. O's columns are dealt out in chunks of 8, first to the key groups of
// a CTA and then to the CTAs of the cluster. A fragment goes to the same lane of the same warp there. Two steps,
// because what passes between CTAs is slow (some 15 bytes per clock and SM), and after the first step it is an n-th of
// the O.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_short_fwd/context.cuh"
#include "kernels/tile/partial.cuh"

namespace flashcore::sm90_short_fwd {

// Of the sender in the receiver's exchange buffer, which has no slot for itself.
FC_DEVICE int slot_index(int to, int from) { return from < to ? from : from - 1; }

// Over the key groups of this CTA.
template <Traits T, Config C>
struct OverGroups {
  static constexpr int kMergeBarrier = 5;  // the first of up to four named barriers
  static constexpr int kChunks = group_chunks(C, T);
  const Context<T, C>& at;

  FC_DEVICE ptx::SharedAddress slot(int to, int from) const {
    return at.local_exchange(to) + slot_index(to, from) * tile::partial_bytes(kChunks);
  }
  FC_DEVICE auto writer(int to, int from) const {
    return [to = slot(to, from)](int offset, float a, float b, float c, float d) {
      ptx::st_shared_v4(to + offset, a, b, c, d);
    };
  }
  FC_DEVICE void wait() const { ptx::bar_sync(kMergeBarrier + at.row_group, 128 * C.key_groups); }
  FC_DEVICE bool exists(int) const { return true; }
  FC_DEVICE bool owns(int chunk) const {
    return C.key_groups * kChunks == chunks(T) || at.key_group * kChunks + chunk < chunks(T);
  }
};

// Over the CTAs of the cluster, of the key group's chunks.
template <Traits T, Config C>
struct OverCluster {
  static constexpr int kGroupChunks = group_chunks(C, T);
  static constexpr int kChunks = part_chunks(C, T);
  const Context<T, C>& at;

  FC_DEVICE ptx::SharedAddress slot(int to, int from) const {
    return at.remote_exchange() + slot_index(to, from) * tile::partial_bytes(kChunks);
  }
  FC_DEVICE auto writer(int to, int from) const {
    return [to = ptx::mapa(slot(to, from), to), barrier = ptx::mapa(at.exchange_full(), to)](
               int offset, float a, float b, float c, float d) { ptx::st_async_v4(to + offset, a, b, c, d, barrier); };
  }
  FC_DEVICE void wait() const { ptx::mbarrier_wait_cluster(at.exchange_full(), 0); }
  FC_DEVICE bool exists(int chunk) const { return OverGroups<T, C>{at}.owns(chunk); }
  FC_DEVICE bool owns(int chunk) const {
    if (C.cluster * kChunks == kGroupChunks && C.key_groups * kGroupChunks == chunks(T)) return true;
    return at.rank * kChunks + chunk < kGroupChunks && exists(at.rank * kChunks + chunk);
  }

  // By one lane of warp 1, for the four warps of its warpgroup: what the other CTAs send to each.
  FC_DEVICE void expect_parts() const {
    int count = min_int(kChunks, min_int(kGroupChunks, chunks(T) - at.key_group * kGroupChunks) - at.rank * kChunks);
    if (count < 0) count = 0;
    for (int w = 0; w < 4; ++w) {
      const ptx::SharedAddress barrier = at.exchange_full() + 8 * (w - at.warp);
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, (C.cluster - 1) * tile::partial_bytes(count));
    }
  }
};

}  // namespace flashcore::sm90_short_fwd
