#pragma once
// How the parts of a tile merge in sm90_short_fwd. O's columns are dealt out in chunks of 8, 16 bytes of every lane,
// first to the key groups of a CTA and then to the CTAs of the cluster. A fragment goes to the same lane of the same
// warp there. Two steps, because what passes between CTAs is slow (some 15 bytes per clock and SM), and after the first
// step it is an n-th of the O.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90_short_fwd/context.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm90_short_fwd {

template <Traits T, Config C>
struct Merge {
  static constexpr int kMergeBarrier = 5;  // the first of up to four named barriers
  static constexpr int kGroupChunks = group_chunks(C, T);
  static constexpr int kPartChunks = part_chunks(C, T);

  const Context<T, C>& at;

  // Whether this key group's chunks have one of that index.
  FC_DEVICE bool group_owns(int chunk) const {
    return C.key_groups * kGroupChunks == chunks(T) || at.key_group * kGroupChunks + chunk < chunks(T);
  }

  // Whether this CTA's chunks of the group's have one of that index.
  FC_DEVICE bool part_owns(int chunk) const {
    if (C.cluster * kPartChunks == kGroupChunks && C.key_groups * kGroupChunks == chunks(T)) return true;
    return at.rank * kPartChunks + chunk < kGroupChunks && group_owns(at.rank * kPartChunks + chunk);
  }

  FC_DEVICE static RowState load_state(ptx::SharedAddress from) {
    const ptx::Vector4 word = ptx::ld_shared_v4(from);
    return {{ptx::float_of_bits(word.x), ptx::float_of_bits(word.z)},
            {ptx::float_of_bits(word.y), ptx::float_of_bits(word.w)}};
  }
  // Adds the chunk at `from`, weighted by row.
  FC_DEVICE static void add_chunk(float (&chunk)[4], ptx::SharedAddress from, const float (&weights)[2]) {
    const ptx::Vector4 o = ptx::ld_shared_v4(from);
    chunk[0] = ptx::fma(weights[0], ptx::float_of_bits(o.x), chunk[0]);
    chunk[1] = ptx::fma(weights[0], ptx::float_of_bits(o.y), chunk[1]);
    chunk[2] = ptx::fma(weights[1], ptx::float_of_bits(o.z), chunk[2]);
    chunk[3] = ptx::fma(weights[1], ptx::float_of_bits(o.w), chunk[3]);
  }
  template <int kCount>
  FC_DEVICE static void scale_chunks(float (&chunk)[kCount][4], const float (&weights)[2]) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) chunk[c][i] *= weights[i / 2];
    }
  }

  // Of the sender in the receiver's inbox, which has no slot for itself.
  FC_DEVICE static int slot_index(int to, int from) { return from < to ? from : from - 1; }

  // A choice by value: behind a branch on an index the compiler finds the index again, and registers become memory.
  FC_DEVICE static void keep(float& kept, bool own, float value) { kept = own ? value : kept; }

  // Over the key groups of this CTA: leaves this group's chunks.
  FC_DEVICE void over_groups(const float (&acc_o)[4 * chunks(T)], RowState& state, float (&o)[kGroupChunks][4]) const {
    const auto slot = [&](int to, int from) {
      return at.local_inbox(to) + slot_index(to, from) * local_slot_bytes(C, T);
    };
#pragma unroll
    for (int group = 0; group < C.key_groups; ++group) {
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
        if (group * kGroupChunks + c >= chunks(T)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) keep(o[c][i], group == at.key_group, acc_o[4 * (group * kGroupChunks + c) + i]);
      }
      if (group == at.key_group) continue;
      const ptx::SharedAddress to = slot(group, at.key_group);
      if (at.lane % 4 == 0)
        ptx::st_shared_v4(to + at.lane / 4 * 16, state.maximum[0], state.total[0], state.maximum[1], state.total[1]);
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
        const int chunk = group * kGroupChunks + c;
        if (chunk < chunks(T)) {
          ptx::st_shared_v4(to + kStateBytes + c * kChunkBytes + at.lane * 16, acc_o[4 * chunk], acc_o[4 * chunk + 1],
                            acc_o[4 * chunk + 2], acc_o[4 * chunk + 3]);
        }
      }
    }
    ptx::bar_sync(kMergeBarrier + at.row_group, 128 * C.key_groups);
    RowState others[C.key_groups];
    RowState merged = state;
#pragma unroll
    for (int group = 0; group < C.key_groups; ++group) {
      if (group == at.key_group) continue;
      others[group] = load_state(slot(at.key_group, group) + at.lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) merged.maximum[r] = ptx::max(merged.maximum[r], others[group].maximum[r]);
    }
    const auto weigh = [&](const RowState& from, float(&weights)[2], bool own) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weights[r] = tile::weight(from.maximum[r], merged.maximum[r]);
        merged.total[r] = own ? weights[r] * from.total[r] : ptx::fma(weights[r], from.total[r], merged.total[r]);
      }
    };
    float weights[2];
    weigh(state, weights, true);
    scale_chunks(o, weights);
#pragma unroll
    for (int group = 0; group < C.key_groups; ++group) {
      if (group == at.key_group) continue;
      weigh(others[group], weights, false);
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
        if (group_owns(c))
          add_chunk(o[c], slot(at.key_group, group) + kStateBytes + c * kChunkBytes + at.lane * 16, weights);
      }
    }
    state = merged;
  }

  // By one lane of warp 1, for the four warps of its warpgroup: what over_cluster sends to each.
  FC_DEVICE void expect_parts() const {
    int count =
        min_int(kPartChunks, min_int(kGroupChunks, chunks(T) - at.key_group * kGroupChunks) - at.rank * kPartChunks);
    if (count < 0) count = 0;
    for (int w = 0; w < 4; ++w) {
      const ptx::SharedAddress barrier = at.inbox_full() + 8 * (w - at.warp);
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, (C.cluster - 1) * (kStateBytes + count * kChunkBytes));
    }
  }

  // Over the CTAs of the cluster: leaves this CTA's chunks of the group's.
  FC_DEVICE void over_cluster(const float (&o)[kGroupChunks][4], RowState& state, float (&part)[kPartChunks][4]) const {
    const auto slot = [&](int to, int from) {
      return at.remote_inbox() + slot_index(to, from) * remote_slot_bytes(C, T);
    };
#pragma unroll
    for (int other = 0; other < C.cluster; ++other) {
      const auto chunk = [&](int c, int i) {
        return other * kPartChunks + c < kGroupChunks ? o[(other * kPartChunks + c) % kGroupChunks][i] : 0.0f;
      };
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) keep(part[c][i], other == at.rank, chunk(c, i));
      }
      if (other == at.rank) continue;
      const ptx::SharedAddress to = ptx::mapa(slot(other, at.rank), other);
      const ptx::SharedAddress barrier = ptx::mapa(at.inbox_full(), other);
      if (at.lane % 4 == 0) {
        ptx::st_async_v4(to + at.lane / 4 * 16, state.maximum[0], state.total[0], state.maximum[1], state.total[1],
                         barrier);
      }
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (other * kPartChunks + c < kGroupChunks && group_owns(other * kPartChunks + c)) {
          ptx::st_async_v4(to + kStateBytes + c * kChunkBytes + at.lane * 16, chunk(c, 0), chunk(c, 1), chunk(c, 2),
                           chunk(c, 3), barrier);
        }
      }
    }
    ptx::mbarrier_wait_cluster(at.inbox_full(), 0);
    RowState merged = state;
#pragma unroll
    for (int other = 0; other < C.cluster; ++other) {
      if (other == at.rank) continue;
      const RowState from = load_state(slot(at.rank, other) + at.lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) merged.maximum[r] = ptx::max(merged.maximum[r], from.maximum[r]);
    }
    float weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weights[r] = tile::weight(state.maximum[r], merged.maximum[r]);
      merged.total[r] = weights[r] * state.total[r];
    }
    scale_chunks(part, weights);
#pragma unroll
    for (int other = 0; other < C.cluster; ++other) {
      if (other == at.rank) continue;
      const RowState from = load_state(slot(at.rank, other) + at.lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weights[r] = tile::weight(from.maximum[r], merged.maximum[r]);
        merged.total[r] = ptx::fma(weights[r], from.total[r], merged.total[r]);
      }
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (part_owns(c))
          add_chunk(part[c], slot(at.rank, other) + kStateBytes + c * kChunkBytes + at.lane * 16, weights);
      }
    }
    state = merged;
  }
};

}  // namespace flashcore::sm90_short_fwd
