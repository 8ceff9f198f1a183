#pragma once
// Forward attention for head dims whose O no warp can hold: warps that share their rows compute the scores of some keys
// each, exchange P through shared memory, and multiply all of it with their own columns of V. Rows are queries of all
// heads of a key head. Tiles of K and V alternate in one ring.

#include "kernels/ptx/shuffle.cuh"
#include "kernels/sm80_wide_fwd/finish.cuh"
#include "kernels/sm80_wide_fwd/pages.cuh"
#include "kernels/tile/shared_row_softmax.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm80_wide_fwd {

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[qo_bytes(C, T)];
  unsigned char stages[C.num_stages][stage_bytes(C, T)];
  unsigned char p[p_bytes(C)];
  unsigned char rows[rows_bytes(C)];
  unsigned char flag[kFlagBytes];  // whether this CTA merges
};

template <Traits T, Config C>
struct Kernel : tile::Marks {
  using Activity = tile::Activity;
  using Storage = SharedStorage<T, C>;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kThreads = threads_per_block(C);
  static constexpr int kKeys = keys_per_warp(C), kKeyTiles = kKeys / 8;
  static constexpr int kPieces = warp_pieces(C, T);
  static constexpr int kStages = C.num_stages;
  using TileQk = tile::SharedTile<kDim, tile::SharedLayout::kXor>;
  using TileV = tile::SharedTile<padded_dim_v(T.head_dim_v), tile::SharedLayout::kXor>;
  using TileP = tile::SharedTile<C.block_n, tile::SharedLayout::kXor>;
  using Scores = float[kKeyTiles][4];
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params& params;
  const ScoreParams* score_params;
  const PagedParams* paged;  // null where the traits have no such thing
  const Work& work;
  const int lane, row_warp, column_warp;

  // State of this warp's rows.
  float acc_o[2 * kPieces][4];
  tile::SharedRowSoftmax softmax;
  float slopes[2];

  FC_DEVICE Kernel(const Params& p, const ScoreParams* of_scores, const PagedParams* of_pages, const Work& of_cta)
      : params(p),
        score_params(of_scores),
        paged(of_pages),
        work(of_cta),
        lane(ptx::tid_x() % 32),
        row_warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) / C.column_warps),
        column_warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) % C.column_warps) {}

  FC_DEVICE const ForwardParams& problem() const { return params.problem; }

  // --- shared memory ----------------------------------------------------------------------------------------------
  FC_DEVICE static ptx::SharedAddress address_qo() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, qo); }
  // Of K of the CTA's block b item 2b, of V item 2b + 1.
  FC_DEVICE static ptx::SharedAddress address_item(int item) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, stages) +
           static_cast<unsigned>(item) % kStages * stage_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress address_p() const {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, p) + 16 * row_warp * TileP::kPitch;
  }
  FC_DEVICE ptx::SharedAddress address_rows(int warp) const {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, rows) + (row_warp * C.column_warps + warp) * (16 * 4);
  }
  FC_DEVICE static ptx::SharedAddress address_flag() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, flag); }

  // A number of each of the warp's rows, for the warps that share them.
  FC_DEVICE void share(const float (&values)[2]) const {
    if (lane % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      ptx::st_shared_u32(address_rows(column_warp) + 4 * tile::row_of_lane(lane, r), ptx::bits_of_float(values[r]));
  }
  FC_DEVICE float shared(int warp, int r) const {
    return ptx::float_of_bits(ptx::ld_shared_u32(address_rows(warp) + 4 * tile::row_of_lane(lane, r)));
  }

  // --- load -------------------------------------------------------------------------------------------------------
  FC_DEVICE void load_q() {
    mark(Activity::kLoadQ);
    constexpr int kChunks = TileQk::kChunks;
    const int rows = work.sequence.len_q * params.group_size - work.first_row;
    const unsigned short* q = static_cast<const unsigned short*>(problem().q) + work.batch * problem().q_stride.batch +
                              work.head_kv * params.group_size * problem().q_stride.head +
                              work.sequence.first_q * problem().q_stride.row;
#pragma unroll 1
    for (int index = ptx::tid_x(); index < tile_rows(C) * kChunks; index += kThreads) {
      const int row = index / kChunks, chunk = index % kChunks;
      const int position = params.by_group_size.quotient(work.first_row + row);
      const int head = work.first_row + row - position * params.group_size;
      const bool exists = row < rows && chunk * 8 < T.head_dim;
      const unsigned short* from = q + head * problem().q_stride.head + position * problem().q_stride.row + chunk * 8;
      ptx::cp_async_16(address_qo() + TileQk::offset(row, chunk), exists ? from : q, exists ? 16 : 0);
    }
  }
  template <class Tile, int kColumns, bool kIsK>
  FC_DEVICE void load_block(ptx::SharedAddress to, const void* tensor, const Strides& strides, int block) const {
    const unsigned short* head = static_cast<const unsigned short*>(tensor) + work.head_kv * strides.head;
    const int first_key = block * C.block_n;
    if constexpr (T.paged) {
      const BlockRows<kIsK> rows = {*paged,     params.by_page_size, strides,         head,
                                    work.batch, first_key,           work.keys_begin, work.keys_end};
      Tile::template copy_paged_async<C.block_n, kColumns, kThreads>(to, rows, ptx::tid_x());
    } else {
      head += work.batch * strides.batch + work.sequence.first_kv * strides.row;
      Tile::template copy_async<C.block_n, kColumns, kThreads>(to, head, strides.row, first_key, work.sequence.len_kv,
                                                               ptx::tid_x());
    }
  }
  FC_DEVICE void load(int item) {
    const int block = work.blocks.begin + item / 2;
    if (block < work.blocks.end) {
      if (item % 2 == 0) {
        mark(Activity::kLoadK, block);
        load_block<TileQk, T.head_dim, true>(address_item(item), problem().k, problem().k_stride, block);
      } else {
        mark(Activity::kLoadV, block);
        load_block<TileV, T.head_dim_v, false>(address_item(item), problem().v, problem().v_stride, block);
      }
    }
    ptx::cp_async_commit();
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE void scores(Scores& acc_s, ptx::SharedAddress k) const {
    constexpr int kChains = score_chains(C);
    const typename TileQk::Lane lane_q = TileQk::lane_rows_first(address_qo() + 16 * row_warp * TileQk::kPitch, lane);
    const ptx::SharedAddress own_k = k + column_warp * kKeys * TileQk::kPitch;
    float sums[kChains][kKeyTiles][4];
#pragma unroll
    for (int c = 0; c < kChains; ++c) tile::set_zero(sums[c]);
    unsigned a[4], b[4];
    if constexpr (kKeys == 8) {
      // Four tiles of 8 columns of the same keys.
      const int key = ptx::opaque(lane & 7);
      const typename TileQk::Lane lane_k = {own_k + key * TileQk::kPitch,
                                            static_cast<unsigned>((lane >> 3) ^ TileQk::swizzle(key)) << 4};
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        ptx::ldmatrix_x4(a, lane_q.at(0, d));
        if (d % 2 == 0) ptx::ldmatrix_x4(b, lane_k.at_chunk(0, 2 * d));
        tile::mma<T.element>(sums[d % kChains][0], a, b[d % 2 * 2], b[d % 2 * 2 + 1]);
      }
    } else {
      const typename TileQk::Lane lane_k = TileQk::lane_columns_first(own_k, lane);
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        ptx::ldmatrix_x4(a, lane_q.at(0, d));
#pragma unroll
        for (int n = 0; n < kKeys / 16; ++n) {
          ptx::ldmatrix_x4(b, lane_k.at(n, d));
          tile::mma<T.element>(sums[d % kChains][2 * n], a, b[0], b[1]);
          tile::mma<T.element>(sums[d % kChains][2 * n + 1], a, b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < tile::kElements<Scores>; ++i) {
      tile::element(acc_s, i) = tile::element(sums[0], i);
      if constexpr (kChains == 2) tile::element(acc_s, i) += tile::element(sums[1], i);
    }
  }
  // Functions of scores, and the mask.
  FC_DEVICE void transform(Scores& acc_s, int of_block) const {
    const tile::Mask<T, Extent> mask{work.extent};
    const int block = of_block * C.column_warps + column_warp;  // of the warp's keys
    const int first_key = block * kKeys + tile::column_of_lane(lane);
    const int first_row = ptx::opaque(work.first_row) + 16 * row_warp;  // bounds kept from step to step would spill
    const int first = params.by_group_size.quotient(first_row);
    const int last = tile::min_int(params.by_group_size.quotient(first_row + 15), work.sequence.len_q - 1);
    const auto position = [&](int r) { return params.by_group_size.quotient(first_row + tile::row_of_lane(lane, r)); };
    if constexpr (transforms_scores(T)) {
      const tile::Score<T, Extent> score{work.extent, score_params};
      score.apply(acc_s, slopes, score.template side<kKeys>(block, first, last), first_key, {position(0), position(1)});
    }
    if (const tile::Cut cut = mask.template cut<kKeys>(block, first, last); cut.any())
      mask.apply(acc_s, cut, first_key, {position(0), position(1)});
  }
  // The warp's keys, rounded, for the warps that share its rows.
  FC_DEVICE void write_p(const Scores& acc_s) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::st_shared_u32(address_p() + TileP::offset(tile::row_of_lane(lane, r), column_warp * kKeyTiles + n) +
                               2 * tile::column_of_lane(lane),
                           tile::pack<T.element>(acc_s[n][2 * r], acc_s[n][2 * r + 1]));
    }
  }
  FC_DEVICE void add_pv(ptx::SharedAddress v) {
    const typename TileP::Lane lane_p = TileP::lane_rows_first(address_p(), lane);
    const typename TileV::Lane lane_v = TileV::lane_rows_first(v, lane);
    // Piece i of a warp is piece i * column_warps + column_warp of all: exclusive-ored, not added.
    const unsigned own_chunk = lane_v.chunk_address ^ (32 * column_warp);
#pragma unroll
    for (int n = 0; n < C.block_n / 16; ++n) {
      unsigned p[4];
      ptx::ldmatrix_x4(p, lane_p.at(0, n));
      const typename TileV::Lane own_v = {lane_v.row_address, ptx::opaque(own_chunk)};
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (!has_piece<T, C>(column_warp, i)) continue;
        unsigned b[4];
        ptx::ldmatrix_x4_trans(b, own_v.at(n, i * C.column_warps));
        tile::mma<T.element>(acc_o[2 * i], p, b[0], b[1]);
        tile::mma<T.element>(acc_o[2 * i + 1], p, b[2], b[3]);
      }
    }
  }
  // Block number `number` of this CTA. On entry the copies of items up to 2 * number + kStages - 2 are under way, each
  // a group.
  FC_DEVICE void step(int number) {
    const int block = work.blocks.begin + number, item = 2 * number;
    mark(Activity::kWaitK, block);
    ptx::cp_async_wait<kStages - 2>();
    ptx::bar_sync();  // everybody's copies of K are visible, and everybody has left the V before
    load(item + kStages - 1);
    mark(Activity::kQk, block);
    Scores acc_s;
    scores(acc_s, address_item(item));
    mark(Activity::kMask, block);
    transform(acc_s, block);
    float maxima[2] = {tile::row_max(acc_s, 0) * problem().scale_log2, tile::row_max(acc_s, 1) * problem().scale_log2};
    share(maxima);
    mark(Activity::kWaitPartner, block);
    ptx::bar_sync();  // the maxima are there, and everybody has left K
    load(item + kStages);
    mark(Activity::kSoftmax, block);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int warp = 0; warp < C.column_warps; ++warp) maxima[r] = ptx::max(maxima[r], shared(warp, r));
    }
    float rescale[2];
    softmax.update(acc_s, maxima, problem().scale_log2, rescale);
    write_p(acc_s);
    // The maxima of most blocks are those of blocks before.
    if (ptx::vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) tile::scale_rows(acc_o, rescale);
    mark(Activity::kWaitV, block);
    ptx::cp_async_wait<kStages - 1>();
    ptx::bar_sync();  // P is there, and everybody's copies of V
    mark(Activity::kPv, block);
    add_pv(address_item(item + 1));
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  FC_DEVICE void finish() {
    tile::RowState state = tile::RowState::of(softmax);
    share(state.total);
    mark(Activity::kWaitPartner);
    ptx::cp_async_wait<0>();
    ptx::bar_sync();  // the sums are there, and Q is where nobody copies any more
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.total[r] = 0.0f;
#pragma unroll
      for (int warp = 0; warp < C.column_warps; ++warp) state.total[r] += shared(warp, r);
    }
    const Finish<T, C> rest{params, score_params, work, lane, row_warp, column_warp};
    if (C.num_splits == 1 || work.parts == 1) {
      mark(Activity::kEpilogue);
      rest.store(state, acc_o, address_qo());
      return;
    }
    if constexpr (C.num_splits != 1) {
      mark(Activity::kMerge);
      rest.write_part(state, acc_o);
      if (!rest.arrive(address_flag())) return;
      mark(Activity::kEpilogue);
      rest.merge();
    }
  }

  FC_DEVICE void run() {
    if constexpr (T.alibi != 0) {
      const tile::Score<T, Extent> score{work.extent, score_params};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = work.first_row + 16 * row_warp + tile::row_of_lane(lane, r);
        const int head = row - params.by_group_size.quotient(row) * params.group_size;
        slopes[r] = score.slope(work.batch, work.head_kv * params.group_size + head);
      }
    }
    softmax.reset();
    tile::set_zero(acc_o);
    load_q();  // in the group of the first K
#pragma unroll
    for (int item = 0; item < kStages - 1; ++item) load(item);
#pragma unroll 1
    for (int number = 0; number < work.blocks.count(); ++number) step(number);
    finish();
  }
};

template <Traits T, Config C>
FC_DEVICE void attend(const Params& params, const ScoreParams* score, const RaggedParams* ragged,
                      const PagedParams* paged) {
  Work work;
  if (!find_work<T, C>(params, ragged, paged, work)) return;
  Kernel<T, C> cta(params, score, paged, work);
  cta.begin_role(tile::Role::kWarp);
  cta.run();
  cta.end_role();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward(const __grid_constant__ Params params) {
  attend<T, C>(params, nullptr, nullptr, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_scored(const __grid_constant__ Scored<Params> params) {
  attend<T, C>(params.plain, &params.score, nullptr, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged(const __grid_constant__ Ragged<Params> params) {
  attend<T, C>(params.plain, &params.score, &params.ragged, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged(const __grid_constant__ Paged<Params> params) {
  attend<T, C>(params.plain, &params.score, &params.ragged, &params.paged);
}

}  // namespace flashcore::sm80_wide_fwd
