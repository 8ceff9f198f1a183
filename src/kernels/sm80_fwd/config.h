#pragma once
// Tunables of sm80_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_fwd {

struct Config {
  int block_m = 64;        // query rows of a CTA
  int block_n = 64;        // keys of one step
  int num_warps = 4;       // each owns block_m / num_warps query rows
  int num_stages = 2;      // K/V tiles in shared memory; 1 = K and V take turns
  int smem_layout = 1;     // tile::SharedLayout: 0 padded, 1 exclusive-or swizzle
  int q_in_registers = 0;  // Q fragments are kept instead of read again at every step
  int persistent = 0;      // one wave of CTAs takes the tiles in turn
  int ctas_per_sm = 1;     // asked of the compiler: bounds registers per thread

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("block_m", &Config::block_m, 16, 32, 64, 128);
    visit("block_n", &Config::block_n, 32, 48, 64, 96, 128);
    visit("num_warps", &Config::num_warps, 1, 2, 4, 8);
    visit("num_stages", &Config::num_stages, 1, 2, 3, 4);
    visit("smem_layout", &Config::smem_layout, 0, 1);
    visit("q_in_registers", &Config::q_in_registers, 0, 1);
    visit("persistent", &Config::persistent, 0, 1);
    visit("ctas_per_sm", &Config::ctas_per_sm, 1, 2, 3, 4);
  }
};

// mma.m16n8k16 reads head_dim in steps of 16; the rest is filled with zeros.
constexpr int padded_dim(int head_dim) { return tile::round_up(head_dim, 16); }
constexpr int threads_per_block(const Config& c) { return c.num_warps * 32; }
constexpr int rows_per_warp(const Config& c) { return c.block_m / c.num_warps; }
constexpr tile::SharedLayout layout_of(const Config& c) { return static_cast<tile::SharedLayout>(c.smem_layout); }

// Q is read until the last step and O passes through the same bytes, so they share the larger of the two.
constexpr int qo_bytes(const Config& c, const Traits& t) {
  const int q = c.block_m * tile::row_pitch_bytes(padded_dim(t.head_dim), layout_of(c));
  const int o = c.block_m * tile::row_pitch_bytes(padded_dim(t.head_dim_v), layout_of(c));
  return q > o ? q : o;
}
constexpr int k_tile_bytes(const Config& c, const Traits& t) {
  return c.block_n * tile::row_pitch_bytes(padded_dim(t.head_dim), layout_of(c));
}
constexpr int v_tile_bytes(const Config& c, const Traits& t) {
  return c.block_n * tile::row_pitch_bytes(padded_dim(t.head_dim_v), layout_of(c));
}
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return qo_bytes(c, t) + c.num_stages * (k_tile_bytes(c, t) + v_tile_bytes(c, t));
}

// Every thread copies one chunk column, or copies from all over the tile.
constexpr bool copies_are_regular(const Config& c, int head_dim) {
  return threads_per_block(c) % (padded_dim(head_dim) / 8) == 0;
}

// Registers a thread cannot do without: accumulators of O and S, Q, fragments in flight, addresses. The constants are
// the smallest that accept no spilling config in a sample of 1,200 over all architectures, head dims and fields
// (tests/kernels/spill_test.cpp draws anew).
constexpr int registers_needed(const Config& c, const Traits& t) {
  const int fragments = rows_per_warp(c) / 16;
  const int acc_o = fragments * padded_dim(t.head_dim_v) / 2;
  const int acc_s = fragments * c.block_n / 2;
  const int q = c.q_in_registers ? fragments * padded_dim(t.head_dim) / 4 : fragments * 4;
  // Beside the widest O ptxas places badly what is kept from step to step (addresses of irregular copies) and from tile
  // to tile: of 39 persistent configs compiled for sm_90 some spilled, and irregular ones that a fuzzer drew. None did
  // up to a head_dim_v of 224.
  const bool is_widest = padded_dim(t.head_dim_v) > 224;
  const bool is_regular = copies_are_regular(c, t.head_dim) && copies_are_regular(c, t.head_dim_v);
  // With one stage K is copied while the scores are still in registers.
  const int copies = (c.num_stages == 1 ? 20 : 0) + (is_regular                             ? 0
                                                     : !is_widest                           ? 8
                                                     : c.num_stages > 1 || c.q_in_registers ? 40
                                                                                            : 24);
  const int tile_loop = !c.persistent ? 0 : is_widest ? 40 : 4;
  // The first block of a row and no last one (a fuzzer drew it).
  const int band = is_widest && t.bounded_left && !t.bounded_right ? 16 : 0;
  // The parameters of the sequence, which functions keep beside those of the batch.
  const int ragged = !t.ragged ? 0 : has_expression(t) ? 24 : 8;
  // Fitted to ten operations, documents, prefixes, boolean tensors and biases. The operands of a score's function and
  // of a mask's are on their way together.
  const int both = t.score_expression && t.mask_expression && c.block_n > 32 ? 40 + fragments * c.block_n / 4 : 0;
  // A mask's function beside softcap or slopes, kept from tile to tile (a fuzzer drew it).
  const int masked_scores = c.persistent && t.mask_expression && transforms_scores(t) ? 16 : 0;
  const int expressions = has_expression(t) ? 16 + fragments * c.block_n / (acc_s > 64 ? 5 : 8) + both : 0;
  // Beside the widest O even a little more is too much (a fuzzer drew a boolean tensor, and a paged cache). Blocks of
  // 32 keys are the least there are: without them there would be no such problems.
  const int wide = is_widest && (t.ragged || has_expression(t)) && c.block_n > 32 ? 8 : 0;
  return acc_o + acc_s + q + copies + tile_loop + band + ragged + expressions + masked_scores + wide + fragments * 10 +
         50;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (t.element == Element::kF32) return "element type fp32 has no tensor-core path here";
  if (c.block_m % (16 * c.num_warps) != 0) return "block_m must be a multiple of 16 rows per warp (16 * num_warps)";
  if (rows_per_warp(c) > 32) return "more than 32 rows per warp: the accumulators exceed the register file";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of the Q tile and the K/V ring exceeds the device's limit per CTA";
  // Of a bias the elements of all keys of a block are on their way together.
  if ((t.score_expression || (t.mask_expression && transforms_scores(t))) && c.block_n > 96)
    return "blocks of more than 96 keys leave too few registers for a score function of the user's own, and for a mask "
           "function beside softcap or ALiBi";
  if (t.ragged && has_expression(t) && c.block_n > 64)
    return "blocks of more than 64 keys leave too few registers for functions of the user's own in a ragged batch";
  // Whatever the block: a fuzzer drew it.
  if (t.ragged && !t.paged && t.bounded_left && t.bounded_right && padded_dim(t.head_dim_v) > 224 && c.num_stages > 1)
    return "more than one stage leaves too few registers for a ragged batch's windows of both sides beside the widest "
           "O";
  // 1 KB of each CTA's shared memory is the system's.
  if (c.ctas_per_sm * (smem_bytes(c, t) + 1024) > limits.shared_bytes_per_multiprocessor)
    return "ctas_per_sm CTAs do not fit the shared memory of one SM";
  // Registers are given out in pieces of 8 per thread.
  const int register_limit = limits.registers_per_multiprocessor / (threads_per_block(c) * c.ctas_per_sm) / 8 * 8;
  if (registers_needed(c, t) > (register_limit > 255 ? 255 : register_limit))
    return "accumulators and Q fragments do not fit the registers that ctas_per_sm leaves a thread";
  return nullptr;
}

}  // namespace flashcore::sm80_fwd
