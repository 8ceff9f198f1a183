#pragma once
// Forward attention for Hopper where time is latency: few rows, or few tiles. Warpgroups load for themselves by TMA,
// without a producer; the keys of a tile are split over warpgroups and over the CTAs of a cluster, and the parts merge
// through distributed shared memory, each finishing its share of O's columns. One kernel, no workspace.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/griddepcontrol.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90_short_fwd/config.h"
#include "kernels/sm90_short_fwd/context.cuh"
#include "kernels/sm90_short_fwd/merge.cuh"
#include "kernels/sm90_short_fwd/params.h"
#include "kernels/tile/element.cuh"
#include "kernels/tile/row_softmax.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace flashcore::sm90_short_fwd {

template <Traits T, Config C>
struct Kernel {
  static constexpr bool kBf16 = T.element == Element::kBF16;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kBlockN = C.block_n;
  static constexpr int kParts = parts(C);
  static constexpr int kRefillBarrier = 1;  // the first of up to four named barriers
  static constexpr int kPositions = positions(C);
  static constexpr int kGroupChunks = group_chunks(C, T);
  static constexpr int kPartChunks = part_chunks(C, T);

  const Params<ptx::TensorMap>& params;
  const Context<T, C> at;

  // Where the tile lies and which keys this part has of it.
  int batch, head_kv;
  int first_head;           // query head of row 0
  int heads;                // of the tile that exist
  int first_position;       // of this warpgroup's row 0
  int first_block, blocks;  // of block_n keys, of those that some row of the CTA's tile sees: every kParts-th

  float acc_o[kDimV / 2];
  float acc_s[kBlockN / 2];
  unsigned p[kBlockN / 16][4];
  tile::RowSoftmax<T.element, kRescaleThreshold> softmax;
  RowState state;              // of the lane's two rows, and in the end of the whole row
  unsigned short* outputs[2];  // this lane's first column in them
  float inverse[2];            // of the row's sum, where one part has all keys

  FC_DEVICE explicit Kernel(const Params<ptx::TensorMap>& parameters) : params(parameters) {}

  // Made where it is used: kept beside what it refers to, it would put both into local memory.
  FC_DEVICE Merge<T, C> merge() const { return {at}; }

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
    const int row_tile = T.bounded_right ? ptx::nctaid_z() - 1 - ptx::ctaid_z() : ptx::ctaid_z();
    first_head = head_kv * params.group_size + head_tile * C.pack_heads;
    heads = min_int(C.pack_heads, params.group_size - head_tile * C.pack_heads);
    first_position = row_tile * kTilePositions + at.row_group * kPositions;
    int end = problem.seqlen_kv;
    if constexpr (T.bounded_right) {
      const int last = min_int((row_tile + 1) * kTilePositions, problem.seqlen_q) - 1;
      end = min_int(end, last + problem.right_offset + 1);
    }
    const int all_blocks = end <= 0 ? 0 : (end + kBlockN - 1) / kBlockN;
    // Every kParts-th block: neighbours read neighbouring DRAM, and a mask takes as much from each.
    first_block = at.rank * C.key_groups + at.key_group;
    blocks = (all_blocks - first_block + kParts - 1) / kParts;
  }

  FC_DEVICE int block_at(int index) const { return first_block + index * kParts; }

  // Whether any of the warp's 16 rows exists.
  FC_DEVICE bool warp_has_rows() const {
    return 16 * at.warp / kPositions < heads && first_position + 16 * at.warp % kPositions < params.problem.seqlen_q;
  }

  // --- load -------------------------------------------------------------------------------------------------------
  FC_DEVICE void load_k(int index) {
    const int stage = index % C.num_stages;
    ptx::mbarrier_arrive_expect_tx(at.k_full(stage), k_tile_bytes(C, T));
    tile::load_rows<column_blocks(T.head_dim)>(at.k(stage), params.k, at.k_full(stage), kBlockN,
                                               block_at(index) * kBlockN, head_kv, batch);
  }
  FC_DEVICE void load_v(int index) {
    const int stage = index % C.num_stages;
    ptx::mbarrier_arrive_expect_tx(at.v_full(stage), v_tile_bytes(C, T));
    tile::load_rows<column_blocks(T.head_dim_v)>(at.v(stage), params.v, at.v_full(stage), kBlockN,
                                                 block_at(index) * kBlockN, head_kv, batch);
  }

  // One thread of each key group makes the barriers that its loads complete on, and issues them in the order in which
  // they are waited for: the tensor memory accelerator serves them one after another.
  FC_DEVICE void start_loads() {
    if (at.lane == 0 && at.row_group == 0) {
      if (at.warp == 0) {
        for (int stage = 0; stage < C.num_stages; ++stage)
          ptx::mbarrier_init(at.k_full(stage), 1), ptx::mbarrier_init(at.v_full(stage), 1);
        if (at.key_group == 0) ptx::mbarrier_init(at.q_full(), 1);
        ptx::fence_mbarrier_init();
        if constexpr (C.early_launch) ptx::griddepcontrol_wait();
        if (at.key_group == 0) {
          ptx::mbarrier_arrive_expect_tx(at.q_full(), C.row_groups * q_tile_bytes(T));
#pragma unroll
          for (int group = 0; group < C.row_groups; ++group) {
            tile::load_rows<column_blocks(T.head_dim)>(at.q(group), params.q, at.q_full(), kTileRows,
                                                       first_position + group * kPositions, first_head, batch);
          }
        }
        for (int i = 0; i < min_int(blocks, C.num_stages); ++i) load_k(i), load_v(i);
      }
    }
    if constexpr (C.cluster > 1) {
      if (at.lane == 0 && at.warp == 1) merge().expect_parts();
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
    ptx::bar_sync(kRefillBarrier + at.key_group, 128 * C.row_groups);
    if (at.lane == 0 && at.warp == 0 && at.row_group == 0) {
      if (more_v) load_v(index - 1 + C.num_stages);
      if (more_k) load_k(index + C.num_stages);
    }
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE void wait_k(int index) { ptx::mbarrier_wait(at.k_full(index % C.num_stages), index / C.num_stages % 2); }
  FC_DEVICE void wait_v(int index) { ptx::mbarrier_wait(at.v_full(index % C.num_stages), index / C.num_stages % 2); }

  FC_DEVICE void issue_scores(int index) {
    // K-major operands ignore the leading offset.
    tile::issue_scores<kBf16, kDim, kTileRows, kBlockN>(acc_s, ptx::WgmmaDescriptor::of(at.q(at.row_group), 16),
                                                        ptx::WgmmaDescriptor::of(at.k(index % C.num_stages), 16));
  }
  // P·V over the keys [16 kBegin, 16 kEnd) of the block.
  template <int kBegin, int kEnd>
  FC_DEVICE void issue_values(int index) {
    tile::issue_values<kBf16, kBegin, kEnd>(acc_o, p,
                                            ptx::WgmmaDescriptor::of(at.v(index % C.num_stages), kBlockN * 128));
  }

  FC_DEVICE int row(int r) const { return 16 * at.warp + at.lane / 4 + 8 * r; }
  FC_DEVICE int position(int r) const { return first_position + row(r) % kPositions; }

  FC_DEVICE void mask(int block) {
    const int first_key = block * kBlockN + 2 * (at.lane % 4);
    int end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end[r] = params.problem.seqlen_kv;
      if constexpr (T.bounded_right) end[r] = min_int(end[r], position(r) + params.problem.right_offset + 1);
    }
    tile::mask_keys(acc_s, first_key, end);
  }
  FC_DEVICE bool needs_mask(int block) const {
    int full_end = params.problem.seqlen_kv;
    if constexpr (T.bounded_right) full_end = min_int(full_end, first_position + params.problem.right_offset + 1);
    return (block + 1) * kBlockN > full_end;
  }

  // One block, as in short problems: the first half's P·V runs under the exponentials of the second.
  FC_DEVICE void attend_single() {
    constexpr int kSteps = kBlockN / 16, kHalf = kSteps / 2;
    const float scale_log2 = params.problem.scale_log2;
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, 8 * kHalf>(acc_s, scale_log2, p);
    wait_v(0);
    issue_values<0, kHalf>(0);
    softmax.template add<8 * kHalf, 8 * kSteps>(acc_s, scale_log2, p);
    issue_values<kHalf, kSteps>(0);
    prepare_finish();
    ptx::wgmma_wait<0>();  // in each branch: behind the join ptxas serialises the multiplies (C7515)
    ptx::wgmma_registers(acc_o);
  }

  FC_DEVICE void attend_many() {
    constexpr int kSteps = kBlockN / 16;
    const float scale_log2 = params.problem.scale_log2;
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, 8 * kSteps>(acc_s, scale_log2, p);
#pragma unroll 1
    for (int index = 1; index < blocks; ++index) {
      wait_k(index);
      issue_scores(index);
      wait_v(index - 1);
      issue_values<0, kSteps>(index - 1);
      ptx::wgmma_wait<1>();
      ptx::wgmma_registers(acc_s);
      if (needs_mask(block_at(index))) mask(block_at(index));
      ptx::wgmma_wait<0>();
      ptx::wgmma_registers(acc_o);
      refill(index);
      softmax.update(acc_s, scale_log2, p, acc_o);
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
    ptx::mbarrier_wait(at.q_full(), 0);
    wait_k(0);
    issue_scores(0);
    ptx::wgmma_wait<0>();
    ptx::wgmma_registers(acc_s);
    refill(0);
    if (needs_mask(first_block)) mask(first_block);
    if (blocks == 1) attend_single();
    else attend_many();
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  FC_DEVICE bool row_exists(int r) const {
    return row(r) / kPositions < heads && position(r) < params.problem.seqlen_q;
  }

  // After O: 3% of a short problem, measured.
  FC_DEVICE void store_lse() const {
    const ForwardParams& problem = params.problem;
    if (!problem.lse || at.lane % 4 != 0 || at.key_group != 0 || at.rank != 0) return;
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
           (at.key_group * kGroupChunks + at.rank * kPartChunks) * 8 + 2 * (at.lane % 4);
  }
  // Whether the part's chunk lies within O's columns, of which wgmma computes a multiple of 16. Asked at run time: an
  // accumulator that nothing reads makes ptxas serialise the multiplies (C7511).
  FC_DEVICE bool is_column(int chunk) const {
    if (T.head_dim_v % 16 == 0) return true;
    return (at.key_group * kGroupChunks + at.rank * kPartChunks + chunk) * 8 < ptx::opaque(T.head_dim_v);
  }
  FC_DEVICE void store(const float (&part)[kPartChunks][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!row_exists(r)) continue;
      const float scale = kParts == 1 ? inverse[r] : tile::inverse_sum(state.total[r]);
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (!merge().part_owns(c) || !is_column(c)) continue;
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
    if constexpr (kParts == 1) {
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] = tile::inverse_sum(state.total[r]);
    }
  }

  FC_DEVICE void finish() {
    const bool has_rows = warp_has_rows();  // the same in every part: nobody sends to a warp without
    float group_o[kGroupChunks][4] = {};
    if constexpr (C.key_groups > 1) {
      merge().over_groups(acc_o, state, group_o);
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
      merge().over_cluster(group_o, state, part);
      store(part);
      store_lse();
    } else {
      store(group_o);
      store_lse();
    }
  }

  FC_DEVICE void run() {
    if (at.lane == 0 && at.warp == 0 && at.row_group == 0) {
      if (at.key_group == 0) ptx::prefetch_tensormap(params.q);
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
