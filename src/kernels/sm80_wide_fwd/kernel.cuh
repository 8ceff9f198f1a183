#pragma once
// Forward attention for head dims whose O no warp can hold: warps that share their rows compute the scores of some keys
// each, exchange P through shared memory, and multiply all of it with their own columns of V. Rows are queries of all
// heads of a key head. Tiles of K and V alternate in one ring.

#include "kernels/ptx/shuffle.cuh"
#include "kernels/sm80_wide_fwd/codes.cuh"
#include "kernels/sm80_wide_fwd/finish.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/shared_row_softmax.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm80_wide_fwd {

template <Traits T, Config C, bool kHasCodes = has_quantised_cache(T)>
struct SharedStorage {
  unsigned char qo[qo_bytes(C, T)];
  unsigned char stages[C.num_stages][stage_bytes(C, T)];
  unsigned char p[p_bytes(C)];
  unsigned char rows[rows_bytes(C)];
  unsigned char flag[kFlagBytes];  // whether this CTA merges
};
// Of a quantised cache.
template <Traits T, Config C>
struct SharedStorage<T, C, true> : SharedStorage<T, C, false> {
  unsigned char widened[operand_bytes(C, T)];  // K of a block, and then its V
  unsigned char marks[marks_bytes(C, T)];
  unsigned char factors[factors_bytes(C, T)];
  unsigned char tops[tops_bytes(C, T)];  // as rows: of scores with the factors of values
};

template <Traits T, Config C>
struct Kernel : tile::KernelExpressions<has_expression(T)>, tile::Marks {
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
  // As a stage has them: those, or tiles of codes.
  using StoredK = StoredTile<T, has_quantised_cache(T) ? padded_codes(T, T.head_dim) : kDim>;
  using StoredV = StoredTile<T, has_quantised_cache(T) ? padded_codes(T, T.head_dim_v) : padded_dim_v(T.head_dim_v)>;
  using Scores = float[kKeyTiles][4];
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params& params;
  const ScoreParams* score_params;
  const PagedParams* paged;           // null where the traits have no such thing
  const Quantised<Params>* descales;  // so is this
  const Work& work;
  const int lane, row_warp, column_warp;

  // State of this warp's rows.
  float acc_o[2 * kPieces][4];
  tile::SharedRowSoftmax softmax;
  float slopes[2];
  // Of a quantised cache.
  float factor_k, scale_log2;  // from what K stores to scores; K's factor is in either
  KeyNotes<T, C> notes;
  ValueUnits units;

  FC_DEVICE Kernel(const Params& p, const ScoreParams* of_scores, const PagedParams* of_pages,
                   const Quantised<Params>* of_cache, const ExpressionParams* of_expressions, const Work& of_cta)
      : tile::KernelExpressions<has_expression(T)>(of_expressions),
        params(p),
        score_params(of_scores),
        paged(of_pages),
        descales(of_cache),
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
  FC_DEVICE static ptx::SharedAddress address_widened() {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, widened);
  }
  FC_DEVICE static ptx::SharedAddress address_marks(int item) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, marks) +
           static_cast<unsigned>(item) % kStages * (4 * C.block_n);
  }
  FC_DEVICE static ptx::SharedAddress address_factors(int item) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, factors) +
           static_cast<unsigned>(item) % factor_slots(C) * (4 * C.block_n);
  }
  // From the maxima of rows to those with the factors of values.
  FC_DEVICE static unsigned tops_offset() { return FC_OFFSET_OF(Storage, tops) - FC_OFFSET_OF(Storage, rows); }

  // A number of each of the warp's rows, for the warps that share them.
  FC_DEVICE void share(const float (&values)[2], unsigned offset = 0) const {
    if (lane % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      ptx::st_shared_u32(address_rows(column_warp) + offset + 4 * tile::row_of_lane(lane, r),
                         ptx::bits_of_float(values[r]));
  }
  FC_DEVICE float shared(int warp, int r, unsigned offset = 0) const {
    return ptx::float_of_bits(ptx::ld_shared_u32(address_rows(warp) + offset + 4 * tile::row_of_lane(lane, r)));
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
      const BlockRows<kIsK && !has_quantised_cache(T)> rows = {
          *paged, params.by_page_size, strides, head, work.batch, first_key, work.keys_begin, work.keys_end};
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
        load_block<StoredK, stored_columns(T, T.head_dim), true>(address_item(item), problem().k,
                                                                 stored_strides<T>(problem().k_stride), block);
      } else {
        mark(Activity::kLoadV, block);
        load_block<StoredV, stored_columns(T, T.head_dim_v), false>(address_item(item), problem().v,
                                                                    stored_strides<T>(problem().v_stride), block);
      }
      if constexpr (has_quantised_cache(T) && (T.paged || T.token_factors)) note_keys(item, block);
    }
    ptx::cp_async_commit();
  }
  // Of a quantised cache. Factors are there after store_factors().
  FC_DEVICE void note_keys(int item, int block) {
    const bool is_k = item % 2 == 0;
    const Descale& by = is_k ? descales->descale_k : descales->descale_v;
    if constexpr (T.paged) {
      const Strides none = {0, 0, 0};
      const BlockRows<false> rows = {*paged,          params.by_page_size, none, nullptr, work.batch, block * C.block_n,
                                     work.keys_begin, work.keys_end};
      notes.read_paged(work, by, rows, is_k ? address_marks(item) : 0);
    } else {
      notes.read(work, by, block * C.block_n);
    }
  }
  FC_DEVICE void store_factors(int item) const {
    if constexpr (T.token_factors)
      if (work.blocks.begin + item / 2 < work.blocks.end) notes.store(address_factors(item));
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
    if constexpr (T.score_expression) express<false>(acc_s, first_key);
    if (const tile::Cut cut = mask.template cut<kKeys>(block, first, last); cut.any())
      mask.apply(acc_s, cut, first_key, {position(0), position(1)});
    if constexpr (T.mask_expression) express<true>(acc_s, first_key);
  }
  // The score function, or the mask function, of rows that may be of two heads.
  template <bool kMask>
  FC_DEVICE void express(Scores& acc_s, int first_key) const {
    const tile::Expressions<Extent> functions{work.extent, this->expression_params};
    int positions[2];
    tile::Head heads[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = work.first_row + 16 * row_warp + tile::row_of_lane(lane, r);
      positions[r] = params.by_group_size.quotient(row);
      heads[r] = {work.batch, work.head_kv * params.group_size + row - positions[r] * params.group_size, work.head_kv};
    }
    if constexpr (kMask) functions.mask(acc_s, heads, first_key, positions);
    else functions.score(acc_s, heads, first_key, positions);
  }
  // The maxima of all warps that share the rows.
  FC_DEVICE void join(float (&maxima)[2], unsigned offset = 0) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int warp = 0; warp < C.column_warps; ++warp) maxima[r] = ptx::max(maxima[r], shared(warp, r, offset));
    }
  }
  // The maxima of most blocks are those of blocks before.
  FC_DEVICE void rescale_to_new_max(const float (&rescale)[2]) {
    if (ptx::vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) tile::scale_rows(acc_o, rescale);
  }
  // The warp's keys, rounded, for the warps that share its rows.
  FC_DEVICE void write_p(const Scores& acc_s) const {
    constexpr float kScale = weight_scale(T);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::st_shared_u32(address_p() + TileP::offset(tile::row_of_lane(lane, r), column_warp * kKeyTiles + n) +
                               2 * tile::column_of_lane(lane),
                           tile::pack<T.element>(kScale * acc_s[n][2 * r], kScale * acc_s[n][2 * r + 1]));
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
    join(maxima);
    float rescale[2];
    softmax.update(acc_s, maxima, problem().scale_log2, rescale);
    write_p(acc_s);
    rescale_to_new_max(rescale);
    mark(Activity::kWaitV, block);
    ptx::cp_async_wait<kStages - 1>();
    ptx::bar_sync();  // P is there, and everybody's copies of V
    mark(Activity::kPv, block);
    add_pv(address_item(item + 1));
  }

  // The same of a quantised cache. On entry the copies of items up to 2 * number + kStages - 1 are under way.
  FC_DEVICE void step_of_codes(int number) {
    constexpr int kLater = kStages - 1;  // items under way behind the one that is waited for
    const int block = work.blocks.begin + number, item = 2 * number;
    mark(Activity::kWaitK, block);
    ptx::cp_async_wait<kLater>();
    ptx::bar_sync();  // everybody's codes of K are visible, and everybody has left the V before
    mark(Activity::kLoadK, block);
    widen_block<T, C, kDim, padded_codes(T, T.head_dim), T.paged>(address_widened(), address_item(item),
                                                                  address_marks(item));
    ptx::bar_sync();  // K is there, and everybody has left K's codes
    load(item + kStages);
    mark(Activity::kQk, block);
    Scores acc_s;
    scores(acc_s, address_widened());
    mark(Activity::kMask, block);
    if constexpr (T.token_factors) {
      float factors[kKeyTiles][2];
      tile::load_factors(factors, own_factors(item));
      tile::multiply_columns(acc_s, factors);
    } else if constexpr (changes_scores(T)) {
#pragma unroll
      for (int i = 0; i < tile::kElements<Scores>; ++i) tile::element(acc_s, i) *= factor_k;
    }
    transform(acc_s, block);
    float maxima[2] = {tile::row_max(acc_s, 0) * scale_log2, tile::row_max(acc_s, 1) * scale_log2};
    share(maxima);
    float tops[2] = {0.0f, 0.0f};
    if constexpr (has_value_units(T)) {
      float factors[kKeyTiles][2];
      tile::load_factors(factors, own_factors(item + 1));
#pragma unroll
      for (int r = 0; r < 2; ++r) tops[r] = ValueUnits::largest(acc_s, factors, scale_log2, r);
      share(tops, tops_offset());
    }
    store_factors(item + kStages);
    mark(Activity::kWaitPartner, block);
    ptx::cp_async_wait<kLater>();
    ptx::bar_sync();  // V's codes and the maxima are there, and everybody has left K
    mark(Activity::kLoadV, block);
    widen_block<T, C, padded_dim_v(T.head_dim_v), padded_codes(T, T.head_dim_v), false>(address_widened(),
                                                                                        address_item(item + 1), 0);
    mark(Activity::kSoftmax, block);
    join(maxima);
    float rescale[2];
    softmax.update(acc_s, maxima, scale_log2, rescale);
    if constexpr (T.token_factors) {
      float factors[kKeyTiles][2];
      if constexpr (has_value_units(T)) {
        join(tops, tops_offset());
        float to_weight[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          rescale[r] *= units.update(tops[r], softmax.max_scaled[r], r);
          to_weight[r] = units.to_weight(r);
        }
        tile::scale_rows(acc_s, to_weight);
      }
      tile::load_factors(factors, own_factors(item + 1));
      tile::multiply_columns(acc_s, factors);
    }
    write_p(acc_s);
    rescale_to_new_max(rescale);
    ptx::bar_sync();  // V and P are there, and everybody has left V's codes
    load(item + 1 + kStages);
    mark(Activity::kPv, block);
    add_pv(address_widened());
    store_factors(item + 1 + kStages);
  }
  // Of the lane's first key.
  FC_DEVICE ptx::SharedAddress own_factors(int item) const {
    return address_factors(item) + 4 * (column_warp * kKeys + tile::column_of_lane(lane));
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
    float factor_v = 1.0f;
    if constexpr (has_quantised_cache(T) && !T.token_factors)
      factor_v = tile::descale(descales->descale_v, work.batch, work.head_kv);
    if constexpr (weight_scale(T) != 1.0f) {
      constexpr float kUndone = 1.0f / weight_scale(T);
      float undone[2] = {kUndone, kUndone};
      if constexpr (has_value_units(T)) undone[0] *= units.undone(0), undone[1] *= units.undone(1);
      tile::scale_rows(acc_o, undone);
    }
    const Finish<T, C> rest{params, score_params, work, lane, row_warp, column_warp, factor_v};
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
    if constexpr (has_quantised_cache(T)) {
      factor_k = T.token_factors ? 1.0f : tile::descale(descales->descale_k, work.batch, work.head_kv);
      scale_log2 = problem().scale_log2 * (changes_scores(T) ? 1.0f : factor_k);
      units.reset();
#pragma unroll 1
      for (int item = 0; item < kStages; ++item) load(item), store_factors(item);
#pragma unroll 1
      for (int number = 0; number < work.blocks.count(); ++number) step_of_codes(number);
    } else {
#pragma unroll
      for (int item = 0; item < kStages - 1; ++item) load(item);
#pragma unroll 1
      for (int number = 0; number < work.blocks.count(); ++number) step(number);
    }
    finish();
  }
};

template <Traits T, Config C>
FC_DEVICE void attend(const Params& params, const ScoreParams* score, const RaggedParams* ragged,
                      const PagedParams* paged, const Quantised<Params>* descales = nullptr,
                      const ExpressionParams* expression = nullptr) {
  Work work;
  if (!find_work<T, C>(params, ragged, paged, work)) return;
  Kernel<T, C> cta(params, score, paged, descales, expression, work);
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

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised(const __grid_constant__ Quantised<Params> params) {
  attend<T, C>(params.plain, nullptr, nullptr, nullptr, &params);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_scored(const __grid_constant__ Scored<Quantised<Params>> params) {
  attend<T, C>(params.plain.plain, &params.score, nullptr, nullptr, &params.plain);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_ragged(const __grid_constant__ Ragged<Quantised<Params>> params) {
  attend<T, C>(params.plain.plain, &params.score, &params.ragged, nullptr, &params.plain);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_paged(const __grid_constant__ Paged<Quantised<Params>> params) {
  attend<T, C>(params.plain.plain, &params.score, &params.ragged, &params.paged, &params.plain);
}

// With functions of the user's own.
template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_expressed(const __grid_constant__ Expressed<Params> params) {
  attend<T, C>(params.plain, &params.score, nullptr, nullptr, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Params>> params) {
  const Ragged<Params>& all = params.all;
  attend<T, C>(all.plain, &all.score, &all.ragged, nullptr, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Params>> params) {
  const Paged<Params>& all = params.all;
  attend<T, C>(all.plain, &all.score, &all.ragged, &all.paged, nullptr, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_expressed(const __grid_constant__ Expressed<Quantised<Params>> params) {
  const Quantised<Params>& own = params.plain;
  attend<T, C>(own.plain, &params.score, nullptr, nullptr, &own, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_ragged_expressed(const __grid_constant__ ExpressedRagged<Ragged<Quantised<Params>>> params) {
  const Ragged<Quantised<Params>>& all = params.all;
  attend<T, C>(all.plain.plain, &all.score, &all.ragged, nullptr, &all.plain, &params.expression);
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), C.ctas_per_sm)
forward_quantised_paged_expressed(const __grid_constant__ ExpressedRagged<Paged<Quantised<Params>>> params) {
  const Paged<Quantised<Params>>& all = params.all;
  attend<T, C>(all.plain.plain, &all.score, &all.ragged, &all.paged, &all.plain, &params.expression);
}

}  // namespace flashcore::sm80_wide_fwd
