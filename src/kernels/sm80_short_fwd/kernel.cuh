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
#include "kernels/tile/element.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::sm80_short_fwd {

FC_DEVICE int min_int(int a, int b) { return a < b ? a : b; }

template <Traits T, Config C>
struct SharedStorage {
  unsigned char states[C.key_warps][C.row_blocks][kStateBytes];
  unsigned char o[C.key_warps][tile_rows(C)][pitch_bytes(T)];
};

template <Traits T, Config C>
struct Kernel {
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

  // Where the tile lies.
  int batch, head_kv;
  int first_head;      // query head of row 0
  int heads;           // of the tile that exist
  int first_position;  // of row 0
  int blocks;          // of block_n keys, of those that some row sees; this warp has every key_warps-th

  ptx::Vector4 q[kRowBlocks][2][kChunksQk];
  ptx::Vector4 k[kKeyTiles][kChunksQk];
  ptx::Vector4 v[kKeyTiles][2][kChunksV];
  float acc_s[kRowBlocks][kKeyTiles][4];
  float acc_o[kRowBlocks][8 * kChunksV][4];  // 8 chunk + i: column i of the lane's eight, of that chunk
  tile::OnlineSoftmax softmax[kRowBlocks];
  float total[kRowBlocks][2];  // of the row's probabilities

  FC_DEVICE explicit Kernel(const Params& parameters)
      : params(parameters), warp(ptx::tid_x() / 32), group(ptx::tid_x() % 32 / 4), member(ptx::tid_x() % 4) {}

  // --- what to do -------------------------------------------------------------------------------------------------
  // The grid is (heads, batch, row tiles). Under a causal mask the longest tiles come first.
  FC_DEVICE void find_tile() {
    head_kv = params.by_head_tiles.quotient(ptx::ctaid_x());
    const int head_tile = ptx::ctaid_x() - head_kv * params.head_tiles;
    batch = ptx::ctaid_y();
    const int row_tile = T.bounded_right ? ptx::nctaid_z() - 1 - ptx::ctaid_z() : ptx::ctaid_z();
    first_head = head_kv * params.group_size + head_tile * C.pack_heads;
    heads = min_int(C.pack_heads, params.group_size - head_tile * C.pack_heads);
    first_position = row_tile * kPositions;
    int end = params.seqlen_kv;
    if constexpr (T.bounded_right) {
      const int last = min_int(first_position + kPositions, params.seqlen_q) - 1;
      end = min_int(end, last + params.right_offset + 1);
    }
    blocks = end <= 0 ? 0 : (end + C.block_n - 1) / C.block_n;
  }

  // The lane's, of a piece of 16 rows.
  FC_DEVICE int row(int piece, int second) const { return 16 * piece + 8 * second + group; }
  FC_DEVICE static int head_of(int row) { return C.pack_heads == 1 ? 0 : row / kPositions; }
  FC_DEVICE int position_of(int row) const { return first_position + (C.pack_heads == 1 ? row : row % kPositions); }
  FC_DEVICE bool row_exists(int row) const { return head_of(row) < heads && position_of(row) < params.seqlen_q; }

  // --- load -------------------------------------------------------------------------------------------------------
  // Zeros for what does not exist.
  FC_DEVICE static ptx::Vector4 load(const ptx::Vector4* from, bool exists) {
    if (exists) return ptx::ld_global_v4(from);
    return {0, 0, 0, 0};
  }
  // Of 16 bytes of a row.
  FC_DEVICE ptx::Vector4* piece_at(const Tensor& tensor, int head, int row, int piece) const {
    return static_cast<ptx::Vector4*>(tensor.address) +
           (batch * tensor.batch + head * tensor.head + row * tensor.row + piece);
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
        const ptx::Vector4* from = piece_at(params.q, first_head + head_of(r), position_of(r), member);
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
      const ptx::Vector4* from = piece_at(params.k, head_kv, first_key + 8 * n, member);
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
        const ptx::Vector4* from = piece_at(params.v, head_kv, first_key + 8 * n + i, group);
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
    const bool rows = heads == C.pack_heads && first_position + kPositions <= params.seqlen_q;
    if (rows && is_whole(block)) load_k<true>(block), load_q<true>(), load_v<true>(block);
    else load_k<false>(block), load_q<false>(), load_v<false>(block);
  }
  FC_DEVICE void load_next_k(int block) {
    if (is_whole(block)) load_k<true>(block);
    else load_k<false>(block);
  }
  FC_DEVICE void load_next_v(int block) {
    if (is_whole(block)) load_v<true>(block);
    else load_v<false>(block);
  }

  // --- compute ----------------------------------------------------------------------------------------------------
  FC_DEVICE static unsigned word(const ptx::Vector4& from, int i) {
    return i == 0 ? from.x : i == 1 ? from.y : i == 2 ? from.z : from.w;
  }
  FC_DEVICE void scores() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc_s[m][n][i] = 0.0f;
      }
    }
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

  FC_DEVICE void mask(int block) {
    const int first_key = block * C.block_n + 2 * member;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        int end = params.seqlen_kv;
        if constexpr (T.bounded_right) end = min_int(end, position_of(row(m, second)) + params.right_offset + 1);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (first_key + 8 * n + i >= end) acc_s[m][n][2 * second + i] = ptx::negative_infinity();
          }
        }
      }
    }
  }
  FC_DEVICE bool needs_mask(int block) const {
    int full_end = params.seqlen_kv;
    if constexpr (T.bounded_right) full_end = min_int(full_end, first_position + params.right_offset + 1);
    return (block + 1) * C.block_n > full_end;
  }

  // The same column of two keys, as the fragment of V wants them.
  FC_DEVICE static unsigned pair(const ptx::Vector4& key, const ptx::Vector4& next, int column) {
    return ptx::prmt(word(key, column / 2), word(next, column / 2), column % 2 == 0 ? 0x5410 : 0x7632);
  }
  FC_DEVICE void add_values() {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      unsigned p[kRowBlocks][4];
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          p[m][i] = tile::pack<T.element>(acc_s[m][n + i / 2][i % 2 * 2], acc_s[m][n + i / 2][i % 2 * 2 + 1]);
      }
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
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int second = 0; second < 2; ++second) total[m][second] = tile::quad_sum(softmax[m].sum[second]);
    }
  }

  // K of the next block is on its way under the values of this one, V under the next scores.
  FC_DEVICE void attend() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 8 * kChunksV; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc_o[m][i][j] = 0.0f;
      }
    }
    if (warp >= blocks) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) softmax[m].reset();
      prepare_stores();
      add_totals();
      return;
    }
    load_first(warp);
    prepare_stores();
    scores();
    if (needs_mask(warp)) mask(warp);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) softmax[m].start(acc_s[m], params.scale_log2);
#pragma unroll 1
    for (int next = warp + C.key_warps; next < blocks; next += C.key_warps) {
      load_next_k(next);
      add_values();
      load_next_v(next);
      scores();
      if (needs_mask(next)) mask(next);
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        float rescale[2];
        softmax[m].update(acc_s[m], params.scale_log2, rescale);
#pragma unroll
        for (int i = 0; i < 8 * kChunksV; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) acc_o[m][i][j] *= rescale[j / 2];
        }
      }
    }
    add_totals();
    add_values();
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
    const int head = first_head + head_of(row), position = position_of(row);
    Place place;
    place.exists = row_exists(row);
    place.o = piece_at(params.o, head, position, 0);
    place.lse = params.lse;
    if (place.lse) place.lse += static_cast<long long>(batch * params.heads_q + head) * params.seqlen_q + position;
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

  FC_DEVICE static void store_lse(const Place& place, float maximum, float sum) {
    if (place.exists && place.lse) ptx::st_global_f32(place.lse, tile::log_sum_exp(maximum, sum));
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
        const float scale = tile::inverse_sum(total[m][second]);
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
        store_lse(places[m][second], softmax[m].max_scaled[second], total[m][second]);
    }
  }

  FC_DEVICE static ptx::SharedAddress state_address(int of_warp, int row) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, states) +
           ((of_warp * kRowBlocks + row / 16) * 8 + row % 8) * 16;
  }
  // Four of the 16 columns that a member has of a chunk: those of four members are neighbours, for the banks.
  FC_DEVICE static ptx::SharedAddress part_address(int of_warp, int row, int chunk, int member, int quarter) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, o) + (of_warp * tile_rows(C) + row) * pitch_bytes(T) +
           ((chunk * 4 + quarter) * 4 + member) * 16;
  }

  FC_DEVICE void hand_over() {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      if (member == 0) {
        ptx::st_shared_v4(state_address(warp, row(m, 0)), softmax[m].max_scaled[0], total[m][0],
                          softmax[m].max_scaled[1], total[m][1]);
      }
#pragma unroll
      for (int second = 0; second < 2; ++second) {
#pragma unroll
        for (int c = 0; c < kChunksV; ++c) {
#pragma unroll
          for (int quarter = 0; quarter < 4; ++quarter) {
            const auto o = [&](int i) { return acc_o[m][8 * c + quarter % 2 * 4 + i][2 * second + quarter / 2]; };
            ptx::st_shared_v4(part_address(warp, row(m, second), c, member, quarter), o(0), o(1), o(2), o(3));
          }
        }
      }
    }
  }

  // Maximum and sum of a row, of one warp.
  struct RowState {
    float maximum, total;
  };
  FC_DEVICE static RowState load_state(int of_warp, int row) {
    const ptx::Vector4 words = ptx::ld_shared_v4(state_address(of_warp, row));
    const bool second = row / 8 % 2 != 0;
    return {ptx::float_of_bits(second ? words.z : words.x), ptx::float_of_bits(second ? words.w : words.y)};
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
    RowState states[C.key_warps];
    float maximum = ptx::negative_infinity();
#pragma unroll
    for (int w = 0; w < C.key_warps; ++w) {
      states[w] = load_state(w, piece.row);
      maximum = ptx::max(maximum, states[w].maximum);
    }
    float o[8] = {}, sum = 0.0f;
#pragma unroll
    for (int w = 0; w < C.key_warps; ++w) {
      const float weight = tile::weight(states[w].maximum, maximum);
      sum = ptx::fma(weight, states[w].total, sum);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const ptx::Vector4 part =
            ptx::ld_shared_v4(part_address(w, piece.row, piece.chunk, piece.member, 2 * piece.next + i));
#pragma unroll
        for (int j = 0; j < 4; ++j) o[4 * i + j] = ptx::fma(weight, ptx::float_of_bits(word(part, j)), o[4 * i + j]);
      }
    }
    store_columns(place, piece.chunk * kColumnsV + 16 * piece.member + 8 * piece.next, o, tile::inverse_sum(sum));
    if (piece.member == 0 && piece.next == 0 && piece.chunk == 0) store_lse(place, maximum, sum);
  }

  FC_DEVICE void run() {
    find_tile();
    if constexpr (C.early_launch) ptx::griddepcontrol_wait(), ptx::griddepcontrol_launch_dependents();
    attend();
    if constexpr (C.key_warps == 1) {
      store_all();
    } else {
      hand_over();
      ptx::bar_sync();
      int index = ptx::tid_x();
      if (index < kPieces) merge(Piece::of(index), places[0][0]);
#pragma unroll 1
      for (index += threads_per_block(C); index < kPieces; index += threads_per_block(C))
        merge(Piece::of(index), place_of(Piece::of(index).row));
    }
  }
};

template <Traits T, Config C>
FC_KERNEL(threads_per_block(C), 1)
forward(const __grid_constant__ Params params) {
  Kernel<T, C>(params).run();
}

}  // namespace flashcore::sm80_short_fwd
