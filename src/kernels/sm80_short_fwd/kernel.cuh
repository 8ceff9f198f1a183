#pragma once
// Forward attention where time is latency: few rows and few keys. Q, K and V go from global memory straight into the
// fragments of mma.sync m16n8k16, in 16-byte loads that are all on their way before the first is waited for: no copy
// through shared memory, no barrier before the merge. Warps split the keys of a tile of rows and merge once.
//
// What makes it possible is that both products may sum their terms in any order and have their columns anywhere. A
// lane's 16 bytes of a row of K are the terms that the fragment wants of it if Q's are taken from the same columns; its
// 16 bytes of a row of V are eight columns of O, one of each of eight products.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/griddepcontrol.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/prmt.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/sm80_short_fwd/config.h"
#include "kernels/sm80_short_fwd/params.h"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/partial.cuh"
#include "kernels/tile/scheduler.cuh"
#include "kernels/tile/score.cuh"
#include "kernels/tile/softmax.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm80_short_fwd {

template <Traits T, Config C>
struct SharedStorage {
  unsigned char states[C.key_warps][C.row_blocks][tile::kStateBytes];
  unsigned char o[C.key_warps][tile_rows(C)][pitch_bytes(T)];
};

template <Traits T, Config C>
struct Kernel : tile::SlopesOfRows<has_score(T), 2 * C.row_blocks>, tile::Marks {
  using Activity = tile::Activity;
  static constexpr int kChunksQk = padded_dim_qk(T) / kColumnsQk;
  static constexpr int kChunksV = padded_dim_v(T) / kColumnsV;
  static constexpr int kKeyTiles = C.block_n / 8;
  static constexpr int kRowBlocks = C.row_blocks;
  static constexpr int kPositions = positions(C);
  using Storage = SharedStorage<T, C>;
  static_assert(C.key_warps == 1 || sizeof(Storage) == smem_bytes(C, T));

  const Params& params;
  const int warp;           // has the keys
  const int group, member;  // of a warp's eight groups of four lanes: rows `group` and `group + 8` of every 16, and a
                            // quarter of a row's columns

  tile::PackedTile<tile_rows(C), C.pack_heads> tile;
  tile::BlockRange blocks;  // of block_n keys, of those that some row sees; this warp has every key_warps-th

  ptx::Vector4 q[kRowBlocks][2][kChunksQk];
  ptx::Vector4 k[kKeyTiles][kChunksQk];
  ptx::Vector4 v[kKeyTiles][2][kChunksV];
  float acc_s[kRowBlocks][kKeyTiles][4];
  float acc_o[kRowBlocks][8 * kChunksV][4];  // 8 chunk + i: column i of the lane's eight, of that chunk
  tile::OnlineSoftmax softmax[kRowBlocks];
  tile::RowState states[kRowBlocks];

  FC_DEVICE Kernel(const Params& parameters, const ScoreParams* of_scores)
      : params(parameters), warp(ptx::tid_x() / 32), group(ptx::tid_x() % 32 / 4), member(ptx::tid_x() % 4) {
    if constexpr (has_score(T)) this->score_params = of_scores;
  }

  // --- what to do -------------------------------------------------------------------------------------------------
  FC_DEVICE tile::Mask<T, Params> mask() const { return {params}; }
  FC_DEVICE tile::Score<T, Params> score() const { return {params, this->score_params}; }
  // The grid is (heads, batch, row tiles).
  FC_DEVICE void find_tile() {
    const int head_kv = params.by_head_tiles.quotient(ptx::ctaid_x());
    tile.batch = ptx::ctaid_y();
    tile.set_heads(head_kv, ptx::ctaid_x() - head_kv * params.head_tiles, params.group_size);
    tile.first_position = tile::row_tile_of_grid<tile::Mask<T, Params>::kLongestLast>() * kPositions;
    blocks = mask().template blocks<C.block_n>(tile.first_position,
                                               tile::min_int(tile.first_position + kPositions, params.seqlen_q) - 1);
  }

  // The lane's, of a piece of 16 rows.
  FC_DEVICE int row(int piece, int second) const { return 16 * piece + 8 * second + group; }
  FC_DEVICE bool row_exists(int row) const { return tile.exists(row, params.seqlen_q); }

  // --- load -------------------------------------------------------------------------------------------------------
  // Zeros for what does not exist.
  FC_DEVICE static ptx::Vector4 load(const ptx::Vector4* from, bool exists) {
    if (exists) return ptx::ld_global_v4(from);
    return {0, 0, 0, 0};
  }
  // Of 16 bytes of a row.
  FC_DEVICE ptx::Vector4* piece_at(const Tensor& tensor, int head, int row, int piece) const {
    return static_cast<ptx::Vector4*>(tensor.address) +
           (tile.batch * tensor.batch + head * tensor.head + row * tensor.row + piece);
  }
  // Whether the lane's piece of a chunk of a row lies within the head dim.
  template <int kColumns, int kDim>
  FC_DEVICE static bool chunk_exists(int chunk, int piece) {
    return kDim % kColumns == 0 || chunk * kColumns + 8 * piece < kDim;
  }

  template <bool kWhole>
  FC_DEVICE void load_q() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const int r = row(m, second);
        const ptx::Vector4* from = piece_at(params.q, tile.first_head + tile.head_of(r), tile.position_of(r), member);
#pragma unroll
        for (int c = 0; c < kChunksQk; ++c) {
          const bool exists = (kWhole || row_exists(r)) && chunk_exists<kColumnsQk, T.head_dim>(c, member);
          q[m][second][c] = load(from + c * (kColumnsQk / 8), exists);
        }
      }
    }
  }
  // Key `8 tile + group` of the block.
  template <bool kWhole>
  FC_DEVICE void load_k(int block) {
    const int first_key = block * C.block_n + group;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const bool key_exists = kWhole || first_key + 8 * n < params.seqlen_kv;
      const ptx::Vector4* from = piece_at(params.k, tile.head_kv, first_key + 8 * n, member);
#pragma unroll
      for (int c = 0; c < kChunksQk; ++c) {
        const bool exists = key_exists && chunk_exists<kColumnsQk, T.head_dim>(c, member);
        k[n][c] = load(from + c * (kColumnsQk / 8), exists);
      }
    }
  }
  // Keys `8 tile + 2 member` of the block, and the one after it.
  template <bool kWhole>
  FC_DEVICE void load_v(int block) {
    const int first_key = block * C.block_n + 2 * member;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool key_exists = kWhole || first_key + 8 * n + i < params.seqlen_kv;
        const ptx::Vector4* from = piece_at(params.v, tile.head_kv, first_key + 8 * n + i, group);
#pragma unroll
        for (int c = 0; c < kChunksV; ++c) {
          const bool exists = key_exists && chunk_exists<kColumnsV, T.head_dim_v>(c, group);
          v[n][i][c] = load(from + c * (kColumnsV / 8), exists);
        }
      }
    }
  }
  FC_DEVICE bool is_whole(int block) const { return (block + 1) * C.block_n <= params.seqlen_kv; }
  FC_DEVICE void load_first(int block) {
    mark(Activity::kLoadK, block);
    const bool rows = tile.heads == C.pack_heads && tile.first_position + kPositions <= params.seqlen_q;
    if (rows && is_whole(block)) load_k<true>(block), load_q<true>(), load_v<true>(block);
    else load_k<false>(block), load_q<false>(), load_v<false>(block);
  }
  FC_DEVICE void load_next_k(int block) {
    mark(Activity::kLoadK, block);
    if (is_whole(block)) load_k<true>(block);
    else load_k<false>(block);
  }
  FC_DEVICE void load_next_v(int block) {
    mark(Activity::kLoadV, block);
    if (is_whole(block)) load_v<true>(block);
    else load_v<false>(block);
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE static unsigned word(const ptx::Vector4& from, int i) {
    return i == 0 ? from.x : i == 1 ? from.y : i == 2 ? from.z : from.w;
  }
  FC_DEVICE void scores() {
    mark(Activity::kQk);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) tile::set_zero(acc_s[m]);
#pragma unroll
    for (int c = 0; c < kChunksQk; ++c) {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          const unsigned a[4] = {word(q[m][0][c], 2 * step), word(q[m][1][c], 2 * step), word(q[m][0][c], 2 * step + 1),
                                 word(q[m][1][c], 2 * step + 1)};
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n)
            tile::mma<T.element>(acc_s[m][n], a, word(k[n][c], 2 * step), word(k[n][c], 2 * step + 1));
        }
      }
    }
  }

  FC_DEVICE void load_slopes() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second)
        this->slopes[2 * m + second] = score().slope(tile.batch, tile.query_head(row(m, second)));
    }
  }
  FC_DEVICE void transform_where_asked(int block) {
    mark(Activity::kMask, block);
    if constexpr (transforms_scores(T)) {
      const tile::Side side =
          score().template side<C.block_n>(block, tile.first_position, tile.first_position + kPositions - 1);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        score().apply(acc_s[m], this->slopes + 2 * m, side, block * C.block_n + 2 * member,
                      {tile.position_of(row(m, 0)), tile.position_of(row(m, 1))});
      }
    }
  }

  FC_DEVICE void mask_where_cut(int block) {
    const tile::Cut cut =
        mask().template cut<C.block_n>(block, tile.first_position, tile.first_position + kPositions - 1);
    if (!cut.any()) return;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      mask().apply(acc_s[m], cut, block * C.block_n + 2 * member,
                   {tile.position_of(row(m, 0)), tile.position_of(row(m, 1))});
    }
  }

  // The same column of two keys, as the fragment of V wants them.
  FC_DEVICE static unsigned pair(const ptx::Vector4& key, const ptx::Vector4& next, int column) {
    return ptx::prmt(word(key, column / 2), word(next, column / 2), column % 2 == 0 ? 0x5410 : 0x7632);
  }
  FC_DEVICE void add_pv() {
    mark(Activity::kPv);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      unsigned p[kRowBlocks][4];
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) tile::pack_operand<T.element>(p[m], acc_s[m], n / 2);
#pragma unroll
      for (int c = 0; c < kChunksV; ++c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const unsigned b0 = pair(v[n][0][c], v[n][1][c], i), b1 = pair(v[n + 1][0][c], v[n + 1][1][c], i);
#pragma unroll
          for (int m = 0; m < kRowBlocks; ++m) tile::mma<T.element>(acc_o[m][8 * c + i], p[m], b0, b1);
        }
      }
    }
  }

  FC_DEVICE void add_totals() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) states[m] = tile::RowState::of(softmax[m]);
  }

  // K of the next block is on its way under the values of this one, V under the next scores.
  FC_DEVICE void attend() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) tile::set_zero(acc_o[m]);
    const int first = blocks.begin + warp;
    if (first >= blocks.end) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) softmax[m].reset();
      prepare_stores();
      add_totals();
      return;
    }
    load_first(first);
    prepare_stores();
    scores();
    transform_where_asked(first);
    mask_where_cut(first);
    mark(Activity::kSoftmax, first);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) softmax[m].start(acc_s[m], params.scale_log2);
#pragma unroll 1
    for (int next = first + C.key_warps; next < blocks.end; next += C.key_warps) {
      load_next_k(next);
      add_pv();
      load_next_v(next);
      scores();
      transform_where_asked(next);
      mask_where_cut(next);
      mark(Activity::kSoftmax, next);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        float rescale[2];
        softmax[m].update(acc_s[m], params.scale_log2, rescale);
        tile::scale_rows(acc_o[m], rescale);
      }
    }
    add_totals();
    add_pv();
  }

  // --- finish -----------------------------------------------------------------------------------------------------
  // Eight columns of rows: what this lane stores, and where. Found while the loads are on their way.
  struct Place {
    bool exists;
    ptx::Vector4* o;
    float* lse;  // null: none
  };
  // Of one warp that has all keys: the lane's own rows. Of several: one piece in turn.
  Place places[C.key_warps == 1 ? kRowBlocks : 1][2];

  FC_DEVICE Place place_of(int row) const {
    const int head = tile.first_head + tile.head_of(row), position = tile.position_of(row);
    Place place;
    place.exists = row_exists(row);
    place.o = piece_at(params.o, head, position, 0);
    place.lse = params.lse ? tile::lse_pointer(params, tile.batch, head, position) : nullptr;
    place.o = ptx::opaque(place.o), place.lse = ptx::opaque(place.lse);
    return place;
  }
  FC_DEVICE void prepare_stores() {
    if constexpr (C.key_warps == 1) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
        for (int second = 0; second < 2; ++second) places[m][second] = place_of(row(m, second));
      }
    } else {
      places[0][0] = place_of(Piece::of(ptx::tid_x()).row);
    }
  }

  // What O of a row is multiplied with.
  FC_DEVICE float scale_of_row(int row, float maximum, float sum) const {
    if constexpr (T.sink) {
      float lse;
      return tile::add_sink(maximum, sum, score().sink_log2(tile.query_head(row)), lse);
    } else {
      return tile::inverse_sum(sum);
    }
  }
  FC_DEVICE void store_lse(const Place& place, int row, float maximum, float sum) const {
    if (!place.exists || !place.lse) return;
    float lse;
    if constexpr (T.sink) tile::add_sink(maximum, sum, score().sink_log2(tile.query_head(row)), lse);
    else lse = tile::log_sum_exp(maximum, sum);
    ptx::st_global_f32(place.lse, lse);
  }
  FC_DEVICE static void store_columns(const Place& place, int column, const float (&o)[8], float scale) {
    unsigned packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = tile::pack<T.element>(o[2 * i] * scale, o[2 * i + 1] * scale);
    if (place.exists && (T.head_dim_v % kColumnsV == 0 || column < T.head_dim_v))
      ptx::st_global_v4(place.o + column / 8, {packed[0], packed[1], packed[2], packed[3]});
  }

  FC_DEVICE void store_all() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const float scale = scale_of_row(row(m, second), states[m].maximum[second], states[m].total[second]);
#pragma unroll
        for (int c = 0; c < kChunksV; ++c) {
#pragma unroll
          for (int next = 0; next < 2; ++next) {
            float o[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) o[i] = acc_o[m][8 * c + i][2 * second + next];
            store_columns(places[m][second], c * kColumnsV + 16 * member + 8 * next, o, scale);
          }
        }
      }
    }
    if (member != 0) return;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second)
        store_lse(places[m][second], row(m, second), states[m].maximum[second], states[m].total[second]);
    }
  }

  // Of the piece of 16 rows that holds the row.
  FC_DEVICE static ptx::SharedAddress state_address(int of_warp, int row) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, states) +
           (of_warp * kRowBlocks + row / 16) * tile::kStateBytes;
  }
  // Four of the 16 columns that a member has of a chunk: those of four members are neighbours, for the banks.
  FC_DEVICE static ptx::SharedAddress part_address(int of_warp, int row, int chunk, int member, int quarter) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, o) + (of_warp * tile_rows(C) + row) * pitch_bytes(T) +
           ((chunk * 4 + quarter) * 4 + member) * 16;
  }

  FC_DEVICE void write_partial() {
    const auto write = [](ptx::SharedAddress at, float a, float b, float c, float d) {
      ptx::st_shared_v4(at, a, b, c, d);
    };
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      tile::write_state(write, state_address(warp, 16 * m), 4 * group + member, states[m]);
#pragma unroll
      for (int second = 0; second < 2; ++second) {
#pragma unroll
        for (int c = 0; c < kChunksV; ++c) {
#pragma unroll
          for (int quarter = 0; quarter < 4; ++quarter) {
            const auto o = [&](int i) { return acc_o[m][8 * c + quarter % 2 * 4 + i][2 * second + quarter / 2]; };
            write(part_address(warp, row(m, second), c, member, quarter), o(0), o(1), o(2), o(3));
          }
        }
      }
    }
  }

  // Eight columns of a row, of all that the threads share out when they merge.
  struct Piece {
    int member, row, next, chunk;
    FC_DEVICE static Piece of(int index) {
      const int rest = index / 4 / tile_rows(C);
      return {index % 4, index / 4 % tile_rows(C), rest % 2, rest / 2};
    }
  };
  static constexpr int kPieces = 4 * tile_rows(C) * 2 * kChunksV;

  FC_DEVICE void merge(const Piece& piece, const Place& place) {
    const bool second = piece.row / 8 % 2 != 0;
    float maxima[C.key_warps], totals[C.key_warps], maximum = ptx::negative_infinity();
#pragma unroll
    for (int w = 0; w < C.key_warps; ++w) {
      const tile::RowState state = tile::read_state(state_address(w, piece.row), piece.row % 8 * 4);
      maxima[w] = second ? state.maximum[1] : state.maximum[0];
      totals[w] = second ? state.total[1] : state.total[0];
      maximum = ptx::max(maximum, maxima[w]);
    }
    float o[8] = {}, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < C.key_warps; ++w) {
      const float weight = tile::weight(maxima[w], maximum);
      sum = ptx::fma(weight, totals[w], sum);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const ptx::Vector4 part =
            ptx::ld_shared_v4(part_address(w, piece.row, piece.chunk, piece.member, 2 * piece.next + i));
#pragma unroll
        for (int j = 0; j < 4; ++j) o[4 * i + j] = ptx::fma(weight, ptx::float_of_bits(word(part, j)), o[4 * i + j]);
      }
    }
    store_columns(place, piece.chunk * kColumnsV + 16 * piece.member + 8 * piece.next, o,
                  scale_of_row(piece.row, maximum, sum));
    if (piece.member == 0 && piece.next == 0 && piece.chunk == 0) store_lse(place, piece.row, maximum, sum);
  }

  FC_DEVICE void run() {
    begin_role(tile::Role::kWarp);
    find_tile();
    if constexpr (C.early_launch) ptx::griddepcontrol_wait(), ptx::griddepcontrol_launch_dependents();
    if constexpr (T.alibi != 0) load_slopes();
    attend();
    if constexpr (C.key_warps == 1) {
      mark(Activity::kEpilogue);
      store_all();
    } else {
      mark(Activity::kMerge);
      write_partial();
      mark(Activity::kWaitPartner);
      ptx::bar_sync();
      mark(Activity::kEpilogue);
      int index = ptx::tid_x();
      if (index < kPieces) merge(Piece::of(index), places[0][0]);
#pragma unroll 1
      for (index += threads_per_block(C); index < kPieces; index += threads_per_block(C))
        merge(Piece::of(index), place_of(Piece::of(index).row));
    }
    end_role();
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ Params params) {
  Kernel<T, C>(params, nullptr).run();
}

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward_scored(const __grid_constant__ Scored<Params> params) {
  Kernel<T, C>(params.plain, &params.score).run();
}

}  // namespace flashcore::sm80_short_fwd
