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

// Columns [16 c, 16 c + 16) of all keys of a tile, by one warp.
// ldmatrix.trans of 8 keys × 16 bytes gives lane (g, t) keys 2t and 2t + 1 of columns 2g and 2g + 1. Two of those, of
// keys 0 to 7 and 8 to 15, are four keys of two columns: a permutation of bytes for each column. Half of the lanes give
// the even one first, the others the odd one: so the 8 lines that a stmatrix tile goes to are in different bank groups.
// `kMost`: pieces of 32 keys in flight, four registers each.
template <class TileV, class TileVt, int kKeys, int kMost>
struct ColumnTransposer {
  const int lane;
  // Where it writes, from the first line of the columns and the first 16 keys of 32.
  const int write_row, write_chunk;
  const unsigned first_bytes, second_bytes;

  FC_DEVICE explicit ColumnTransposer(int l)
      : lane(l),
        write_row(l % 8 * 2 + (l % 8 / 4 ^ l / 8 % 2)),
        write_chunk(l / 16),
        first_bytes(l / 4 < 4 ? 0x6420u : 0x7531u),
        second_bytes(l / 4 < 4 ? 0x7531u : 0x6420u) {}

  template <int kCount>
  FC_DEVICE void transpose(ptx::SharedAddress v, ptx::SharedAddress vt, int column_chunk, int first) const {
    unsigned tiles[kCount][4];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      ptx::ldmatrix_x4_trans(tiles[i], v + TileV::offset(32 * (first + i) + lane, column_chunk));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const unsigned(&from)[4] = tiles[i];
      ptx::stmatrix_x4(vt + TileVt::offset(16 * column_chunk + write_row, 2 * (first + i) + write_chunk),
                       ptx::prmt(from[0], from[1], first_bytes), ptx::prmt(from[0], from[1], second_bytes),
                       ptx::prmt(from[2], from[3], first_bytes), ptx::prmt(from[2], from[3], second_bytes));
    }
  }
  FC_DEVICE void run(ptx::SharedAddress v, ptx::SharedAddress vt, int column_chunk) const {
    constexpr int kSteps = kKeys / 32, kRounds = (kSteps + kMost - 1) / kMost,
                  kAtOnce = (kSteps + kRounds - 1) / kRounds;
#pragma unroll 1
    for (int first = 0; first + kAtOnce <= kSteps; first += kAtOnce) transpose<kAtOnce>(v, vt, column_chunk, first);
    if constexpr (kSteps % kAtOnce != 0) transpose<kSteps % kAtOnce>(v, vt, column_chunk, kSteps / kAtOnce * kAtOnce);
  }
};

template <Traits T, Config C>
struct Transposer {
  const Context<T, C>& context;
  const int index;  // of the warp among the transposers
  tile::Marks marks = {};

  FC_DEVICE int next_number(Ring<kTileSlots>& ring_tile) {
    marks.mark(tile::Activity::kWaitTile);
    return tile::take_tile_number(context, ring_tile);
  }
  FC_DEVICE void run() {
    marks.begin_role(tile::Role::kTransposer);
    // A mask takes registers to find the tile's blocks, a counter to ask it; and of one stage of V ptxas keeps
    // addresses.
    constexpr int kTaken =
        T.bounded_left || T.bounded_right || C.scheduler == Scheduler::kCounter || C.v_stages == 1 ? 1 : 0;
    constexpr int kMost = producer_registers(C) < 40 ? 3 - kTaken : producer_registers(C) < 56 ? 4 - kTaken : 4;
    const ColumnTransposer<TileV<T, C>, TileVt<T, C>, C.block_n, kMost> columns(ptx::tid_x() % 32);
    Ring<C.v_stages> ring_v;
    Ring<C.num_stages> ring_vt;
    Ring<kTileSlots> ring_tile;
    for (int number = next_number(ring_tile); number >= 0; number = next_number(ring_tile)) {
      marks.mark(tile::Activity::kSetUp);
      for (int left = context.tile_at(number).blocks.count(); left > 0; --left) {
        marks.mark(tile::Activity::kWaitV);
        ptx::mbarrier_wait(context.v_full(ring_v.stage()), ring_v.parity());
        marks.mark(tile::Activity::kWaitSlot);
        ptx::mbarrier_wait(context.vt_empty(ring_vt.stage()), ring_vt.parity() ^ 1);
        marks.mark(tile::Activity::kTranspose);
        const ptx::SharedAddress v = context.v(ring_v.stage()), vt = context.vt(ring_vt.stage());
#pragma unroll 1
        for (int chunk = index; chunk < padded_dim(T.head_dim_v) / 16; chunk += kTransposers) columns.run(v, vt, chunk);
        ptx::fence_proxy_async();
        ptx::bar_warp_sync();  // all lanes have read and written
        tile::arrive_for_warp(context.vt_full(ring_vt.stage()));
        tile::arrive_for_warp(context.v_empty(ring_v.stage()));
        ring_v.advance(), ring_vt.advance();
      }
    }
    marks.end_role();
  }
};

}  // namespace flashcore::sm90_fp8_fwd
