#pragma once
// Tunables of sm80_wide_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_wide_fwd {

struct Config {
  int row_warps = 4;     // of 16 query rows each
  int column_warps = 2;  // share their rows: each has its part of a block's keys, and then its part of O's columns
  int block_n = 64;      // keys of one step
  int num_stages = 2;    // tiles in shared memory, of K and of V in turn
  int num_splits = 0;    // CTAs that share a tile's keys at the most; 0: while there are SMs without a tile
  int ctas_per_sm = 1;   // asked of the compiler: bounds registers per thread

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("row_warps", &Config::row_warps, 1, 2, 4);
    visit("column_warps", &Config::column_warps, 2, 4, 8);
    visit("block_n", &Config::block_n, 16, 32, 64, 128);
    visit("num_stages", &Config::num_stages, 2, 3, 4, 5, 6, 8);
    visit("num_splits", &Config::num_splits, 0, 1, 2, 4, 8, 16, 32);
    visit("ctas_per_sm", &Config::ctas_per_sm, 1, 2);
  }
};

// Of the larger head dim. What is narrower has families whose warps hold whole rows of O.
constexpr int kMinHeadDim = 136, kMaxHeadDim = 576;

// Warps with 8 keys each read K by 32 columns at a time, O is dealt out by 16; the rest is filled with zeros.
constexpr int padded_dim(int head_dim) { return tile::round_up(head_dim, 32); }
constexpr int padded_dim_v(int head_dim_v) { return tile::round_up(head_dim_v, 16); }
constexpr int threads_per_block(const Config& c) { return c.row_warps * c.column_warps * 32; }
constexpr int tile_rows(const Config& c) { return 16 * c.row_warps; }
constexpr int keys_per_warp(const Config& c) { return c.block_n / c.column_warps; }

// O's columns in pieces of 16: all of them, and those of a warp. The last warps may have fewer.
constexpr int all_pieces(const Traits& t) { return padded_dim_v(t.head_dim_v) / 16; }
constexpr int warp_pieces(const Config& c, const Traits& t) {
  return (all_pieces(t) + c.column_warps - 1) / c.column_warps;
}

// Q is read until the last step, and O leaves through the same bytes.
constexpr int qo_bytes(const Config& c, const Traits& t) {
  return tile_rows(c) * 2 * tile::max_int(padded_dim(t.head_dim), padded_dim_v(t.head_dim_v));
}
// A block of K or V in q's type: a stage, or of a quantised cache what stages are widened to.
constexpr int operand_bytes(const Config& c, const Traits& t) {
  return c.block_n * 2 * tile::max_int(padded_dim(t.head_dim), padded_dim_v(t.head_dim_v));
}
// Rows of codes are copied by 16 bytes and lie in tiles of 32.
constexpr int stored_columns(const Traits& t, int head_dim) { return head_dim * cache_bits(t) / 16; }  // of 16 bits
constexpr int padded_codes(const Traits& t, int head_dim) { return tile::round_up(head_dim, 256 / cache_bits(t)); }
// A block of K or V as it is stored.
constexpr int stage_bytes(const Config& c, const Traits& t) {
  if (!has_quantised_cache(t)) return operand_bytes(c, t);
  return c.block_n * cache_bits(t) / 8 * tile::max_int(padded_codes(t, t.head_dim), padded_codes(t, t.head_dim_v));
}
// What the traits do without has so many bytes, because an array has some.
constexpr int kLeastBytes = 16;
// Weights of keys times the factors of their values have a unit of their own in fp16 (ValueUnits).
constexpr bool has_value_units(const Traits& t) { return t.token_factors && t.element == Element::kF16; }
// Weights in fp16 are times 2^14 on their way to codes, so that those of a long row's keys keep their bits.
constexpr float weight_scale(const Traits& t) {
  return has_quantised_cache(t) && t.element == Element::kF16 ? 16384.0f : 1.0f;
}
// Of a quantised cache. Of each stage which keys are of a page that does not exist.
constexpr int marks_bytes(const Config& c, const Traits& t) {
  return t.paged ? c.num_stages * 4 * c.block_n : kLeastBytes;
}
// Factors of a block's keys or values. K's are read when its stage may be filled again, so there is a slot more.
constexpr int factor_slots(const Config& c) { return c.num_stages + 1; }
constexpr int factors_bytes(const Config& c, const Traits& t) {
  return t.token_factors ? factor_slots(c) * 4 * c.block_n : kLeastBytes;
}
constexpr int p_bytes(const Config& c) { return tile_rows(c) * c.block_n * 2; }
// Of each row the maximum, and at the end the sum, that each of its warps has found.
constexpr int rows_bytes(const Config& c) { return tile_rows(c) * c.column_warps * 4; }
constexpr int kFlagBytes = 16;

constexpr int tops_bytes(const Config& c, const Traits& t) { return has_value_units(t) ? rows_bytes(c) : kLeastBytes; }
constexpr int code_bytes(const Config& c, const Traits& t) {
  return operand_bytes(c, t) + marks_bytes(c, t) + factors_bytes(c, t) + tops_bytes(c, t);
}

constexpr int smem_bytes(const Config& c, const Traits& t) {
  return qo_bytes(c, t) + c.num_stages * stage_bytes(c, t) + p_bytes(c) + rows_bytes(c) + kFlagBytes +
         (has_quantised_cache(t) ? code_bytes(c, t) : 0);
}

// A part of a tile's keys on its way from one CTA to another: maximum and sum of each row, and O, in fp32.
constexpr int part_bytes(const Config& c, const Traits& t) { return tile_rows(c) * (2 + t.head_dim_v) * 4; }

// Few keys are two sums of every other 16 columns: one would wait for itself from multiply to multiply.
constexpr int score_chains(const Config& c) { return keys_per_warp(c) <= 16 ? 2 : 1; }

// Registers a thread cannot do without: accumulators of O and S, fragments in flight, addresses. The constants are the
// smallest that accept no spilling config in a sample of 800 for sm_80 and sm_90, of dense, ragged and paged problems;
// functions of the user's own spilled 8 bytes without their 8.
constexpr int registers_needed(const Config& c, const Traits& t) {
  const int acc_o = warp_pieces(c, t) * 8;
  const int acc_s = keys_per_warp(c) / 2 * score_chains(c);
  return acc_o + acc_s + (acc_o > 64 ? 108 : 80) + (has_expression(t) ? 8 : 0);
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (t.element == Element::kF32) return "fp16 and bf16 only";
  if (keys_per_warp(c) < 8) return "block_n must be a multiple of 8 keys per warp (8 * column_warps)";
  if (c.row_warps * c.column_warps > 16) return "more than 16 warps";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of the Q tile and the ring of K and V exceeds the device's limit per CTA";
  // 1 KB of each CTA's shared memory is the system's.
  if (c.ctas_per_sm * (smem_bytes(c, t) + 1024) > limits.shared_bytes_per_multiprocessor)
    return "ctas_per_sm CTAs do not fit the shared memory of one SM";
  // Registers are given out in pieces of 8 per thread.
  const int register_limit = limits.registers_per_multiprocessor / (threads_per_block(c) * c.ctas_per_sm) / 8 * 8;
  if (registers_needed(c, t) > (register_limit > 255 ? 255 : register_limit))
    return "the accumulators do not fit the registers that ctas_per_sm leaves a thread";
  return nullptr;
}

}  // namespace flashcore::sm80_wide_fwd
