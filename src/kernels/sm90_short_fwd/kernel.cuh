#pragma once
// Forward attention for Hopper where time is latency: few rows, or few tiles. Warpgroups load for themselves by TMA,
// without a producer; the keys of a tile are split over warpgroups and over the CTAs of a cluster, and the parts merge
// through distributed shared memory, each finishing its share of O's columns. One kernel, no workspace.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/griddepcontrol.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/sm90_short_fwd/config.h"
#include "kernels/sm90_short_fwd/context.cuh"
#include "kernels/sm90_short_fwd/merge.cuh"
#include "kernels/sm90_short_fwd/pages.cuh"
#include "kernels/sm90_short_fwd/params.h"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/warpgroup.cuh"

namespace flashcore::sm90_short_fwd {

template <Traits T, Config C>
struct Kernel : tile::AttentionWarpgroup<Kernel<T, C>, T, C.block_n, kRescaleThreshold>,
                StateOfKernel<T.paged, T, C>::Type {
  using Base = tile::AttentionWarpgroup<Kernel<T, C>, T, C.block_n, kRescaleThreshold>;
  using Base::acc_o, Base::acc_s, Base::p, Base::softmax, Base::mark;
  using Activity = tile::Activity;
  using TileQ = tile::TmaTile<kTileRows, T.head_dim>;
  using TileK = tile::TmaTile<C.block_n, T.head_dim>;
  using TileV = tile::TmaTile<C.block_n, T.head_dim_v>;
  static constexpr int kBlockN = C.block_n;
  static constexpr int kParts = parts(C);
  static constexpr int kRefillBarrier = 1;  // the first of up to four named barriers
  static constexpr int kPositions = positions(C);
  static constexpr int kGroupChunks = group_chunks(C, T);
  static constexpr int kPartChunks = part_chunks(C, T);

  const Params<ptx::TensorMap>& params;
  const Context<T, C> at;

  // Where this warpgroup's rows lie and which keys its part has of them.
  tile::PackedTile<kTileRows, C.pack_heads> tile;
  int first_block, blocks;  // of block_n keys, of those that some row of the CTA's tile sees: every kParts-th
  int index = 0;            // of the part's block whose K is worked on; V of the one before it

  tile::RowState state;        // of the lane's two rows, and in the end of the whole row
  unsigned short* outputs[2];  // this lane's first column in them
  float inverse[2];            // of the row's sum, where one part has all keys

  FC_DEVICE Kernel(const Params<ptx::TensorMap>& parameters, const ScoreParams* of_scores,
                   const PagedKernelParams* of_pages = nullptr)
      : params(parameters) {
    if constexpr (has_score(T)) this->score_params = of_scores;
    if constexpr (T.paged) this->pool = of_pages;
  }

  // Made where they are used: kept beside what they refer to, they would put both into local memory.
  FC_DEVICE OverGroups<T, C> over_groups() const { return {at}; }
  FC_DEVICE OverCluster<T, C> over_cluster() const { return {at}; }
  // What masks and scores go by.
  FC_DEVICE const auto& lengths() const {
    if constexpr (T.paged) return this->extent;
    else return params.problem;
  }
  using Lengths = tile::LengthsOf<T.paged>;
  FC_DEVICE tile::Mask<T, Lengths> mask() const { return {lengths()}; }
  FC_DEVICE tile::Score<T, Lengths, T.paged> score() const { return {lengths(), this->score_params}; }

  // --- what to do -------------------------------------------------------------------------------------------------
  // The grid is (heads, batch, row tiles) and needs no division where one tile holds a key head's query heads.
  FC_DEVICE void find_tile() {
    constexpr int kTilePositions = kPositions * C.row_groups;
    int head = ptx::ctaid_x() / C.cluster, head_tile = 0;
    if (params.head_tiles > 1) {
      const int number = head;
      head = number / params.head_tiles;
      head_tile = number - head * params.head_tiles;
    }
    tile.batch = ptx::ctaid_y();
    const int row_tile = tile::row_tile_of_grid<tile::Mask<T, ForwardParams>::kLongestLast>();
    tile.set_heads(head, head_tile, params.group_size);
    tile.first_position = row_tile * kTilePositions + at.row_group * kPositions;
    if constexpr (T.paged) {
      if (params.longest_first) tile.batch = this->read_sequence_by_length(tile.batch, at.k(0, 0));
      else this->read_sequence(tile.batch);
    }
    const int last = min_int((row_tile + 1) * kTilePositions, lengths().seqlen_q) - 1;
    // Every kParts-th block: neighbours read neighbouring DRAM, and a mask takes as much from each.
    const tile::BlockRange all = mask().template blocks<kBlockN>(row_tile * kTilePositions, last);
    first_block = all.begin + at.rank * C.key_groups + at.key_group;
    blocks = (all.end - first_block + kParts - 1) / kParts;
    if constexpr (T.paged) {
      this->first_seen = mask().begin_of(row_tile * kTilePositions);
      // Fewer rows than the bound: tiles of the grid without any.
      if (last < row_tile * kTilePositions || blocks < 0) blocks = 0;
    }
  }

  FC_DEVICE int block_at(int i) const { return first_block + i * kParts; }

  // Of a sequence whose lengths are not possible: it has no rows to finish.
  FC_DEVICE void give_up() {
    const bool is_first = at.rank == 0 && tile.first_position == at.row_group * kPositions;
    if (is_first && this->sequence.len_q > 0) this->write_bad(tile.first_head, tile.heads);
    this->extent.seqlen_q = 0, blocks = 0;
  }

  // --- load -------------------------------------------------------------------------------------------------------
  FC_DEVICE static int stage(int i) { return i % C.num_stages; }
  FC_DEVICE void load_k(int i) {
    TileK::load_expected(at.k(at.key_group, stage(i)), params.k, at.k_full(at.key_group, stage(i)),
                         block_at(i) * kBlockN, tile.head_kv, tile.batch);
  }
  FC_DEVICE void load_v(int i) {
    TileV::load_expected(at.v(at.key_group, stage(i)), params.v, at.v_full(at.key_group, stage(i)),
                         block_at(i) * kBlockN, tile.head_kv, tile.batch);
  }

  // --- load, in pages ---------------------------------------------------------------------------------------------
  // By all warps of a key group's first row group. Boxes of a block go to the warps in turn, and to the lanes of each.
  FC_DEVICE bool loads_pages() const { return at.row_group == 0; }
  FC_DEVICE int own_box() const { return at.warp + loading_warps(T) * at.lane; }
  FC_DEVICE auto own_keys() const { return this->keys(tile.batch, tile.head_kv); }
  // What the table says of the lane's box in block i of the part.
  FC_DEVICE int entry_of(int i) const {
    const auto keys = own_keys();
    return i < blocks ? keys.entry_of(keys.first_key(block_at(i), own_box())) : 0;
  }
  FC_DEVICE void load_k_pages(int i, int entry) {
    const auto keys = own_keys();
    const ptx::SharedAddress full = at.k_full(at.key_group, stage(i));
    const int page = keys.page_in(entry, keys.first_key(block_at(i), own_box()));
    const int missing = keys.template load_boxes<TileK, false>(at.k(at.key_group, stage(i)), params.k, full,
                                                               block_at(i), page, own_box(), loading_warps(T) * 32);
    const int bytes = keys.template bytes_that_come<TileK>(
        keys.bytes_of_warp(k_tile_bytes(C, T), at.warp, loading_warps(T)), missing);
    // After the loads, whose bytes may have come: the phase waits for this arrival all the same.
    if (at.lane == 0) ptx::mbarrier_arrive_expect_tx(full, bytes);
  }
  FC_DEVICE void load_v_pages(int i, int entry) {
    const auto keys = own_keys();
    const ptx::SharedAddress full = at.v_full(at.key_group, stage(i));
    const int page = keys.page_in(entry, keys.first_key(block_at(i), own_box()));
    keys.template load_boxes<TileV, true>(at.v(at.key_group, stage(i)), params.v, full, block_at(i), page, own_box(),
                                          loading_warps(T) * 32);
    if (at.lane == 0)
      ptx::mbarrier_arrive_expect_tx(full, keys.bytes_of_warp(v_tile_bytes(C, T), at.warp, loading_warps(T)));
  }
  FC_DEVICE void start_loads_of_pages() {
    mark(Activity::kLoadK);
    if (at.lane == 0 && at.row_group == 0 && at.warp == 0) {
      for (int i = 0; i < C.num_stages; ++i) {
        ptx::mbarrier_init(at.k_full(at.key_group, i), loading_warps(T));
        ptx::mbarrier_init(at.v_full(at.key_group, i), loading_warps(T));
      }
      if (at.key_group == 0) ptx::mbarrier_init(at.q_full(), 1);
      ptx::fence_mbarrier_init();
    }
    if constexpr (C.cluster > 1) {
      if (at.lane == 0 && at.warp == 1) over_cluster().expect_parts();
    }
    // All at once: their latency is the same for each.
    int entries[C.num_stages];
#pragma unroll
    for (int i = 0; i < C.num_stages; ++i) entries[i] = loads_pages() ? entry_of(i) : 0;
    mark(Activity::kWaitPartner);
    ptx::bar_sync();
    if constexpr (C.cluster > 1) ptx::cluster_arrive_relaxed();
    mark(Activity::kLoadK);
    if (loads_pages()) {
      if (at.key_group == 0 && at.warp == 0 && at.lane == 0 && blocks > 0) load_q_packed();
#pragma unroll
      for (int i = 0; i < C.num_stages; ++i) {
        if (i < blocks) load_k_pages(i, entries[i]), load_v_pages(i, entries[i]);
      }
      this->entry_of_keys = entry_of(C.num_stages);
    }
    if constexpr (C.cluster > 1) ptx::cluster_wait();
  }
  // The map is that of ragged_map_of; a box that begins past the bound is not in it, and loads the last row instead.
  FC_DEVICE void load_q_packed() {
    ptx::mbarrier_arrive_expect_tx(at.q_full(), C.row_groups * TileQ::kBytes);
    const int bound = params.problem.seqlen_q, shift = bound - this->sequence.len_q;
#pragma unroll
    for (int group = 0; group < C.row_groups; ++group) {
      TileQ::load(at.q(group), params.q, at.q_full(),
                  min_int(tile.first_position + group * kPositions + shift, bound - 1), tile.first_head,
                  this->sequence.first_q + this->sequence.len_q);
    }
  }

  // One thread of each key group makes the barriers that its loads complete on, and issues them in the order in which
  // they are waited for: the tensor memory accelerator serves them one after another.
  FC_DEVICE void start_loads() {
    if constexpr (T.paged) return start_loads_of_pages();
    mark(Activity::kLoadK);
    if (at.lane == 0 && at.row_group == 0) {
      if (at.warp == 0) {
        for (int i = 0; i < C.num_stages; ++i)
          ptx::mbarrier_init(at.k_full(at.key_group, i), 1), ptx::mbarrier_init(at.v_full(at.key_group, i), 1);
        if (at.key_group == 0) ptx::mbarrier_init(at.q_full(), 1);
        ptx::fence_mbarrier_init();
        if constexpr (C.early_launch) ptx::griddepcontrol_wait();
        if (at.key_group == 0) {
          ptx::mbarrier_arrive_expect_tx(at.q_full(), C.row_groups * TileQ::kBytes);
#pragma unroll
          for (int group = 0; group < C.row_groups; ++group) {
            TileQ::load(at.q(group), params.q, at.q_full(), tile.first_position + group * kPositions, tile.first_head,
                        tile.batch);
          }
        }
        for (int i = 0; i < min_int(blocks, C.num_stages); ++i) load_k(i), load_v(i);
      }
    }
    if constexpr (C.cluster > 1) {
      if (at.lane == 0 && at.warp == 1) over_cluster().expect_parts();
    }
    if constexpr (C.early_launch) ptx::griddepcontrol_launch_dependents();
    mark(Activity::kWaitPartner);
    ptx::bar_sync();
    // All of the cluster have started and made their barriers. Waited for here, where the loads take their time.
    if constexpr (C.cluster > 1) ptx::cluster_arrive_relaxed(), ptx::cluster_wait();
  }

  // The stages of the block's K and of the V before it are free once every warp that read them is here.
  FC_DEVICE void refill() {
    const bool more_v = index > 0 && index - 1 + C.num_stages < blocks;
    const bool more_k = index + C.num_stages < blocks;
    if (!more_k && !more_v) return;
    mark(Activity::kWaitSlot, index);
    ptx::bar_sync(kRefillBarrier + at.key_group, 128 * C.row_groups);
    mark(Activity::kLoadK, index);
    if constexpr (T.paged) {
      if (!loads_pages()) return;
      if (more_v) load_v_pages(index - 1 + C.num_stages, this->entry_of_values);
      if (more_k) {
        load_k_pages(index + C.num_stages, this->entry_of_keys);
        this->entry_of_values = this->entry_of_keys;
        this->entry_of_keys = entry_of(index + C.num_stages + 1);
      }
      return;
    }
    if (at.lane == 0 && at.warp == 0 && at.row_group == 0) {
      if (more_v) load_v(index - 1 + C.num_stages);
      if (more_k) load_k(index + C.num_stages);
    }
  }

  // --- what AttentionWarpgroup asks for ---------------------------------------------------------------------------
  // K-major operands ignore the leading offset.
  FC_DEVICE ptx::WgmmaDescriptor q_descriptor() const { return ptx::WgmmaDescriptor::of(at.q(at.row_group), 16); }
  FC_DEVICE ptx::WgmmaDescriptor k_descriptor() const {
    return ptx::WgmmaDescriptor::of(at.k(at.key_group, stage(index)), 16);
  }
  FC_DEVICE ptx::WgmmaDescriptor v_descriptor() const {
    return ptx::WgmmaDescriptor::of(at.v(at.key_group, stage(index - 1)), kBlockN * 128);
  }
  FC_DEVICE void acquire_k() {
    mark(Activity::kWaitK);
    ptx::mbarrier_wait(at.k_full(at.key_group, stage(index)), index / C.num_stages % 2);
  }
  FC_DEVICE void acquire_v() {
    mark(Activity::kWaitV);
    ptx::mbarrier_wait(at.v_full(at.key_group, stage(index - 1)), (index - 1) / C.num_stages % 2);
  }
  FC_DEVICE void release_k() {}
  FC_DEVICE void release_v() { refill(); }
  FC_DEVICE void begin_issue() {}
  FC_DEVICE void end_issue() {}
  FC_DEVICE void first_done() {}
  FC_DEVICE void all_done() {}
  FC_DEVICE void begin_softmax() {}
  FC_DEVICE void end_softmax() {}

  FC_DEVICE int row(int r) const { return 16 * at.warp + tile::row_of_lane(at.lane, r); }
  FC_DEVICE tile::Cut cut(int block) const {
    return mask().template cut<kBlockN>(block, tile.first_position, tile.first_position + kPositions - 1);
  }
  FC_DEVICE void mask_scores(int block, tile::Cut cut) {
    mask().apply(acc_s, cut, block * kBlockN + tile::column_of_lane(at.lane),
                 {tile.position_of(row(0)), tile.position_of(row(1))});
  }

  // After start_loads, whose barrier is behind the end of the launch before.
  FC_DEVICE void load_slopes() {
#pragma unroll
    for (int r = 0; r < 2; ++r) this->slopes[r] = score().slope(tile.batch, tile.query_head(row(r)));
  }
  FC_DEVICE void transform_scores(int block) {
    score().apply(acc_s, this->slopes,
                  score().template side<kBlockN>(block, tile.first_position, tile.first_position + kPositions - 1),
                  block * kBlockN + tile::column_of_lane(at.lane),
                  {tile.position_of(row(0)), tile.position_of(row(1))});
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  // One block, as in short problems: the first half's P·V runs under the exponentials of the second.
  FC_DEVICE void attend_single() {
    constexpr int kSteps = kBlockN / 16, kHalf = kSteps / 2;
    const float scale_log2 = params.problem.scale_log2;
    mark(Activity::kSoftmax);
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, 8 * kHalf>(acc_s, scale_log2, p);
    acquire_v();
    mark(Activity::kSoftmax);
    Base::template issue_pv<0, kHalf>();
    softmax.template add<8 * kHalf, 8 * kSteps>(acc_s, scale_log2, p);
    mark(Activity::kPv);
    Base::template issue_pv<kHalf, kSteps>();
    prepare_finish();
    Base::wait_pv();  // in each branch: behind the join ptxas serialises the multiplies (C7515)
  }

  FC_DEVICE void attend_many() {
    const float scale_log2 = params.problem.scale_log2;
    mark(Activity::kSoftmax);
    softmax.start(acc_s, scale_log2);
    softmax.template add<0, kBlockN / 2>(acc_s, scale_log2, p);
#pragma unroll 1
    for (; index < blocks; ++index) Base::template next_block<true>(block_at(index), scale_log2);
    acquire_v();
    mark(Activity::kPv);
    Base::issue_pv();
    prepare_finish();
    Base::wait_pv();
  }

  FC_DEVICE void attend() {
    if (blocks == 0) {
      Base::init_empty_row();
      prepare_finish();
      return;
    }
    tile::set_zero(acc_o);
    mark(Activity::kWaitQ);
    ptx::mbarrier_wait(at.q_full(), 0);
    Base::first_scores();
    refill();
    mark(Activity::kMask);
    Base::transform_where_asked(first_block);
    Base::mask_where_cut(first_block);
    index = 1;
    if (blocks == 1) attend_single();
    else attend_many();
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  // Whether any of the warp's 16 rows exists.
  FC_DEVICE bool warp_has_rows() const { return tile.exists(16 * at.warp, lengths().seqlen_q); }
  FC_DEVICE bool row_exists(int r) const { return tile.exists(row(r), lengths().seqlen_q); }

  // What O of the whole row is multiplied with, and its log-sum-exp.
  FC_DEVICE float scale_with_sink(int r, float& lse) const {
    return tile::add_sink(state.maximum[r], state.total[r], score().sink_log2(tile.query_head(row(r))), lse);
  }
  FC_DEVICE float scale_of_row(int r) const {
    if constexpr (T.sink) {
      float lse;
      return scale_with_sink(r, lse);
    } else {
      return tile::inverse_sum(state.total[r]);
    }
  }
  FC_DEVICE float lse_of_row(int r) const {
    if constexpr (T.sink) {
      float lse;
      scale_with_sink(r, lse);
      return lse;
    } else {
      return tile::log_sum_exp(state.maximum[r], state.total[r]);
    }
  }

  FC_DEVICE float* lse_pointer(int head, int position) const {
    if constexpr (T.paged)
      return params.problem.lse +
             (static_cast<long long>(head) * this->pool->ragged.total_q + this->sequence.first_q + position);
    else return tile::lse_pointer(params.problem, tile.batch, head, position);
  }
  // After O: 3% of a short problem, measured.
  FC_DEVICE void store_lse() const {
    const ForwardParams& problem = params.problem;
    if (!problem.lse || at.lane % 4 != 0 || at.key_group != 0 || at.rank != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!row_exists(r)) continue;
      ptx::st_global_f32(lse_pointer(tile.first_head + tile.head_of(row(r)), tile.position_of(row(r))), lse_of_row(r));
    }
  }

  // The part's first chunk of 8 columns, of all of O's.
  FC_DEVICE int first_chunk() const { return at.key_group * kGroupChunks + at.rank * kPartChunks; }
  FC_DEVICE int position_in_o(int row) const {
    if constexpr (T.paged) return this->sequence.first_q + tile.position_of(row);
    else return tile.position_of(row);
  }
  // This lane's first column of the part's, in row r of O.
  FC_DEVICE unsigned short* output(int r) const {
    const ForwardParams& problem = params.problem;
    return static_cast<unsigned short*>(problem.o) + tile.batch * problem.o_stride.batch +
           (tile.first_head + tile.head_of(row(r))) * problem.o_stride.head +
           position_in_o(row(r)) * problem.o_stride.row + first_chunk() * 8 + tile::column_of_lane(at.lane);
  }
  // Whether the part's chunk lies within O's columns, of which wgmma computes a multiple of 16. Asked at run time: an
  // accumulator that nothing reads makes ptxas serialise the multiplies (C7511).
  FC_DEVICE bool is_column(int chunk) const {
    return T.head_dim_v % 16 == 0 || (first_chunk() + chunk) * 8 < ptx::opaque(T.head_dim_v);
  }
  FC_DEVICE void store(const float (&part)[kPartChunks][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!row_exists(r)) continue;
      const float scale = kParts == 1 ? inverse[r] : scale_of_row(r);
#pragma unroll
      for (int c = 0; c < kPartChunks; ++c) {
        if (!over_cluster().owns(c) || !is_column(c)) continue;
        ptx::st_global_u32(reinterpret_cast<unsigned*>(outputs[r] + 8 * c),
                           tile::pack<T.element>(part[c][2 * r] * scale, part[c][2 * r + 1] * scale));
      }
    }
  }

  // What can be done while the last P·V runs.
  FC_DEVICE void prepare_finish() {
    state = tile::RowState::of(softmax);
    outputs[0] = ptx::opaque(output(0)), outputs[1] = ptx::opaque(output(1));
    if constexpr (kParts == 1) {
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] = scale_of_row(r);
    }
  }

  FC_DEVICE void finish() {
    mark(kParts == 1 ? Activity::kEpilogue : Activity::kMerge);
    const bool has_rows = warp_has_rows();  // the same in every part: nobody sends to a warp without
    const auto chunk = [&](int c, int i) { return acc_o[4 * c + i]; };
    float group_o[kGroupChunks][4] = {};
    if constexpr (C.key_groups > 1) {
      tile::exchange<C.key_groups, kGroupChunks, chunks(T), true>(over_groups(), at.key_group, at.lane, chunk, state,
                                                                  group_o);
    } else {
#pragma unroll
      for (int c = 0; c < kGroupChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) group_o[c][i] = chunk(c, i);
      }
    }
    if (!has_rows) return;
    if constexpr (C.cluster > 1) {
      float part[kPartChunks][4] = {};
      tile::exchange<C.cluster, kPartChunks, kGroupChunks, false>(
          over_cluster(), at.rank, at.lane, [&](int c, int i) { return group_o[c][i]; }, state, part);
      mark(Activity::kEpilogue);
      store(part);
    } else {
      mark(Activity::kEpilogue);
      store(group_o);
    }
    store_lse();
  }

  FC_DEVICE void run() {
    Base::begin_role(tile::Role::kWarp);
    if (at.lane == 0 && at.warp == 0 && at.row_group == 0) {
      if (at.key_group == 0) ptx::prefetch_tensormap(params.q);
      ptx::prefetch_tensormap(params.k);
      ptx::prefetch_tensormap(params.v);
    }
    find_tile();
    if constexpr (T.paged) {
      if (this->sequence.bad) give_up();
    }
    start_loads();
    if constexpr (T.alibi != 0) load_slopes();
    attend();
    finish();
    Base::end_role();
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ Params<ptx::TensorMap> params) {
  Kernel<T, C>(params, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_scored(const __grid_constant__ Scored<Params<ptx::TensorMap>> params) {
  Kernel<T, C>(params.plain, &params.score).run();
}

// Few rows of each sequence of a ragged batch, on keys in pages.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_paged(const __grid_constant__ PagedKernelParams params) {
  Kernel<T, C>(params.plain.plain, &params.score, &params).run();
}

}  // namespace flashcore::sm90_short_fwd
