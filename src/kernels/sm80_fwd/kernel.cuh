#pragma once
// Forward attention with cp.async, ldmatrix and mma.sync m16n8k16: FlashAttention-2's schedule (Dao, 2023).
// Each warp owns whole query rows, so softmax needs no shared memory; K and V pass through a ring that all warps read.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm80_fwd/config.h"
#include "kernels/sm80_fwd/pages.cuh"
#include "kernels/tile/list_blocks.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/sequence.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/softmax.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm80_fwd {

template <Traits T, Config C>
struct SharedStorage {
  unsigned char qo[qo_bytes(C, T)];
  unsigned char k[C.num_stages][k_tile_bytes(C, T)];
  unsigned char v[C.num_stages][v_tile_bytes(C, T)];
};

template <Traits T, Config C>
struct Forward : tile::KernelExpressions<has_expression(T)>,
                 tile::ListOfTile<T.mask_expression>,
                 tile::EntryOfTile<has_expression(T) && T.ragged>,
                 KernelPool<T.paged>,
                 tile::Marks {
  using Activity = tile::Activity;
  static constexpr int kDim = padded_dim(T.head_dim);
  static constexpr int kDimV = padded_dim(T.head_dim_v);
  static constexpr int kThreads = threads_per_block(C);
  static constexpr int kFragments = rows_per_warp(C) / 16;  // 16-row pieces of a warp's rows
  static constexpr int kStages = C.num_stages;
  using TileQk = tile::SharedTile<kDim, layout_of(C)>;
  using TileV = tile::SharedTile<kDimV, layout_of(C)>;
  using Storage = SharedStorage<T, C>;
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const ForwardParams& params;
  const tile::Score<T> score;
  const ptx::SharedAddress shared = ptx::dynamic_shared();

  // The tile at hand.
  tile::TileIndex tile;
  const unsigned short *q, *k, *v;
  tile::BlockRange blocks;  // of block_n keys, of those that some row of the tile sees
  int last_row;             // of the tile
  float slope;              // ALiBi's, of its head

  // State of this warp's rows.
  float acc_o[kFragments][kDimV / 8][4];
  tile::OnlineSoftmax softmax[kFragments];
  unsigned q_fragments[C.q_in_registers ? kFragments : 1][C.q_in_registers ? kDim / 16 : 1][4];

  FC_DEVICE Forward(const ForwardParams& p, const ScoreParams* of_scores, const ExpressionParams* of_expressions,
                    const PagedKernelParams* paged)
      : tile::KernelExpressions<has_expression(T)>(of_expressions),
        KernelPool<T.paged>(paged),
        params(p),
        score{p, of_scores} {}

  FC_DEVICE static int lane_index() { return ptx::tid_x() % 32; }
  FC_DEVICE static int warp_first_row() { return ptx::tid_x() / 32 * rows_per_warp(C); }  // within the tile

  FC_DEVICE ptx::SharedAddress address_qo() const { return shared + FC_OFFSET_OF(Storage, qo); }
  FC_DEVICE ptx::SharedAddress address_k(int stage) const {
    return shared + FC_OFFSET_OF(Storage, k) + stage * k_tile_bytes(C, T);
  }
  FC_DEVICE ptx::SharedAddress address_v(int stage) const {
    return shared + FC_OFFSET_OF(Storage, v) + stage * v_tile_bytes(C, T);
  }

  FC_DEVICE int first_block() const { return T.bounded_left && !T.mask_expression ? blocks.begin : 0; }

  // The keys of a block, which may be the place of one in a list.
  FC_DEVICE int key_block(int block) const {
    if constexpr (T.mask_expression) return tile::BlockList::block_of(this->list.entry(this->expression_params, block));
    else return block;
  }

  // --- load -------------------------------------------------------------------------------------------------------
  FC_DEVICE void load_q() {
    mark(Activity::kLoadQ);
    TileQk::template copy_async<C.block_m, T.head_dim, kThreads>(address_qo(), q, params.q_stride.row, tile.first_row,
                                                                 params.seqlen_q, ptx::tid_x());
  }
  template <bool kKeys>
  FC_DEVICE BlockRows<kKeys, T.bounded_left> rows_of(const unsigned short* head, const Strides& strides,
                                                     int block) const {
    return {this->pool,
            strides,
            head,
            this->sequence,
            block * C.block_n,
            params.seqlen_kv,
            mask().begin_of(tile.first_row)};
  }
  FC_DEVICE void load_k(int block) {
    mark(Activity::kLoadK, block);
    if (block >= first_block()) {
      if constexpr (T.paged) {
        TileQk::template copy_paged_async<C.block_n, T.head_dim, kThreads>(
            address_k(block % kStages), rows_of<true>(k, params.k_stride, key_block(block)), ptx::tid_x());
      } else {
        TileQk::template copy_async<C.block_n, T.head_dim, kThreads>(address_k(block % kStages), k, params.k_stride.row,
                                                                     key_block(block) * C.block_n, params.seqlen_kv,
                                                                     ptx::tid_x());
      }
    }
    ptx::cp_async_commit();
  }
  FC_DEVICE void load_v(int block) {
    mark(Activity::kLoadV, block);
    if (block >= first_block()) {
      if constexpr (T.paged) {
        TileV::template copy_paged_async<C.block_n, T.head_dim_v, kThreads>(
            address_v(block % kStages), rows_of<false>(v, params.v_stride, key_block(block)), ptx::tid_x());
      } else {
        TileV::template copy_async<C.block_n, T.head_dim_v, kThreads>(address_v(block % kStages), v,
                                                                      params.v_stride.row, key_block(block) * C.block_n,
                                                                      params.seqlen_kv, ptx::tid_x());
      }
    }
    ptx::cp_async_commit();
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE typename TileQk::Lane lane_of_q() const {
    return TileQk::lane_rows_first(address_qo() + warp_first_row() * TileQk::kPitch, lane_index());
  }
  FC_DEVICE void keep_q() {
    const typename TileQk::Lane lane_q = lane_of_q();
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) ptx::ldmatrix_x4(q_fragments[m][d], lane_q.at(m, d));
    }
  }

  FC_DEVICE void scores(float (&acc_s)[kFragments][C.block_n / 8][4], int block) {
    const typename TileQk::Lane lane_q = lane_of_q();
    const typename TileQk::Lane lane_k = TileQk::lane_columns_first(address_k(block % kStages), lane_index());
#pragma unroll
    for (int m = 0; m < kFragments; ++m) tile::set_zero(acc_s[m]);
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        if constexpr (C.q_in_registers) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[m][i] = q_fragments[m][d][i];
        } else {
          ptx::ldmatrix_x4(a[m], lane_q.at(m, d));
        }
      }
#pragma unroll
      for (int n = 0; n < C.block_n / 16; ++n) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, lane_k.at(n, d));
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          tile::mma<T.element>(acc_s[m][2 * n], a[m], b[0], b[1]);
          tile::mma<T.element>(acc_s[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  FC_DEVICE tile::Mask<T, ForwardParams> mask() const { return {params}; }
  FC_DEVICE void mask_scores(float (&acc_s)[kFragments][C.block_n / 8][4], int block, tile::Cut cut) {
    const int lane = lane_index(), first_key = block * C.block_n + tile::column_of_lane(lane);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = tile.first_row + warp_first_row() + 16 * m + tile::row_of_lane(lane, 0);
      mask().apply(acc_s[m], cut, first_key, {row, row + 8});
    }
  }

  FC_DEVICE void transform_scores(float (&acc_s)[kFragments][C.block_n / 8][4], int block) {
    const int lane = lane_index(), first_key = block * C.block_n + tile::column_of_lane(lane);
    const tile::Side side = score.template side<C.block_n>(block, tile.first_row, tile.first_row + C.block_m - 1);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = tile.first_row + warp_first_row() + 16 * m + tile::row_of_lane(lane, 0);
      score.apply(acc_s[m], slope, side, first_key, {row, row + 8});
    }
  }

  // For functions.
  FC_DEVICE int batch_entry_of_tile() const {
    if constexpr (has_expression(T) && T.ragged) return this->batch_entry;
    else return tile.batch;
  }

  // The score function on a block of scores, or the mask function.
  template <bool kMask>
  FC_DEVICE void express(float (&acc_s)[kFragments][C.block_n / 8][4], int block) {
    const int lane = lane_index(), first_key = block * C.block_n + tile::column_of_lane(lane);
    const tile::Expressions<> expressions = {params, this->expression_params};
    const tile::Head head = {batch_entry_of_tile(), tile.head_q, tile.head_kv};
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      const int row = tile.first_row + warp_first_row() + 16 * m + tile::row_of_lane(lane, 0);
      if constexpr (kMask) expressions.mask(acc_s[m], head, first_key, {row, row + 8});
      else expressions.score(acc_s[m], head, first_key, {row, row + 8});
    }
  }

  // acc_o = acc_o · rescale + P · V, P being rounded to the element type.
  FC_DEVICE void accumulate(const float (&acc_s)[kFragments][C.block_n / 8][4], int block) {
    const typename TileV::Lane lane_v = TileV::lane_rows_first(address_v(block % kStages), lane_index());
#pragma unroll
    for (int n = 0; n < C.block_n / 16; ++n) {
      unsigned p[kFragments][4];
#pragma unroll
      for (int m = 0; m < kFragments; ++m) tile::pack_operand<T.element>(p[m], acc_s[m], n);
#pragma unroll
      for (int d = 0; d < kDimV / 16; ++d) {
        unsigned b[4];
        ptx::ldmatrix_x4_trans(b, lane_v.at(n, d));
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          tile::mma<T.element>(acc_o[m][2 * d], p[m], b[0], b[1]);
          tile::mma<T.element>(acc_o[m][2 * d + 1], p[m], b[2], b[3]);
        }
      }
    }
  }

  // One step over block_n keys. On entry the copies of K(block) .. are in flight as main_loop says.
  FC_DEVICE void step(int block, bool first) {
    mark(Activity::kWaitK, block);
    // K(block) has landed. In the first step V(block) may still be on its way; later it came a step ago.
    if constexpr (kStages == 1) {
      ptx::cp_async_wait<0>();
    } else {
      if (first) ptx::cp_async_wait<2 * (kStages - 2) + 1>();
      else ptx::cp_async_wait<2 * (kStages - 2)>();
    }
    ptx::bar_sync();  // everybody's copies are visible, and everybody has left the stage that is loaded next
    if constexpr (kStages == 1) {
      load_v(block);
    } else {
      load_k(block - (kStages - 1));
      load_v(block - (kStages - 1));
    }
    mark(Activity::kQk, block);
    if constexpr (C.q_in_registers) {
      if (first) keep_q();
    }

    float acc_s[kFragments][C.block_n / 8][4];
    if constexpr (T.mask_expression) this->entry = this->list.entry(this->expression_params, block);
    scores(acc_s, block);
    if constexpr (kStages == 1) {
      mark(Activity::kWaitPartner, block);
      ptx::bar_sync();  // all warps have read K(block)
      load_k(block - 1);
    }
    mark(Activity::kMask, block);
    int keys = block;
    if constexpr (T.mask_expression) keys = tile::BlockList::block_of(this->entry);
    if constexpr (transforms_scores(T)) transform_scores(acc_s, keys);
    if constexpr (T.score_expression) express<false>(acc_s, keys);
    // One body for masked and unmasked blocks: a second copy cost 20 registers and 200 ms of compilation.
    if (const tile::Cut cut = mask().template cut<C.block_n>(keys, tile.first_row, last_row); cut.any())
      mask_scores(acc_s, keys, cut);
    if constexpr (T.mask_expression)
      if (tile::BlockList::use_of(this->entry, 0) != tile::ListedUse::kFull) express<true>(acc_s, keys);

    mark(Activity::kSoftmax, block);
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      float rescale[2];
      softmax[m].update(acc_s[m], params.scale_log2, rescale);
      tile::scale_rows(acc_o[m], rescale);
    }

    if constexpr (kStages == 1) {
      mark(Activity::kWaitV, block);
      ptx::cp_async_wait<1>();
      ptx::bar_sync();
    } else if (first) {
      mark(Activity::kWaitV, block);
      ptx::cp_async_wait<2 * (kStages - 1)>();
      ptx::bar_sync();
    }
    mark(Activity::kPv, block);
    accumulate(acc_s, block);
  }

  // Keys from right to left: the masked blocks, if any, come first.
  FC_DEVICE void main_loop() {
    int block = blocks.end - 1;
    load_q();
    if constexpr (kStages == 1) {
      load_k(block);
    } else {
#pragma unroll
      for (int s = 0; s < kStages - 1; ++s) {
        load_k(block - s);  // the first group holds Q as well
        load_v(block - s);
      }
    }
    bool first = true;
    for (; block >= first_block(); --block, first = false) step(block, first);
    mark(Activity::kWaitPartner);
    ptx::cp_async_wait<0>();
    ptx::bar_sync();  // Q, K and V are no longer read: the epilogue and the next tile may write there
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  FC_DEVICE float finish(int m, int r, float& lse) const {
    if constexpr (T.sink) return softmax[m].finish_with_sink(r, lse, score.sink_log2(tile.head_q));
    else return softmax[m].finish(r, lse);
  }

  // O through shared memory, each warp in its own rows, so that it leaves in 16-byte pieces.
  FC_DEVICE void epilogue(int tile_number) {
    mark(Activity::kEpilogue);
    // Found again rather than kept through the main loop, where four registers make the difference to spilling.
    tile = tile::tile_at(params, ptx::opaque(tile_number), C.block_m);
    const int lane = lane_index(), warp_row = warp_first_row();
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float lse;
        const float scale = finish(m, r, lse);
        const int tile_row = warp_row + 16 * m + tile::row_of_lane(lane, r);
        const int row = tile.first_row + tile_row;
        if (params.lse && lane % 4 == 0 && row < params.seqlen_q)
          ptx::st_global_f32(tile::lse_pointer(params, tile.batch, tile.head_q, row), lse);
#pragma unroll
        for (int d = 0; d < kDimV / 8; ++d) {
          ptx::st_shared_u32(address_qo() + TileV::offset(tile_row, d) + 2 * tile::column_of_lane(lane),
                             tile::pack<T.element>(acc_o[m][d][2 * r] * scale, acc_o[m][d][2 * r + 1] * scale));
        }
      }
    }
    ptx::bar_warp_sync();
    constexpr int kChunks = T.head_dim_v / 8;
    unsigned short* o = static_cast<unsigned short*>(params.o) + tile.batch * params.o_stride.batch +
                        tile.head_q * params.o_stride.head;
    for (int index = lane; index < rows_per_warp(C) * kChunks; index += 32) {
      const int tile_row = warp_row + index / kChunks;
      const int chunk = index % kChunks;
      const int row = tile.first_row + tile_row;
      if (row < params.seqlen_q) {
        ptx::st_global_v4(o + row * params.o_stride.row + chunk * 8,
                          ptx::ld_shared_v4(address_qo() + TileV::offset(tile_row, chunk)));
      }
    }
  }

  FC_DEVICE void run(int tile_number) {
    mark(Activity::kSetUp);
    tile = tile::tile_at(params, tile_number, C.block_m);
    q = tile::head_pointer(params.q, params.q_stride, tile.batch, tile.head_q);
    k = tile::head_pointer(params.k, params.k_stride, tile.batch, tile.head_kv);
    v = tile::head_pointer(params.v, params.v_stride, tile.batch, tile.head_kv);
    slope = score.slope(tile.batch, tile.head_q);
    last_row = tile::min_int(tile.first_row + C.block_m, params.seqlen_q) - 1;
    if constexpr (T.mask_expression) {
      this->list =
          tile::BlockList::of(*this->expression_params, batch_entry_of_tile(), tile.head_q, tile.first_row / C.block_m);
      blocks = {0, this->list.count(this->expression_params)};
    } else {
      blocks = mask().template blocks<C.block_n>(tile.first_row, last_row);
    }
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      softmax[m].reset();
      tile::set_zero(acc_o[m]);
    }
    main_loop();
    epilogue(tile_number);
  }
};

template <Traits T, Config C>
FC_DEVICE void attend(const ForwardParams& params, const ScoreParams* of_scores,
                      const ExpressionParams* of_expressions = nullptr) {
  Forward<T, C> cta(params, of_scores, of_expressions, nullptr);
  cta.begin_role(tile::Role::kWarp);
  if constexpr (C.persistent) {
    const int count = tile::tile_count(params, C.block_m);
    for (int index = ptx::ctaid_x(); index < count; index += ptx::nctaid_x()) {
      cta.mark(tile::Activity::kWaitPartner);
      if (index != ptx::ctaid_x()) ptx::bar_sync();  // all warps have sent their rows of O: Q may be overwritten
      cta.run(index);
    }
  } else {
    cta.run(ptx::ctaid_x());
  }
  cta.end_role();
}

// Tiles are those of sequences as long as the bounds: past the end of a shorter one there is nothing to do. A tile's
// sequence is a batch of one.
template <Traits T, Config C>
FC_DEVICE void attend_ragged(const ForwardParams& bounds, const ScoreParams& of_scores, const RaggedParams& ragged,
                             const PagedKernelParams* paged = nullptr,
                             const ExpressionParams* of_expressions = nullptr) {
  ForwardParams one = bounds;
  ScoreParams score = of_scores;
  Forward<T, C> cta(one, &score, of_expressions, paged);
  cta.begin_role(tile::Role::kWarp);
  const int count = C.persistent ? tile::tile_count(bounds, C.block_m) : ptx::ctaid_x() + 1;
  bool wrote = false;
  for (int index = ptx::ctaid_x(); index < count; index += ptx::nctaid_x()) {
    cta.mark(tile::Activity::kSetUp);
    const tile::TileIndex at = tile::tile_at(bounds, index, C.block_m);
    tile::Sequence sequence;
    if constexpr (T.paged) {
      sequence = tile::paged_sequence_at(ragged, paged->paged, bounds, at.batch);
      cta.sequence = at.batch;
    } else {
      sequence = tile::sequence_at(ragged, bounds, at.batch);
    }
    if constexpr (has_expression(T)) cta.batch_entry = at.batch;
    one = tile::params_of<T>(bounds, ragged, sequence, at.head_q);
    score = tile::score_params_of<T>(of_scores, bounds.heads_q, at.batch);
    if (sequence.bad) {
      tile::write_bad_rows<T>(one, at.head_q, at.first_row, C.block_m, bounds.seqlen_q, ptx::tid_x(),
                              threads_per_block(C));
    } else if (at.first_row < sequence.len_q) {
      if (wrote) ptx::bar_sync();  // all warps have sent their rows of O: Q may be overwritten
      wrote = true;
      const int row_tiles = (sequence.len_q + C.block_m - 1) / C.block_m;
      cta.run(at.head_q * row_tiles + row_tiles - 1 - at.first_row / C.block_m);
    }
  }
  cta.end_role();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward(const __grid_constant__ ForwardParams params) {
  attend<T, C>(params, nullptr);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_scored(const __grid_constant__ Scored<ForwardParams> params) {
  attend<T, C>(params.plain, &params.score);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_expressed(const __grid_constant__ Expressed<ForwardParams> params) {
  attend<T, C>(params.plain, &params.score, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged(const __grid_constant__ Ragged<ForwardParams> params) {
  attend_ragged<T, C>(params.plain, params.score, params.ragged);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged(const __grid_constant__ PagedKernelParams params) {
  attend_ragged<T, C>(params.plain.plain, params.score, params.ragged, &params);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<ForwardParams>> params) {
  const Ragged<ForwardParams>& all = params.all;
  attend_ragged<T, C>(all.plain, all.score, all.ragged, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged_expressed(const __grid_constant__ ExpressedRagged<PagedKernelParams> params) {
  const PagedKernelParams& all = params.all;
  attend_ragged<T, C>(all.plain.plain, all.score, all.ragged, &all, &params.expression);
}

}  // namespace flashcore::sm80_fwd
