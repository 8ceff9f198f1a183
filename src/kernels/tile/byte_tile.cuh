#pragma once
// Tiles of 8-bit elements as TMA writes and wgmma reads them: blocks of kWidth columns (the swizzle's width in bytes:
// 32, 64 or 128), each a line of kWidth bytes per row of the tile. A block begins at a multiple of 8 lines.

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/tile/byte_layout.h"

namespace flashcore::tile {

// Where a matrix operand of 8-bit elements lies: the low word of its descriptor; the high one depends on the width.
template <int kWidth>
struct ByteDescriptor {
  static_assert(kWidth == 32 || kWidth == 64 || kWidth == 128);
  unsigned low;

  // K-major operands with a swizzle ignore the leading offset.
  FC_DEVICE static ByteDescriptor of(ptx::SharedAddress address) { return {((address & 0x3ffff) >> 4) | 1u << 16}; }
  FC_DEVICE ByteDescriptor advanced(int bytes) const { return {low + bytes / 16}; }
  FC_DEVICE unsigned long long word() const {
    // Swizzle mode and the distance of 8 rows.
    constexpr unsigned kMode = kWidth == 128 ? 1u : kWidth == 64 ? 2u : 3u;
    constexpr unsigned kHigh = kMode << 30 | 8u * kWidth / 16;
    return static_cast<unsigned long long>(kHigh) << 32 | low;
  }
};

// kRows rows of kColumns elements.
template <int kRows, int kColumns, int kWidth>
struct ByteTile {
  static constexpr int kLineBytes = kWidth;
  static constexpr int kBlocks = (kColumns + kWidth - 1) / kWidth;
  static constexpr int kBlockBytes = kRows * kWidth;
  static constexpr int kBytes = byte_tile_bytes(kRows, kColumns, kWidth);
  static_assert(kRows % 8 == 0 && kBytes == kBlocks * kBlockBytes);

  FC_DEVICE static constexpr int line_bytes() { return kWidth; }  // as TmaTile's
  FC_DEVICE static constexpr int block_columns() { return kWidth; }

  // What a row's number adds to that of a 16-byte chunk of its line, by exclusive or.
  FC_DEVICE static int swizzle(int row) { return row * kWidth / 128 % (kWidth / 16); }
  // Of 16 bytes, `chunk` counting over all columns.
  FC_DEVICE static int offset(int row, int chunk) {
    constexpr int kChunks = kWidth / 16;
    return chunk / kChunks * kBlockBytes + row * kWidth + ((chunk % kChunks ^ swizzle(row)) << 4);
  }
  // From an address of 16 bytes to the one `chunks` further in the same row: one operation, where a row's number need
  // not be known. The chunk that it comes from must have none of the bits of `chunks`. Tiles begin at multiples of 1
  // KB.
  FC_DEVICE static ptx::SharedAddress chunks_on(ptx::SharedAddress address, int chunks) {
    constexpr int kChunks = kWidth / 16;
    return (address ^ static_cast<unsigned>(chunks % kChunks << 4)) + chunks / kChunks * kBlockBytes;
  }
  // Bytes from the start to columns [32 step, 32 step + 32), which wgmma multiplies at a time.
  static constexpr int step_offset(int step) { return 32 * step / kWidth * kBlockBytes + 32 * step % kWidth; }

  // Rows [row, row + kRows) of a head from a column on, in boxes of kWidth columns; announced to the barrier.
  FC_DEVICE static void load_expected(ptx::SharedAddress tile, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                                      int row, int head, int batch, int column = 0) {
    ptx::mbarrier_arrive_expect_tx(barrier, kBytes);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      ptx::tma_load_4d(tile + b * kBlockBytes, map, barrier, column + kWidth * b, row, head, batch);
  }
};

}  // namespace flashcore::tile
