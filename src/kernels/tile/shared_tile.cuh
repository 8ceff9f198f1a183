#pragma once
// A tile of rows in shared memory, 16-bit elements in 16-byte chunks, laid out so that eight consecutive rows of one
// chunk column (one ldmatrix tile) fall in eight different bank groups.

#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::tile {

// kColumns: a multiple of 16. The addresses below are bytes from the tile's start.
template <int kColumns, SharedLayout kLayout>
struct SharedTile {
  static constexpr int kChunks = kColumns / 8;
  static constexpr int kPitch = row_pitch_bytes(kColumns, kLayout);

  // What the row adds to a chunk index by exclusive or; depends on row % 8 only.
  FC_DEVICE static int swizzle(int row) {
    if constexpr (kLayout == SharedLayout::kPadded) return 0;
    constexpr int kGroup = swizzle_group(kChunks);
    return (row / (8 / kGroup)) & (kGroup - 1);
  }
  FC_DEVICE static unsigned offset(int row, int chunk) { return row * kPitch + ((chunk ^ swizzle(row)) << 4); }

  // Lane addresses for ldmatrix of a 16×16 block; `at` moves it by whole blocks at the cost of one exclusive or.
  struct Lane {
    unsigned row_address;
    unsigned chunk_address;
    FC_DEVICE unsigned at(int block_row, int block_column) const {
      return row_address + block_row * (16 * kPitch) + (chunk_address ^ (32 * block_column));
    }
    // By single chunks.
    FC_DEVICE unsigned at_chunk(int block_row, int chunk) const {
      return row_address + block_row * (16 * kPitch) + (chunk_address ^ (16 * chunk));
    }
  };
  // Tiles in the order (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15): operand a, and b transposed.
  FC_DEVICE static Lane lane_rows_first(ptx::SharedAddress tile, int lane) {
    const int row = ptx::opaque(lane & 15);
    return {tile + row * kPitch, static_cast<unsigned>((lane >> 4) ^ swizzle(row)) << 4};
  }
  // Tiles in the order (0-7, 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15): operand b as stored.
  FC_DEVICE static Lane lane_columns_first(ptx::SharedAddress tile, int lane) {
    const int row = ptx::opaque((lane & 7) + ((lane >> 4) << 3));
    return {tile + row * kPitch, static_cast<unsigned>(((lane >> 3) & 1) ^ swizzle(row)) << 4};
  }
  // Tiles of one chunk column in the order (rows 0-7), (8-15), (16-23), (24-31).
  FC_DEVICE static Lane lane_rows(ptx::SharedAddress tile, int lane) {
    const int row = ptx::opaque(lane);
    return {tile + row * kPitch, static_cast<unsigned>(swizzle(row)) << 4};
  }

  // Few threads have many copies each: unrolled whole, their addresses push accumulators out of registers.
  static constexpr int copy_unroll(int steps) { return steps <= 8 ? steps : 4; }

  // Starts the copy of rows [first_row, first_row + kRows) of a global tensor; rows from `end_row` on and columns from
  // kValidColumns on become zero. `source` is the element of row 0, column 0; 16-byte aligned rows.
  template <int kRows, int kValidColumns, int kThreads>
  FC_DEVICE static void copy_async(ptx::SharedAddress tile, const unsigned short* source, long long row_stride,
                                   int first_row, int end_row, int thread) {
    const auto copy = [&](const unsigned short* from, int row, int chunk) {
      const bool valid = row < end_row - first_row && chunk * 8 < kValidColumns;
      ptx::cp_async_16(tile + offset(row, chunk), from, valid ? 16 : 0);
    };
    if constexpr (kThreads % kChunks == 0) {
      // One chunk column per thread: one address, and steps that are the same for all threads.
      constexpr int kRowStep = kThreads / kChunks;
      const int row = thread / kChunks, chunk = thread % kChunks;
      const unsigned short* from = source + (first_row + row) * row_stride + chunk * 8;
      const long long step = ptx::opaque(kRowStep * row_stride);
      constexpr int kSteps = (kRows + kRowStep - 1) / kRowStep;
#pragma unroll(copy_unroll(kSteps))
      for (int i = 0; i < kSteps; ++i, from += step) {
        if (kRows % kRowStep == 0 || row + i * kRowStep < kRows) copy(from, row + i * kRowStep, chunk);
      }
    } else {
      constexpr int kCopies = kRows * kChunks;
      constexpr int kSteps = (kCopies + kThreads - 1) / kThreads;
#pragma unroll(copy_unroll(kSteps))
      for (int i = 0; i < kSteps; ++i) {
        const int index = thread + i * kThreads;
        const int row = index / kChunks, chunk = index % kChunks;
        if (kCopies % kThreads == 0 || index < kCopies)
          copy(source + (first_row + row) * row_stride + chunk * 8, row, chunk);
      }
    }
  }

  // The same of rows that lie in pages: rows.page_of(row) is the page of a row of the tile, rows.address(page, row) the
  // element of its column 0. Without a page (less than 0) rows become zeros, or NaN where rows.is_nan(page). The pages
  // of a few rows are asked for before the first of them is copied, so that they are on their way together.
  template <int kRows, int kValidColumns, int kThreads, class Rows>
  FC_DEVICE static void copy_paged_async(ptx::SharedAddress tile, const Rows& rows, int thread) {
    constexpr bool kOneChunk = kThreads % kChunks == 0;
    constexpr int kCopies = kRows * kChunks, kSteps = (kCopies + kThreads - 1) / kThreads;
    constexpr int kAhead = kSteps < 4 ? kSteps : 4;
#pragma unroll 1
    for (int first = 0; first < kSteps; first += kAhead) {
      int pages[kAhead];
      const auto each = [&](const auto& visit) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int index = thread + (first + i) * kThreads;
          const int row = kOneChunk ? thread / kChunks + (first + i) * (kThreads / kChunks) : index / kChunks;
          if (row < kRows) visit(pages[i], row, kOneChunk ? thread % kChunks : index % kChunks);
        }
      };
      each([&](int& page, int row, int) { page = rows.page_of(row); });
      each([&](int page, int row, int chunk) {
        const ptx::SharedAddress to = tile + offset(row, chunk);
        const bool valid = page >= 0 && chunk * 8 < kValidColumns;
        if (rows.is_nan(page)) ptx::st_shared_v4(to, rows.nan(), rows.nan(), rows.nan(), rows.nan());
        else ptx::cp_async_16(to, valid ? rows.address(page, row) + chunk * 8 : rows.pool, valid ? 16 : 0);
      });
    }
  }
};

}  // namespace flashcore::tile
