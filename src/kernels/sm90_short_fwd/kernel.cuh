#pragma once
// Forward attention for Hopper where time is latency: few rows, or few tiles. Warpgroups load for themselves by TMA,
// without a producer; the keys of a tile are split over warpgroups and over the CTAs of a cluster, and the parts merge
// through distributed shared memory, each finishing its share of O's columns. One kernel, no workspace.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/griddepcontrol.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90_short_fwd/config.h"
#include "kernels/sm90_short_fwd/params.h"
#include "kernels/tile/element.cuh"
#include "kernels/tile/row_softmax.cuh"

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

template <Traits T, Config C>
struct Kernel {
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kBlockN = C.block_n;
  static constexpr int kParts = parts(C);
  static constexpr int kRefillBarrier = 1, kMergeBarrier = 5;  // the first of up to four named barriers each
  static constexpr int kPositions = positions(C);
  static constexpr int kGroupChunks = group_chunks(C, T);
  static constexpr int kPartChunks = part_chunks(C, T);

  const Params<ptx::TensorMap>& params;
  const ptx::SharedAddress shared = ptx::dynamic_shared();
  const int warpgroup, warp, lane;  // warp: of the warpgroup
  const int row_group, key_group;
  const int rank;  // of the CTA in its cluster

  // Where the tile lies and which keys this part has of it.
  int batch, head_kv;
  int first_head;           // query head of row 0
  int heads;                // of the tile that exist
  int first_position;       // of this warpgroup's row 0
  int first_block, blocks;  // of block_n keys, of those that some row of the CTA's tile sees

  float acc_o[kDimV / 2];
  float acc_s[kBlockN / 2];
  unsigned p[kBlockN / 16][4];
  tile::RowSoftmax<true> softmax;
  RowState state;              // of the lane's two rows, and in the end of the whole row
  unsigned short* outputs[2];  // this lane's first column in them

  FC_DEVICE explicit Kernel(const Params<ptx::TensorMap>& parameters)
      : params(parameters),
        warpgroup(ptx::shfl_idx(ptx::tid_x() / 128, 0)),
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

  FC_DEVICE static int min_int(int a, int b) { return a < b ? a : b; }

  // --- what to do -------------------------------------------------------------------------------------------------
  // The grid is (heads, batch, row tiles) and needs no division where one tile holds a key head's query heads. Under a
  // causal mask the longest tiles come first.
  FC_DEVICE void find_tile() {
    const ForwardParams& problem = params.problem;
    constexpr int kTilePositions = kPositions * C.row_groups;
    int head_tile = 0;
    head_kv = ptx::ctaid_x() / C.cluster;
    if (params.head_tiles > 1) {
      const int number = head_kv;
      head_kv = number / params.head_tiles;
      head_tile = number - head_kv * params.head_tiles;
    }
    batch = ptx::ctaid_y();
    const int row_tile = T.causal ? ptx::nctaid_z() - 1 - ptx::ctaid_z() : ptx::ctaid_z();
    first_head = head_kv * params.group_size + head_tile * C.pack_heads;
    heads = min_int(C.pack_heads, params.group_size - head_tile * C.pack_heads);
    first_position = row_tile * kTilePositions + row_group * kPositions;
    int end = problem.seqlen_kv;
    if constexpr (T.causal) {
      const int last = min_int((row_tile + 1) * kTilePositions, problem.seqlen_q) - 1;
      end = min_int(end, last + problem.causal_offset + 1);
    }
    const int all_blocks = end <= 0 ? 0 : (end + kBlockN - 1) / kBlockN;
    const int part = rank * C.key_groups + key_group;
    first_block = part * all_blocks / kParts;
    blocks = (part + 1) * all_blocks / kParts - first_block;
  }

  // Whether any of the warp's 16 rows exists.
  FC_DEVICE bool warp_has_rows() const {
    return 16 * warp / kPositions < heads && first_position + 16 * warp % kPositions < params.problem.seqlen_q;
  }

  // --- load -------------------------------------------------------------------------------------------------------
  template <int kBlocks>
  FC_DEVICE static void load_tile(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                                  int rows, int row, int head, int batch_index) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      ptx::tma_load_4d(destination + b * rows * 128, map, barrier, 64 * b, row, head, batch_index);
  }
  FC_DEVICE void load_k(int index) {
    const int stage = index % C.num_stages;
    ptx::mbarrier_arrive_expect_tx(k_full(stage), k_tile_bytes(C, T));
    load_tile<column_blocks(T.head_dim)>(k(stage), params.k, k_full(stage), kBlockN, (first_block + index) * kBlockN,
                                         head_kv, batch);
  }
  FC_DEVICE void load_v(int index) {
    const int stage = index % C.num_stages;
    ptx::mbarrier_arrive_expect_tx(v_full(stage), v_tile_bytes(C, T));
    load_tile<column_blocks(T.head_dim_v)>(v(stage), params.v, v_full(stage), kBlockN, (first_block + index) * kBlockN,
                                           head_kv, batch);
  }

  // One thread of each key group makes the barriers that its loads complete on, and issues them in the order in which
  // they are waited for: the tensor memory accelerator serves them one after another.
  FC_DEVICE void start_loads() {
    if (lane == 0 && row_group == 0) {
      if (warp == 0) {
        for (int stage = 0; stage < C.num_stages; ++stage)
          ptx::mbarrier_init(k_full(stage), 1), ptx::mbarrier_init(v_full(stage), 1);
        if (key_group == 0) ptx::mbarrier_init(q_full(), 1);
        ptx::fence_mbarrier_init();
        if constexpr (C.early_launch) ptx::griddepcontrol_wait();
        if (key_group == 0) {
          ptx::mbarrier_arrive_expect_tx(q_full(), C.row_groups * q_tile_bytes(T));
#pragma unroll
          for (int group = 0; group < C.row_groups; ++group) {
            load_tile<column_blocks(T.head_dim)>(q(group), params.q, q_full(), kTileRows,
                                                 first_position + group * kPositions, first_head, batch);
          }
        }
        for (int i = 0; i < min_int(blocks, C.num_stages); ++i) load_k(i), load_v(i);
      }
    }
    if constexpr (C.cluster > 1) {
      if (lane == 0 && warp == 1) expect_parts();
    }
    if constexpr (C.early_launch) ptx::griddepcontrol_launch_dependents();
    ptx::bar_sync();
    // All of the cluster have started and made their barriers. Waited for here, where the loads take their time.
    if constexpr (C.cluster > 1) ptx::cluster_arrive_relaxed(), ptx::cluster_wait();
  }

  // The stages of block `index`'s K and of the V before it are free once every warp that read them is here.
  FC_DEVICE void refill(int index) {
    const bool more_v = index > 0 && index - 1 + C.num_stages < blocks;
    const bool more_k = index + C.num_stages < blocks;
    if (!more_k && !more_v) return;
    ptx::bar_sync(kRefillBarrier + key_group, 128 * C.row_groups);
    if (lane == 0 && warp == 0 && row_group == 0) {
      if (more_v) load_v(index - 1 + C.num_stages);
      if (more_k) load_k(index + C.num_stages);
    }
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE void wait_k(int index) { ptx::mbarrier_wait(k_full(index % C.num_stages), index / C.num_stages % 2); }
  FC_DEVICE void wait_v(int index) { ptx::mbarrier_wait(v_full(index % C.num_stages), index / C.num_stages % 2); }

  FC_DEVICE void issue_scores(int index) {
    // K-major operands ignore the leading offset.
    const ptx::WgmmaDescriptor rows = ptx::WgmmaDescriptor::of(q(row_group), 16);
    const ptx::WgmmaDescriptor keys = ptx::WgmmaDescriptor::of(k(index % C.num_stages), 16);
    ptx::wgmma_registers(acc_s);
    ptx::wgmma_fence();
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      ptx::wgmma_ss<kBf16>(acc_s, rows.advanced(d / 4 * (kTileRows * 128) + d % 4 * 32).word(),
                           keys.advanced(d / 4 * (kBlockN * 128) + d % 4 * 32).word(), d > 0);
    }
    ptx::wgmma_commit();
  }
  // P·V over the keys [16 kBegin, 16 kEnd) of the block.
  template <int kBegin, int kEnd>
  FC_DEVICE void issue_values(int index) {
    const ptx::WgmmaDescriptor values = ptx::WgmmaDescriptor::of(v(index % C.num_stages), kBlockN * 128);
    ptx::wgmma_registers(acc_o);
    ptx::wgmma_fence();
#pragma unroll
    for (int n = kBegin; n < kEnd; ++n) {
      ptx::wgmma_rs<kBf16, true>(acc_o, p[n], values.advanced(n * 2048).word(), 1);
    }
    ptx::wgmma_commit();
  }

  // The accumulator layout of m64nN is the operand layout of m64k16, 16 columns at a time.
  template <int kBegin, int kEnd>
  FC_DEVICE void convert_p() {
#pragma unroll
    for (int n = kBegin; n < kEnd; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[n][i] = tile::pack<T.element>(acc_s[8 * n + 2 * i], acc_s[8 * n + 2 * i + 1]);
      ptx::wgmma_registers(p[n]);
    }
  }

  FC_DEVICE int row(int r) const { return 16 * warp + lane / 4 + 8 * r; }
  FC_DEVICE int position(int r) const { return first_position + row(r) % kPositions; }

  FC_DEVICE void mask(int block) {
    const int first_key = block * kBlockN + 2 * (lane % 4);
    int end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end[r] = params.problem.seqlen_kv;
      if constexpr (T.causal) end[r] = min_int(end[r], position(r) + params.problem.causal_offset + 1);
    }
#pragma unroll
    for (int i = 0; i < kBlockN / 2; ++i) {
      if (first_key + i / 4 * 8 + i % 2 >= end[i / 2 % 2]) acc_s[i] = ptx::negative_infinity();
    }
  }
  FC_DEVICE bool needs_mask(int block) const {
    int full_end = params.problem.seqlen_kv;
    if constexpr (T.causal) full_end = min_int(full_end, first_position + params.problem.causal_offset + 1);
    return (block + 1) * kBlockN > full_end;
  }

  // One block, as in short problems: the first half's P·V runs under the exponentials of the second.
  FC_DEVICE void attend_single() {
    constexpr int kSteps = kBlockN / 16, kHalf = kSteps / 2;
    softmax.start(acc_s, params.problem.scale_log2);
    softmax.template exponentiate<0, 8 * kHalf>(acc_s, params.problem.scale_log2);
    convert_p<0, kHalf>();
    wait_v(0);
    issue_values<0, kHalf>(0);
    softmax.template exponentiate<8 * kHalf, 8 * kSteps>(acc_s, params.problem.scale_log2);
    convert_p<kHalf, kSteps>();
    issue_values<kHalf, kSteps>(0);
    prepare_finish();
    ptx::wgmma_wait<0>();  // in each branch: behind the join ptxas serialises the multiplies (C7515)
    ptx::wgmma_registers(acc_o);
  }

  FC_DEVICE void attend_many() {
    constexpr int kSteps = kBlockN / 16;
    const float scale_log2 = params.problem.scale_log2;
    softmax.first(acc_s, scale_log2);
    convert_p<0, kSteps>();
#pragma unroll 1
    for (int index = 1; index < blocks; ++index) {
      wait_k(index);
      issue_scores(index);
      wait_v(index - 1);
      issue_values<0, kSteps>(index - 1);
      ptx::wgmma_wait<1>();
      ptx::wgmma_registers(acc_s);
      if (needs_mask(first_block + index)) mask(first_block + index);
      softmax.update(acc_s, scale_log2);
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      refill(index);
      softmax.rescale(acc_o);
      convert_p<0, kSteps>();
    }
    wait_v(blocks - 1);
    issue_values<0, kSteps>(blocks - 1);
    prepare_finish();
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_o);
  }

  FC_DEVICE void attend() {
#pragma unroll
    for (int i = 0; i < kDimV / 2; ++i) acc_o[i] = 0.0f;
    if (blocks == 0) {
      softmax.none();
      prepare_finish();
      return;
    }
    ptx::mbarrier_wait(q_full(), 0);
    wait_k(0);
    issue_scores(0);
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_s);
    refill(0);
    if (needs_mask(first_block)) mask(first_block);
    if (blocks == 1) attend_single();
    else attend_many();
  }

  // --- merge ------------------------------------------------------------------------------------------------------
  // O's columns are dealt out in chunks of 8, 16 bytes of every lane, first to the key groups of a CTA and then to the
  // CTAs of the cluster. A fragment goes to the same lane of the same warp there. Two steps, because what passes
  // between CTAs is slow (some 15 bytes per clock and SM), and after the first step it is an n-th of the O.

  // Whether this key group's chunks have one of that index.
  FC_DEVICE bool group_owns(int chunk) const {
    return C.key_groups * kGroupChunks == chunks(T) || key_group * kGroupChunks + chunk < chunks(T);
  }

  // O and the row's sum, relative to maximum `own` before and `common` after.
  FC_DEVICE static float weight(float own, float common) {
    return ptx::ex2(own - (common == ptx::negative_infinity() ? 0.0f : common));
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
  FC_DEVICE void merge_groups(float (&o)[kGroupChunks][4]) {
    const auto slot = [&](int to, int from) { return local_inbox(to) + slot_index(to, from) * local_slot_bytes(C, T); };
#pragma unroll
    for (int group = 0; group < C.key_groups; ++group) {
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
        if (group * kGroupChunks + c >= chunks(T)) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) keep(o[c][i], group == key_group, acc_o[4 * (group * kGroupChunks + c) + i]);
      }
      if (group == key_group) continue;
      const ptx::SharedAddress to = slot(group, key_group);
      if (lane % 4 == 0)
        ptx::st_shared_v4(to + lane / 4 * 16, state.maximum[0], state.total[0], state.maximum[1], state.total[1]);
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
        const int chunk = group * kGroupChunks + c;
        if (chunk < chunks(T)) {
          ptx::st_shared_v4(to + kStateBytes + c * kChunkBytes + lane * 16, acc_o[4 * chunk], acc_o[4 * chunk + 1],
                            acc_o[4 * chunk + 2], acc_o[4 * chunk + 3]);
        }
      }
    }
    ptx::bar_sync(kMergeBarrier + row_group, 128 * C.key_groups);
    RowState others[C.key_groups];
    RowState merged = state;
#pragma unroll
    for (int group = 0; group < C.key_groups; ++group) {
      if (group == key_group) continue;
      others[group] = load_state(slot(key_group, group) + lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) merged.maximum[r] = ptx::max(merged.maximum[r], others[group].maximum[r]);
    }
    const auto weigh = [&](const RowState& from, float(&weights)[2], bool own) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weights[r] = weight(from.maximum[r], merged.maximum[r]);
        merged.total[r] = own ? weights[r] * from.total[r] : ptx::fma(weights[r], from.total[r], merged.total[r]);
      }
    };
    float weights[2];
    weigh(state, weights, true);
    scale_chunks(o, weights);
#pragma unroll
    for (int group = 0; group < C.key_groups; ++group) {
      if (group == key_group) continue;
      weigh(others[group], weights, false);
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
        if (group_owns(c)) add_chunk(o[c], slot(key_group, group) + kStateBytes + c * kChunkBytes + lane * 16, weights);
      }
    }
    state = merged;
  }

  // By one lane of warp 1, for the four warps of its warpgroup: what merge_cluster sends to each.
  FC_DEVICE void expect_parts() {
    int count = min_int(kPartChunks, min_int(kGroupChunks, chunks(T) - key_group * kGroupChunks) - rank * kPartChunks);
    if (count < 0) count = 0;
    for (int w = 0; w < 4; ++w) {
      const ptx::SharedAddress barrier = inbox_full() + 8 * (w - warp);
      ptx::mbarrier_init(barrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(barrier, (C.cluster - 1) * (kStateBytes + count * kChunkBytes));
    }
  }

  // Over the CTAs of the cluster: leaves this CTA's chunks of the group's.
  FC_DEVICE void merge_cluster(const float (&o)[kGroupChunks][4], float (&part)[kPartChunks][4]) {
    const auto slot = [&](int to, int from) { return remote_inbox() + slot_index(to, from) * remote_slot_bytes(C, T); };
#pragma unroll
    for (int other = 0; other < C.cluster; ++other) {
      const auto chunk = [&](int c, int i) {
        return other * kPartChunks + c < kGroupChunks ? o[(other * kPartChunks + c) % kGroupChunks][i] : 0.0f;
      };
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) keep(part[c][i], other == rank, chunk(c, i));
      }
      if (other == rank) continue;
      const ptx::SharedAddress to = ptx::mapa(slot(other, rank), other);
      const ptx::SharedAddress barrier = ptx::mapa(inbox_full(), other);
      if (lane % 4 == 0) {
        ptx::st_async_v4(to + lane / 4 * 16, state.maximum[0], state.total[0], state.maximum[1], state.total[1],
                         barrier);
      }
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (other * kPartChunks + c < kGroupChunks && group_owns(other * kPartChunks + c)) {
          ptx::st_async_v4(to + kStateBytes + c * kChunkBytes + lane * 16, chunk(c, 0), chunk(c, 1), chunk(c, 2),
                           chunk(c, 3), barrier);
        }
      }
    }
    ptx::mbarrier_wait_cluster(inbox_full(), 0);
    RowState merged = state;
#pragma unroll
    for (int other = 0; other < C.cluster; ++other) {
      if (other == rank) continue;
      const RowState from = load_state(slot(rank, other) + lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) merged.maximum[r] = ptx::max(merged.maximum[r], from.maximum[r]);
    }
    float weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weights[r] = weight(state.maximum[r], merged.maximum[r]);
      merged.total[r] = weights[r] * state.total[r];
    }
    scale_chunks(part, weights);
#pragma unroll
    for (int other = 0; other < C.cluster; ++other) {
      if (other == rank) continue;
      const RowState from = load_state(slot(rank, other) + lane / 4 * 16);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weights[r] = weight(from.maximum[r], merged.maximum[r]);
        merged.total[r] = ptx::fma(weights[r], from.total[r], merged.total[r]);
      }
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (part_owns(c)) add_chunk(part[c], slot(rank, other) + kStateBytes + c * kChunkBytes + lane * 16, weights);
      }
    }
    state = merged;
  }
  // Whether this CTA's chunks of the group's have one of that index.
  FC_DEVICE bool part_owns(int chunk) const {
    if (C.cluster * kPartChunks == kGroupChunks && C.key_groups * kGroupChunks == chunks(T)) return true;
    return rank * kPartChunks + chunk < kGroupChunks && group_owns(rank * kPartChunks + chunk);
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  FC_DEVICE bool row_exists(int r) const {
    return row(r) / kPositions < heads && position(r) < params.problem.seqlen_q;
  }

  FC_DEVICE void store_lse() const {
    const ForwardParams& problem = params.problem;
    if (!problem.lse || lane % 4 != 0 || key_group != 0 || rank != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!row_exists(r)) continue;
      const long long head = static_cast<long long>(batch) * problem.heads_q + first_head + row(r) / kPositions;
      ptx::st_global_f32(problem.lse + head * problem.seqlen_q + position(r),
                         tile::log_sum_exp(state.maximum[r], state.total[r]));
    }
  }

  // This lane's first column of the part's, in row r of O.
  FC_DEVICE unsigned short* output(int r) const {
    const ForwardParams& problem = params.problem;
    return static_cast<unsigned short*>(problem.o) + batch * problem.o_stride.batch +
           (first_head + row(r) / kPositions) * problem.o_stride.head + position(r) * problem.o_stride.row +
           (key_group * kGroupChunks + rank * kPartChunks) * 8 + 2 * (lane % 4);
  }
  // Whether the part's chunk lies within O's columns, of which wgmma computes a multiple of 16. Asked at run time: an
  // accumulator that nothing reads makes ptxas serialise the multiplies (C7511).
  FC_DEVICE bool is_column(int chunk) const {
    if (T.head_dim_v % 16 == 0) return true;
    return (key_group * kGroupChunks + rank * kPartChunks + chunk) * 8 < ptx::opaque(T.head_dim_v);
  }
  FC_DEVICE void store(const float (&part)[kPartChunks][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!row_exists(r)) continue;
      const float scale = tile::inverse_sum(state.total[r]);
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (!part_owns(c) || !is_column(c)) continue;
        ptx::st_global_u32(reinterpret_cast<unsigned*>(outputs[r] + 8 * c),
                           tile::pack<T.element>(part[c][2 * r] * scale, part[c][2 * r + 1] * scale));
      }
    }
  }

  // What can be done while the last P·V runs.
  FC_DEVICE void prepare_finish() {
    state = {{softmax.max_scaled[0], softmax.max_scaled[1]},
             {tile::quad_sum(softmax.sum[0]), tile::quad_sum(softmax.sum[1])}};
    outputs[0] = ptx::opaque(output(0)), outputs[1] = ptx::opaque(output(1));
  }

  FC_DEVICE void finish() {
    const bool has_rows = warp_has_rows();  // the same in every part: nobody sends to a warp without
    float group_o[kGroupChunks][4] = {};
    if constexpr (C.key_groups > 1) {
      merge_groups(group_o);
    } else {
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) group_o[c][i] = acc_o[4 * c + i];
      }
    }
    if (!has_rows) return;
    if constexpr (C.cluster > 1) {
      float part[kPartChunks][4] = {};
      merge_cluster(group_o, part);
      store_lse();
      store(part);
    } else {
      store_lse();
      store(group_o);
    }
  }

  FC_DEVICE void run() {
    if (lane == 0 && warp == 0 && row_group == 0) {
      if (key_group == 0) ptx::prefetch_tensormap(params.q);
      ptx::prefetch_tensormap(params.k);
      ptx::prefetch_tensormap(params.v);
    }
    find_tile();
    start_loads();
    attend();
    finish();
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ Params<ptx::TensorMap> params) {
  Kernel<T, C>(params).run();
}

}  // namespace flashcore::sm90_short_fwd
