#pragma once
// Quantising: q, k and v become 8-bit floats with their factors. What the kernels are compiled for, what they are
// handed, and how the work is cut. Read by g++ and by NVRTC; the CPU's loops take the same decisions from here.

#include "kernels/tile/code_range.h"
#include "kernels/tile/fast_divide.h"
#include "kernels/tile/traits.h"

namespace flashcore::quantise {

struct Kind {
  Element element = Element::kF16;  // of q, k and v: 32 or 16 bits
  Element code = Element::kE4M3;    // or kE5M2
  bool counts = false;              // numbers that saturate, in QuantiseParams::saturated
};

inline constexpr int kThreads = 128;
// At least, so that enough loads are under way: 64 registers for a thread. Single elements need more of them.
constexpr int ctas_of_multiprocessor(bool is_vector) { return is_vector ? 8 : 3; }
// A thread takes so many columns of a row: of 16-bit elements two loads of 16 bytes, and one store of codes.
inline constexpr int kColumns = 16;
inline constexpr int kMostColumns = kThreads * kColumns;
inline constexpr int kMostRotated = 32 * kColumns;  // a row of which lies in one warp
// The sums of one thread, of which each is eight bytes, and a flag.
inline constexpr int kMeansShared = kThreads * kColumns * 8 + 16;
inline constexpr int kLargestShared = (kThreads / 32 + 1) * 4;
inline constexpr int kRowsShared = kThreads * 4;  // of rows that have a factor each
// Of V that is transposed on its way: so many keys and columns at a time.
inline constexpr int kTileKeys = 128, kTileColumns = 64;
inline constexpr int kTransposeShared = kTileKeys * kTileColumns;

// A tensor of rows, which are numbered as [batch, heads, seqlen] is. Rows of one group share a factor, and lie one
// after another: all, the rows of a batch entry and key head, or blocks of a batch entry and head, of which the last
// may be short; or each row has its own, and all are of one group.
struct Operand {
  const void* from;
  void* to;
  float* factors;  // [groups], or of each row, blocks too; written
  Strides from_stride, to_stride;
  tile::FastDivide by_seqlen, by_heads, by_chunks, by_blocks;
  int heads, seqlen, dim;
  int rows;
  int groups, group_rows;
  int blocks, run_rows;    // groups of a run of rows, of which the last has what is left
  int chunk_rows, chunks;  // CTAs share the rows of a group
  int first_tile;          // among the CTAs of all three
  int first_group;         // among the groups of all three
  int is_rotated;          // by the Hadamard transform
  int by_row;              // a factor for each row
  int by_block;            // one for each group, written for each of its rows
  int number;              // among the three
};

struct QuantiseParams {
  Operand q, k, v;
  float* k_mean;       // [batch, heads_kv, dim], taken from k; or null
  float* largest;      // scratch, a number for each CTA: the largest magnitude it met
  unsigned* sums;      // scratch, [batch * heads_kv, mean_chunks, dim] of double
  unsigned* counters;  // zero before a launch and after it: [batch * heads_kv] of means, [groups of all three]
  unsigned signs[kMostRotated / 32];  // bit c: column c changes its sign before the rotation
  float rotation_scale;               // 1 / sqrt(dim)
  unsigned* saturated;                // [3] of 64 bits, of q, k and v, to which is added; with Kind::counts
  int has_factors;                    // they are given, and none is of a row
  tile::FastDivide by_mean_chunks;
  int mean_chunks, mean_rows;  // CTAs that share the keys of a head, and how many keys each has
  int heads;                   // batch * heads_kv
  int tiles;                   // CTAs that share the rows of all three
  // V as [batch, heads_kv, dim, seqlen]: to_stride.row is from column to column.
  int is_transposed;
  tile::FastDivide by_key_tiles, by_column_tiles;
  int key_tiles, column_tiles;
};

constexpr int parts_of(int dim) { return (dim + kColumns - 1) / kColumns; }
// Such a row's parts are lanes of one warp, whose numbers differ in their lowest bits.
constexpr bool parts_are_butterfly(int dim) {
  const int parts = parts_of(dim);
  return parts <= 32 && (parts & (parts - 1)) == 0;
}
// Rows that a CTA has in hand at once: a thread keeps its columns.
constexpr int rows_at_once(int dim) { return kThreads / parts_of(dim); }
constexpr int round_up_keys(int keys) { return (keys + 15) / 16 * 16; }

// `largest` looks at the tiles from here on: rows that have a factor each find theirs when they are written.
inline int first_searched_tile(const QuantiseParams& params) {
  if (!params.q.by_row) return 0;
  return params.k.by_row ? params.v.first_tile : params.k.first_tile;
}

struct Place {
  int head, batch, row;
  int slab;  // batch * heads + head
};

inline Place place_of(const Operand& x, int row) {
  Place place;
  place.slab = x.by_seqlen.quotient(row);
  place.row = row - place.slab * x.seqlen;
  place.batch = x.by_heads.quotient(place.slab);
  place.head = place.slab - place.batch * x.heads;
  return place;
}
inline long long offset_of(const Strides& stride, const Place& place) {
  return place.batch * stride.batch + place.head * stride.head + place.row * stride.row;
}

// Rows of a group.
struct Rows {
  int first, end;
};
inline Rows rows_of(const Operand& x, int group) {
  const int run = x.by_blocks.quotient(group), first = run * x.run_rows + (group - run * x.blocks) * x.group_rows;
  const int end = first + x.group_rows, last = (run + 1) * x.run_rows;
  return {first, end < last ? end : last};
}

inline int factors_of(const Operand& x) { return x.by_row || x.by_block ? x.rows : x.groups; }
inline int group_of_slab(const Operand& v, int slab) { return v.groups == 1 ? 0 : slab; }

}  // namespace flashcore::quantise
