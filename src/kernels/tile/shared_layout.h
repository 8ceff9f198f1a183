#pragma once
// The arithmetic of shared-memory tiles that host and kernel both need. Read by g++ and by NVRTC: includes nothing.

namespace flashcore::tile {

enum class SharedLayout : int {
  kPadded,  // each row longer by one 16-byte chunk, so that rows start in different bank groups
  kXor,     // rows dense; the chunk index is exclusive-ored with bits of the row
};

// Tiles that TMA loads and wgmma reads are blocks of 64 columns (128 bytes, the swizzle's width); columns past head_dim
// hold zeros.
constexpr int column_blocks(int head_dim) { return (head_dim + 63) / 64; }

constexpr int tma_tile_bytes(int rows, int head_dim) { return rows * column_blocks(head_dim) * 128; }

constexpr int min_int(int a, int b) { return a < b ? a : b; }
constexpr int max_int(int a, int b) { return a > b ? a : b; }
constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
// Columns of those tiles that wgmma works on.
constexpr int padded_dim(int head_dim) { return round_up(head_dim, 16); }

// A partial result that one warp hands to another: of its 16 rows the maxima and sums, 16 bytes of every 4 lanes, then
// O in chunks of 8 columns, 16 bytes of every lane. A fragment goes to the same lane, so nothing is permuted and no
// bank conflicts.
constexpr int kStateBytes = 8 * 16;
constexpr int kChunkBytes = 32 * 16;
constexpr int partial_bytes(int chunks) { return kStateBytes + chunks * kChunkBytes; }

// Bytes from one row to the next of a tile of `columns` 16-bit elements, a multiple of 16. Always a multiple of 16
// bytes: cp.async and ldmatrix fault or tear otherwise.
constexpr int row_pitch_bytes(int columns, SharedLayout layout) {
  return columns * 2 + (layout == SharedLayout::kPadded ? 16 : 0);
}

// Rows of c chunks start c chunks apart, so 8/g rows fall in different bank groups, g being the largest power of two
// up to 8 that divides c; the exclusive or over g chunks tells the others apart.
constexpr int swizzle_group(int chunks) { return chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1; }

}  // namespace flashcore::tile
