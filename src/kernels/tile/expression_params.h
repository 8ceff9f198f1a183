#pragma once
// What kernels with functions of the user's own are handed beside their parameters, and the lists of blocks that a mask
// function leaves. Read by g++ and by NVRTC.

#include "kernels/tile/expression.h"
#include "kernels/tile/traits.h"

namespace flashcore {

namespace tile {

// The blocks of keys that some row of a tile sees, in the order of the keys, in words of global memory: how many there
// are; for each row group of the tile the place of its first block in the list and the place after its last one; and
// from word kListHeader on an entry for each block, its number above kUseBits bits of the groups' uses.
//
// A kernel with such a list numbers a tile's blocks by their places in it: so what goes over blocks begin .. end - 1 is
// the same with a list and without.
//
// Enumerators, here and in what else these kernels include: a variable, even one that nothing uses, would be a constant
// of every kernel.
enum : int {
  kMaxListGroups = 4,
  kUseBits = 8,
  kListHeader = 12,  // words, a multiple of 16 bytes
  kMaxListedBlocks = 1 << (31 - kUseBits),
  kListThreads = 512,  // of the kernel that makes them, tile/list_blocks.cuh
  kListChunk = 1024,   // blocks that it decides between two barriers
  kListSharedBytes = 4 * (kListChunk + 2 * kMaxListGroups),
};

// What a block is to a row group, beside the band: no row sees a key of it, every row sees every key, or else.
enum class ListedUse : int { kSkip, kFull, kCut };

constexpr long long list_words(long long blocks) { return kListHeader + (blocks + 3) / 4 * 4; }

}  // namespace tile

struct ExpressionParams {
  enum : int { kMaxTensors = 8 };

  // From what scores are in units of before the score function, to what it takes: after it they are natural.
  float unit;
  // In the order in which each of the two names them.
  expression::Tensor score_tensors[kMaxTensors], mask_tensors[kMaxTensors];
  unsigned* lists;  // of a mask function, for each tile of rows
  // Between lists; and how many there are of a batch entry and of a head, 0 where one serves all.
  long long words_per_list;
  int lists_per_batch, lists_per_head;
};

// The parameters of `forward_expressed`: a kernel for a function of the user's own, with built-in ones or without.
template <class Plain>
struct Expressed {
  Plain plain;
  ScoreParams score;
  ExpressionParams expression;
};

// The same of a ragged batch, of `forward_ragged_expressed` and `forward_paged_expressed`. All: their parameters
// without functions, Ragged or Paged.
template <class All>
struct ExpressedRagged {
  All all;
  ExpressionParams expression;
};

// The parameters of the kernel that makes the lists (tile/list_blocks.cuh).
struct ListParams {
  ForwardParams problem;
  ExpressionParams expression;
  int row_tiles;  // of a head
};
// Of a ragged batch: there are lists for the bounds, and those of tiles that a sequence does not have stay unread.
struct RaggedListParams {
  ListParams plain;
  RaggedParams ragged;
  PagedParams paged;  // of which the block table is not read
};

}  // namespace flashcore
