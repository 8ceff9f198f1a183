#pragma once
// The transposers of sm90_fp8_fwd: three warps that turn tiles of V, which lie in shared memory as in global memory, so
// that keys are contiguous, as wgmma wants both operands of 8 bits. Keys change places within each 16
// (byte_softmax.cuh).

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/prmt.cuh"
#include "kernels/sm90_fp8_fwd/context.cuh"
#include "kernels/tile/producer.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm90_fp8_fwd {

// Columns [16 c, 16 c + 16) of all keys of a tile, by one warp, in pieces of 32 keys.
// ldmatrix.trans of 8 keys × 16 bytes gives lane (g, t) keys 2t and 2t + 1 of columns 2g and 2g + 1. Two of those, of
// keys 0 to 7 and 8 to 15, are four keys of two columns: a permutation of bytes for each column. Half of the lanes give
// the even one first, the others the odd one: so the 8 lines that a stmatrix tile goes to are in different bank groups.
// kInFlight pieces are on their way from shared memory, four registers each: a piece is loaded as soon as the registers
// of an earlier one have been stored; with kAcross also those of the next columns. One after another, each took the
// latency of both.
template <class TileV, class TileVt, int kKeys, int kInFlight, bool kAcross>
struct ColumnTransposer {
  static constexpr int kPieces = kKeys / 32;
  static_assert(!kAcross || kPieces % kInFlight == 0, "pieces of the next columns would take other registers");

  // Of a lane, from the tile's start: what it reads of the first chunk and 32 keys, and where it writes those to.
  const unsigned read_offset, write_offset;
  const unsigned first_bytes, second_bytes;

  FC_DEVICE static int write_row(int l) { return l % 8 * 2 + (l % 8 / 4 ^ l / 8 % 2); }
  FC_DEVICE explicit ColumnTransposer(int l)
      : read_offset(TileV::offset(l, 0)),
        write_offset(TileVt::offset(write_row(l), l / 16)),
        first_bytes(l / 4 < 4 ? 0x6420u : 0x7531u),
        second_bytes(l / 4 < 4 ? 0x7531u : 0x6420u) {}

  // The lane's address of the chunk's first 32 keys.
  FC_DEVICE ptx::SharedAddress column(ptx::SharedAddress v, int chunk) const {
    return TileV::chunks_on(v + read_offset, chunk);
  }
  FC_DEVICE static void load(unsigned (&piece)[4], ptx::SharedAddress column, int i) {
    ptx::ldmatrix_x4_trans(piece, column + TileV::offset(32 * i, 0));
  }
  FC_DEVICE void store(const unsigned (&piece)[4], ptx::SharedAddress column, int i) const {
    ptx::stmatrix_x4(TileVt::chunks_on(column, 2 * i), ptx::prmt(piece[0], piece[1], first_bytes),
                     ptx::prmt(piece[0], piece[1], second_bytes), ptx::prmt(piece[2], piece[3], first_bytes),
                     ptx::prmt(piece[2], piece[3], second_bytes));
  }
  // Chunks of columns from `chunk` on, each `step`-th of those before `end`; vt begins with chunk 0's.
  FC_DEVICE void run(ptx::SharedAddress v, ptx::SharedAddress vt, int chunk, int step, int end) const {
    if (chunk >= end) return;
    unsigned pieces[kInFlight][4];
    if constexpr (kAcross) load_first(pieces, v, chunk);
#pragma unroll 1
    for (; chunk < end; chunk += step) {
      if constexpr (!kAcross) load_first(pieces, v, chunk);
      const ptx::SharedAddress to = vt + write_offset + 16 * TileVt::kLineBytes * chunk;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        unsigned(&piece)[4] = pieces[i % kInFlight];
        store(piece, to, i);
        const int next = i + kInFlight;
        if (next < kPieces) load(piece, column(v, chunk), next);
        else if (kAcross && chunk + step < end) load(piece, column(v, chunk + step), next - kPieces);
      }
    }
  }
  FC_DEVICE void load_first(unsigned (&pieces)[kInFlight][4], ptx::SharedAddress v, int chunk) const {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) load(pieces[i], column(v, chunk), i);
  }
};

template <Traits T, Config C>
struct Transposer {
  const Context<T, C>& context;
  const int index;  // of the warp among the transposers
  tile::Marks marks = {};

  // Of 16 columns: of a tile, and of a part of V at most.
  static constexpr int kChunks = padded_dim(T.head_dim_v) / 16, kChunksOfPart = width_of(T.head_dim_v) / 16;
  // Pieces in 32 registers. A mask takes some of them to find the tile's blocks or their list, a counter to ask it; and
  // of one stage of V ptxas keeps addresses.
  static constexpr int kMostInFlight =
      T.bounded_left || T.bounded_right || T.mask_expression || C.scheduler == Scheduler::kCounter || C.v_stages == 1
          ? 2
          : 3;

  FC_DEVICE int next_number(Ring<kTileSlots>& ring_tile) {
    marks.mark(tile::Activity::kWaitTile);
    return context.next_tile(ring_tile);
  }
  FC_DEVICE int blocks_of(int number, Ring<kTileSlots>& ring_tile) {
    if constexpr (!T.ragged) return context.tile_at(number).blocks.count();
    const int blocks = context.tile_in(ring_tile.stage()).blocks.count();
    context.release_tile(ring_tile);
    return blocks;
  }
  FC_DEVICE void run() {
    marks.begin_role(tile::Role::kTransposer);
    constexpr int kPieces = C.block_n / 32;
    constexpr bool kAcross = producer_registers(C) >= 40;
    constexpr int kInFlight = kAcross ? kPieces : min_int(kPieces, kMostInFlight);
    const ColumnTransposer<TileV<T, C>, TileVt<T, C>, C.block_n, kInFlight, kAcross> columns(ptx::tid_x() % 32);
    Ring<C.v_stages> ring_v;
    Ring<C.num_stages> ring_vt;
    Ring<kTileSlots> ring_tile;
    for (int number = next_number(ring_tile); number >= 0; number = next_number(ring_tile)) {
      marks.mark(tile::Activity::kSetUp);
      for (int left = blocks_of(number, ring_tile); left > 0; --left) {
        marks.mark(tile::Activity::kWaitSlot);
        ptx::mbarrier_wait(context.vt_empty(ring_vt.stage()), ring_vt.parity() ^ 1);
        const ptx::SharedAddress vt = context.vt(ring_vt.stage());
#pragma unroll 1
        for (int first = 0; first < kChunks; first += kChunksOfPart) {
          const bool is_last = first + kChunksOfPart >= kChunks;
          marks.mark(tile::Activity::kWaitV);
          ptx::mbarrier_wait(context.v_full(ring_v.stage()), ring_v.parity());
          marks.mark(tile::Activity::kTranspose);
          columns.run(context.v(ring_v.stage()), vt + 16 * TileVt<T, C>::kLineBytes * first, index, kTransposers,
                      min_int(kChunks - first, kChunksOfPart));
          if (is_last) ptx::fence_proxy_async();
          ptx::bar_warp_sync();  // all lanes have read and written
          if (is_last) tile::arrive_for_warp(context.vt_full(ring_vt.stage()));
          tile::arrive_for_warp(context.v_empty(ring_v.stage()));
          ring_v.advance();
        }
        ring_vt.advance();
      }
    }
    marks.end_role();
  }
};

}  // namespace flashcore::sm90_fp8_fwd
