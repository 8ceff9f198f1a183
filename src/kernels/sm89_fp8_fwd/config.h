#pragma once
// Tunables of sm89_fp8_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm89_fp8_fwd {

struct Config {
  int block_m = 64;        // query rows of a CTA
  int block_n = 64;        // keys of one step
  int num_warps = 4;       // each owns block_m / num_warps query rows
  int num_stages = 2;      // K/V tiles in shared memory
  int q_in_registers = 1;  // Q fragments are kept instead of read again at every step
  int promote_keys = 64;   // keys until the tensor cores' sums are added to those in fp32; 0: never
  int p_exponent = 6;      // log2 of the probability that the first maximum becomes
  int persistent = 0;      // one wave of CTAs takes the tiles in turn
  int ctas_per_sm = 1;     // asked of the compiler: bounds registers per thread

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("block_m", &Config::block_m, 16, 32, 64, 128);
    visit("block_n", &Config::block_n, 32, 64, 96, 128);
    visit("num_warps", &Config::num_warps, 1, 2, 4, 8);
    visit("num_stages", &Config::num_stages, 2, 3, 4);
    visit("q_in_registers", &Config::q_in_registers, 0, 1);
    visit("promote_keys", &Config::promote_keys, 0, 32, 64, 128);
    visit("p_exponent", &Config::p_exponent, 6, 8);
    visit("persistent", &Config::persistent, 0, 1);
    visit("ctas_per_sm", &Config::ctas_per_sm, 1, 2, 3, 4);
  }
};

// mma.m16n8k32 reads head_dim in steps of 32, the rest filled with zeros, and head_dim_v in pairs of 8.
constexpr int padded_k(int head_dim) { return tile::round_up(head_dim, 32); }
constexpr int threads_per_block(const Config& c) { return c.num_warps * 32; }
constexpr int rows_per_warp(const Config& c) { return c.block_m / c.num_warps; }

// Tiles are those of 16-bit elements that hold two bytes each, so that one loader and one ldmatrix serve both.
constexpr tile::SharedLayout kLayout = tile::SharedLayout::kXor;
constexpr int q_tile_bytes(const Config& c, const Traits& t) {
  return c.block_m * tile::row_pitch_bytes(padded_k(t.head_dim) / 2, kLayout);
}
constexpr int k_tile_bytes(const Config& c, const Traits& t) {
  return c.block_n * tile::row_pitch_bytes(padded_k(t.head_dim) / 2, kLayout);
}
constexpr int v_tile_bytes(const Config& c, const Traits& t) {
  return c.block_n * tile::row_pitch_bytes(t.head_dim_v / 2, kLayout);
}
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return q_tile_bytes(c, t) + c.num_stages * (k_tile_bytes(c, t) + v_tile_bytes(c, t));
}

// Where the instruction exists. For others NVRTC 13.0 makes it of two fp16 multiplies, whose operands it unpacks.
constexpr bool multiplies_8_bits(int arch) { return arch == 89 || arch == 120; }

// What functions of the user's own take, as in sm80_fwd: fitted to ten operations, documents, prefixes, boolean tensors
// and biases. The operands of a score's function and of a mask's are on their way together.
constexpr int registers_of_functions(const Config& c, const Traits& t) {
  if (!has_expression(t)) return 0;
  const int fragments = rows_per_warp(c) / 16, scores = fragments * c.block_n / 2;
  const int both = t.score_expression && t.mask_expression && c.block_n > 32 ? 40 + scores / 2 : 0;
  if (fragments == 1 && c.block_n <= 32) return 4;
  const int ragged = t.ragged ? 16 : 0;  // the parameters of the sequence, beside those of the batch
  const int two = fragments > 1 && t.score_expression ? (t.token_factors ? 48 : 24) : 0;
  return 16 + scores / 4 + two + both + ragged;
}

// Registers a thread cannot do without: accumulators of O and S, P, Q, sums that are to be promoted, fragments in
// flight, addresses. The constants accept no spilling config in a sample over all architectures, head dims and fields
// (tests/kernels/spill_test.cpp draws anew).
constexpr int registers_needed(const Config& c, const Traits& t, int arch) {
  const int fragments = rows_per_warp(c) / 16;
  const int acc_o = fragments * t.head_dim_v / 2;
  const int acc_s = fragments * c.block_n / 2, p = fragments * c.block_n / 8;
  const int q = c.q_in_registers ? fragments * padded_k(t.head_dim) / 8 : fragments * 4;
  const int unpacked = multiplies_8_bits(arch) ? 0
                       : fragments == 1        ? (c.q_in_registers ? 76 : 56) + t.head_dim_v / 8
                                               : 56 + t.head_dim_v / 4;
  // Beside the widest O of one fragment, or a wide one and many scores, ptxas places badly what little is left.
  const bool is_tight = t.head_dim_v >= 160 || (t.head_dim_v >= 96 && c.block_n > 64);
  const int wide = multiplies_8_bits(arch) && fragments == 1 && is_tight ? 28 : 0;
  // Of wide heads and many keys beside a narrow O ptxas unpacks more ahead than fits: of 400 draws nine spilled.
  const bool is_long = padded_k(t.head_dim) >= 160 && t.head_dim_v <= 128;
  const int ahead =
      !multiplies_8_bits(arch) && is_long && padded_k(t.head_dim) * c.block_n * fragments > 160 * 64 ? 90 : 0;
  // Scales of rows and factors of keys; functions of scores beside two fragments. And beside a wide O, where 4 to 16
  // bytes spilled, but for the fewest keys.
  const int factors = !t.token_factors || c.block_n <= 32          ? 0
                      : fragments == 2 && !multiplies_8_bits(arch) ? 16  // 64 keys of head dim 128 spilled
                                                                   : 8;
  const bool is_full = is_tight && c.block_n > 32;
  const int functions = transforms_scores(t) && is_full ? 24 : t.softcap && fragments == 2 ? 8 : 0;
  // Where operands are unpacked, 96 keys of head dim 112 beside O of 64 columns spilled 4 bytes with a softcap and a
  // sink, and 16 with factors of rows.
  const bool has_more = t.softcap || (t.token_factors && padded_k(t.head_dim) > 96);
  const int capped = !multiplies_8_bits(arch) && has_more && c.block_n > 64 ? 28 : 0;
  // Two of a fragment; 96 keys of head dim 128 spilled 4 bytes in a ragged batch, 128 keys 20 in any.
  const int largest = !t.amax ? 0 : is_full ? 32 : 8 * fragments;
  return acc_o + acc_s + p + q + fragments * 8 + unpacked + wide + ahead + functions + capped + factors + largest +
         registers_of_functions(c, t) + 60;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (limits.arch < 89) return "mma.sync of 8-bit floats exists from compute capability 8.9 on";
  if (!is_8bit(t.element)) return "e4m3 and e5m2 only";
  if (c.block_m % (16 * c.num_warps) != 0) return "block_m must be a multiple of 16 rows per warp (16 * num_warps)";
  if (rows_per_warp(c) > 32) return "more than 32 rows per warp: the accumulators exceed the register file";
  if (c.promote_keys > 0 && c.block_n % c.promote_keys != 0) return "promote_keys must divide block_n, or be 0";
  if (has_expression(t) && c.block_n > 64)
    return "blocks of more than 64 keys leave too few registers for functions of the user's own";
  // As sm90_fp8_fwd.
  if (t.score_expression && c.p_exponent > 6)
    return "p_exponent 6: with 8, probabilities saturate where a score function hides keys by large numbers";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of the Q tile and the K/V ring exceeds the device's limit per CTA";
  // 1 KB of each CTA's shared memory is the system's.
  if (c.ctas_per_sm * (smem_bytes(c, t) + 1024) > limits.shared_bytes_per_multiprocessor)
    return "ctas_per_sm CTAs do not fit the shared memory of one SM";
  // Registers are given out in pieces of 8 per thread.
  const int register_limit = limits.registers_per_multiprocessor / (threads_per_block(c) * c.ctas_per_sm) / 8 * 8;
  if (registers_needed(c, t, limits.arch) > (register_limit > 255 ? 255 : register_limit))
    return "accumulators and Q fragments do not fit the registers that ctas_per_sm leaves a thread";
  return nullptr;
}

}  // namespace flashcore::sm89_fp8_fwd
