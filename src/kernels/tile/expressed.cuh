#pragma once
// A problem's own functions on accumulators, and the lists of blocks that its mask leaves.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/expression_params.h"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/user_expression.cuh"

namespace flashcore::tile {

// Whose rows: what the functions take of a tile.
struct Head {
  int batch, head_q, head_kv;
};
// Of the lane's row r, where tiles pack the query heads of a key head, and where they have one.
FC_DEVICE const Head& head_of_row(const Head (&heads)[2], int r) { return heads[r]; }
FC_DEVICE const Head& head_of_row(const Head& head, int) { return head; }
// A base that keeps it. One more member, even an empty one, changes what ptxas makes of kernels that do not use it.
template <bool kHas>
struct HeadOfTile {};
template <>
struct HeadOfTile<true> {
  Head own_head;
};

// Another, of a ragged batch, whose tiles have a sequence by itself as their batch: which entry it is.
template <bool kHas>
struct EntryOfTile {};
template <>
struct EntryOfTile<true> {
  int batch_entry;
};

// Another that keeps the parameters of a kernel's functions.
template <bool kHas>
struct KernelExpressions {
  FC_DEVICE explicit KernelExpressions(const ExpressionParams*) {}
};
template <>
struct KernelExpressions<true> {
  const ExpressionParams* const expression_params;
  FC_DEVICE explicit KernelExpressions(const ExpressionParams* params) : expression_params(params) {}
};

// Params: the kernel's parameters, with seqlen_q and seqlen_kv. kAtOnce: scores of a lane whose elements of tensors are
// on their way together, 0 all of a block: for kernels that have few registers left.
template <class Params = ForwardParams, int kAtOnce = 0>
struct Expressions {
  const Params& problem;
  const ExpressionParams* params;

  // Scores of the lane's two rows, of one head or of two of a key head, against a block of which the lane's first key
  // is `first_key`. They leave in base 2, so that scale_log2 is 1 and the exponent of a row's largest score is exactly
  // 0: functions hide keys by scores of -1e9, where a fused multiply-add is off by 64 from the rounded product that it
  // subtracts, and 2^64 is infinity in fp16.
  template <class Accumulator, class Heads>
  FC_DEVICE void score(Accumulator& scores, const Heads& head, int first_key, const int (&rows)[2]) const {
    score(scores, head, first_key, rows, [&] { return params->unit; });
  }
  // The same of scores in units of what `unit` gives.
  template <class Accumulator, class Heads, class Unit>
  FC_DEVICE void score(Accumulator& scores, const Heads& head, int first_key, const int (&rows)[2], Unit unit) const {
    for_each<user::kScoreReadsTensors>(scores, head, first_key, rows, [&](float& s, expression::Variables& at) {
      constexpr float kLog2E = 1.44269504088896340736f;
      at.s = s * unit();
      s = user::score(at, params->score_tensors) * kLog2E;
    });
  }
  template <class Accumulator, class Heads>
  FC_DEVICE void mask(Accumulator& scores, const Heads& head, int first_key, const int (&rows)[2]) const {
    for_each<user::kMaskReadsTensors>(scores, head, first_key, rows, [&](float& s, expression::Variables& at) {
      if (!user::mask(at, params->mask_tensors)) s = ptx::negative_infinity();
    });
  }

  FC_DEVICE expression::Variables variables(const Head& head) const {
    return {0.0f, head.batch, head.head_q, head.head_kv, 0, 0, problem.seqlen_q, problem.seqlen_kv};
  }

 private:
  // Tensors have no elements for rows and keys past the end, which a tile may have: those take the last one's.
  template <bool kInside, class Accumulator, class Heads, class Function>
  FC_DEVICE void for_each(Accumulator& scores, const Heads& head, int first_key, const int (&rows)[2],
                          Function function) const {
    expression::Variables at = variables(head_of_row(head, 0));
    // Opaque, so that what depends on the row alone is computed once for a block and does not live through all of them.
    int own[2] = {ptx::opaque(rows[0]), ptx::opaque(rows[1])};
    if constexpr (kInside)
      own[0] = min_int(own[0], problem.seqlen_q - 1), own[1] = min_int(own[1], problem.seqlen_q - 1);
#pragma unroll
    for (int i = 0; i < kElements<Accumulator>; ++i) {
      at.h = head_of_row(head, row_of_element(i)).head_q;
      at.i = own[row_of_element(i)];
      at.j = first_key + column_of_element(i);
      if constexpr (kInside) at.j = min_int(at.j, problem.seqlen_kv - 1);
      if constexpr (kInside && kAtOnce > 0) {
        if (i > 0 && i % kAtOnce == 0) ptx::bar_warp_sync();  // for ptxas alone
      }
      function(element(scores, i), at);
    }
  }
};

FC_DEVICE unsigned load_word(const unsigned* address) {
  return ptx::bits_of_float(ptx::ld_global_f32(reinterpret_cast<const float*>(address)));
}

// The list of a tile.
struct BlockList {
  int number;

  // Of row tile number `row_tile` of a head.
  FC_DEVICE static BlockList of(const ExpressionParams& params, int batch, int head_q, int row_tile) {
    return {batch * params.lists_per_batch + head_q * params.lists_per_head + row_tile};
  }
  // Found again for each use: an address kept through the main loop was spilled beside three consumers.
  FC_DEVICE const unsigned* words(const ExpressionParams* params) const {
    return params->lists + ptx::opaque(number) * params->words_per_list;
  }
  FC_DEVICE int count(const ExpressionParams* params) const { return static_cast<int>(load_word(words(params))); }
  // Places in the list of the blocks that some row of the group sees.
  FC_DEVICE BlockRange of_group(const ExpressionParams* params, int group) const {
    const unsigned* of = words(params) + 1 + 2 * group;
    return {static_cast<int>(load_word(of)), static_cast<int>(load_word(of + 1))};
  }
  FC_DEVICE unsigned entry(const ExpressionParams* params, int place) const {
    return load_word(words(params) + kListHeader + place);
  }
  FC_DEVICE static int block_of(unsigned entry) { return static_cast<int>(entry >> kUseBits); }
  FC_DEVICE static ListedUse use_of(unsigned entry, int group) {
    return static_cast<ListedUse>(entry >> (2 * group) & 3);
  }
};

// A base that keeps a tile's list and the entry of the block at hand.
template <bool kHas>
struct ListOfTile {};
template <>
struct ListOfTile<true> {
  BlockList list;
  unsigned entry;
};

}  // namespace flashcore::tile
