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

constexpr int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }
// Columns of those tiles that wgmma works on.
constexpr int padded_dim(int head_dim) { return round_up(head_dim, 16); }

// Bytes from one row to the next of a tile of `columns` 16-bit elements, a multiple of 16. Always a multiple of 16
// bytes: cp.async and ldmatrix fault or tear otherwise.
constexpr int row_pitch_bytes(int columns, SharedLayout layout) {
  return columns * 2 + (layout == SharedLayout::kPadded ? 16 : 0);
}

// Rows of c chunks start c chunks apart, so 8/g rows fall in different bank groups, g being the largest power of two
// up to 8 that divides c; the exclusive or over g chunks tells the others apart.
constexpr int swizzle_group(int chunks) { return chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1; }

}  // namespace flashcore::tile
