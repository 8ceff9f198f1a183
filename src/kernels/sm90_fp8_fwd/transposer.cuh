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

// Columns of all keys of a tile, in pieces of 16 columns by 32 keys that the warps take in turn.
// ldmatrix.trans of 8 keys × 16 bytes gives lane (g, t) keys 2t and 2t + 1 of columns 2g and 2g + 1. Two of those, of
// keys 0 to 7 and 8 to 15, are four keys of two columns: a permutation of bytes for each column. Half of the lanes give
// the even one first, the others the odd one: so the 8 lines that a stmatrix tile goes to are in different bank groups.
// kInFlight pieces are on their way from shared memory, four registers each: one is loaded as soon as the registers of
// an earlier one have been stored. One after another, each took the latency of both.
template <class TileV, class TileVt, int kKeys, int kInFlight>
struct ColumnTransposer {
  static constexpr int kPiecesOfChunk = kKeys / 32;  // a chunk: 16 columns

  const ptx::SharedAddress read_offset, write_offset;  // of a lane and the first piece, from the tiles' starts
  const unsigned first_bytes, second_bytes;

  FC_DEVICE static int write_row(int l) { return l % 8 * 2 + (l % 8 / 4 ^ l / 8 % 2); }
  FC_DEVICE explicit ColumnTransposer(int l)
      : read_offset(TileV::offset(l, 0)),
        write_offset(TileVt::offset(write_row(l), l / 16)),
        first_bytes(l / 4 < 4 ? 0x6420u : 0x7531u),
        second_bytes(l / 4 < 4 ? 0x7531u : 0x6420u) {}

  FC_DEVICE void load(unsigned (&tiles)[4], ptx::SharedAddress v, int piece) const {
    const int chunk = piece / kPiecesOfChunk, row = piece % kPiecesOfChunk * 32;
    ptx::ldmatrix_x4_trans(tiles, TileV::chunks_on(v + read_offset, chunk) + row * TileV::kLineBytes);
  }
  FC_DEVICE void store(const unsigned (&tiles)[4], ptx::SharedAddress vt, int piece) const {
    const int row = piece / kPiecesOfChunk * 16, chunk = piece % kPiecesOfChunk * 2;
    ptx::stmatrix_x4(TileVt::chunks_on(vt + write_offset, chunk) + row * TileVt::kLineBytes,
                     ptx::prmt(tiles[0], tiles[1], first_bytes), ptx::prmt(tiles[0], tiles[1], second_bytes),
                     ptx::prmt(tiles[2], tiles[3], first_bytes), ptx::prmt(tiles[2], tiles[3], second_bytes));
  }
  // Of `chunks` chunks the pieces `first`, first + kTransposers, …
  FC_DEVICE void run(ptx::SharedAddress v, ptx::SharedAddress vt, int first, int chunks) const {
    const int end = chunks * kPiecesOfChunk;
    unsigned tiles[kInFlight][4];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + kTransposers * i < end) load(tiles[i], v, first + kTransposers * i);
    }
#pragma unroll 1
    for (int round = first; round < end; round += kTransposers * kInFlight) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int piece = round + kTransposers * i, next = piece + kTransposers * kInFlight;
        if (piece < end) store(tiles[i], vt, piece);
        if (next < end) load(tiles[i], v, next);
      }
    }
  }
};

template <Traits T, Config C>
struct Transposer {
  const Context<T, C>& context;
  const int index;  // of the warp among the transposers
  tile::Marks marks = {};

  // Of 16 columns: of a tile, and of a part of V at most.
  static constexpr int kChunks = padded_dim(T.head_dim_v) / 16, kChunksOfPart = width_of(T.head_dim_v) / 16;
  // Pieces that the registers have room for. Of 32, a mask takes some to find the tile's blocks, a counter to ask it;
  // and of one stage of V ptxas keeps addresses.
  static constexpr bool kBounded = T.bounded_left || T.bounded_right;
  static constexpr int kInFlight = producer_registers(C) >= 40 ? C.v_stages == 1 ? 3 : 4
                                   : kBounded || C.scheduler == Scheduler::kCounter || C.v_stages == 1 ? 2
                                                                                                       : 3;

  FC_DEVICE int next_number(Ring<kTileSlots>& ring_tile) {
    marks.mark(tile::Activity::kWaitTile);
    return tile::take_tile_number(context, ring_tile);
  }
  FC_DEVICE void run() {
    marks.begin_role(tile::Role::kTransposer);
    const ColumnTransposer<TileV<T, C>, TileVt<T, C>, C.block_n, kInFlight> columns(ptx::tid_x() % 32);
    Ring<C.v_stages> ring_v;
    Ring<C.num_stages> ring_vt;
    Ring<kTileSlots> ring_tile;
    for (int number = next_number(ring_tile); number >= 0; number = next_number(ring_tile)) {
      marks.mark(tile::Activity::kSetUp);
      for (int left = context.tile_at(number).blocks.count(); left > 0; --left) {
        marks.mark(tile::Activity::kWaitSlot);
        ptx::mbarrier_wait(context.vt_empty(ring_vt.stage()), ring_vt.parity() ^ 1);
        const ptx::SharedAddress vt = context.vt(ring_vt.stage());
#pragma unroll 1
        for (int first = 0; first < kChunks; first += kChunksOfPart) {
          const bool is_last = first + kChunksOfPart >= kChunks;
          marks.mark(tile::Activity::kWaitV);
          ptx::mbarrier_wait(context.v_full(ring_v.stage()), ring_v.parity());
          marks.mark(tile::Activity::kTranspose);
          columns.run(context.v(ring_v.stage()), vt + 16 * TileVt<T, C>::kLineBytes * first, index,
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
