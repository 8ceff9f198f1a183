#pragma once
// Tunables of sm90_fp8_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/byte_layout.h"
#include "kernels/tile/ragged_tiles.h"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_fp8_fwd {

using tile::Scheduler;

// Scores of the next block and P·V of the last one: what of them is in flight together.
enum class Overlap : int {
  kNone,         // P·V first; its sums and the scores share registers
  kScoresFirst,  // both; P·V runs under the wait for the scores
  kValuesFirst,  // both; sums are added while the scores are computed
};

struct Config {
  int num_consumers = 2;  // warpgroups that work on 64 query rows each
  int block_n = 128;      // keys of one step
  int num_stages = 2;     // K tiles, and transposed V tiles, in shared memory
  int v_stages = 2;       // parts of V that wait for their transposition (v_parts); 0: V lies transposed in memory
  int q_stages = 1;       // Q tiles: 2 loads the next one while this one is worked on
  int ping_pong = 1;      // consumers take turns, so that one's softmax runs under another's multiplies: tile::PingPong
  Overlap overlap = Overlap::kNone;
  int promote_every = 1;  // blocks of keys until the tensor cores' sums are added to those in fp32; 0: never
  int pv_columns = 128;   // of O that one such sum is of, at most
  int p_exponent = 6;     // log2 of the probability that the first maximum becomes
  Scheduler scheduler = Scheduler::kFixedStride;

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("num_consumers", &Config::num_consumers, 1, 2, 3, 4);
    visit("block_n", &Config::block_n, 32, 64, 96, 128);
    visit("num_stages", &Config::num_stages, 2, 3, 4);
    visit("v_stages", &Config::v_stages, 0, 1, 2);
    visit("q_stages", &Config::q_stages, 1, 2);
    visit("ping_pong", &Config::ping_pong, 0, 1, 2, 3, 4);
    visit("overlap", &Config::overlap, Overlap::kNone, Overlap::kScoresFirst, Overlap::kValuesFirst);
    visit("promote_every", &Config::promote_every, 0, 1, 2, 4, 8);
    visit("pv_columns", &Config::pv_columns, 64, 96, 128, 256);
    visit("p_exponent", &Config::p_exponent, 6, 8);
    visit("scheduler", &Config::scheduler, Scheduler::kOneTile, Scheduler::kFixedStride, Scheduler::kCounter);
  }
};

// Of VLayout::kDn, and of no other problem (family.cpp).
constexpr bool takes_transposed_v(const Config& c) { return c.v_stages == 0; }

constexpr int kRowsPerConsumer = 64;
constexpr int kRowsPerStore = 16;  // of O: a warp's, so that it leaves without waiting for the warpgroup
constexpr int block_m(const Config& c) { return c.num_consumers * kRowsPerConsumer; }
constexpr int threads_per_block(const Config& c) { return (c.num_consumers + 1) * 128; }

// wgmma multiplies 32 columns of Q and K at a time, and 16 columns of O.
constexpr int padded_k(int head_dim) { return tile::round_up(head_dim, 32); }
using tile::padded_dim;

// Of the tiles, in bytes. Q's lines are O's, so that O may leave through the rows that its own warp has read.
constexpr int kWidthQ = 128;
constexpr int width_of(int head_dim) { return head_dim <= 64 ? 64 : 128; }
// Lines of V's transposed tile hold keys: no key too many.
constexpr int width_of_keys(int block_n) { return block_n % 128 == 0 ? 128 : block_n % 64 == 0 ? 64 : 32; }

// One consumer's Q rows; its O rows leave through the same bytes.
constexpr int qo_slab_bytes(const Traits& t) {
  return tile::max_int(tile::byte_tile_bytes(kRowsPerConsumer, t.head_dim, kWidthQ),
                       tile::tma_tile_bytes(kRowsPerConsumer, t.head_dim_v));
}
constexpr int k_tile_bytes(const Config& c, const Traits& t) {
  return tile::byte_tile_bytes(c.block_n, t.head_dim, width_of(t.head_dim));
}
// V waits for its transposition in parts of as many columns as a line holds: of 256 columns, one half arrives while the
// other is transposed.
constexpr int v_parts(const Traits& t) { return (t.head_dim_v + width_of(t.head_dim_v) - 1) / width_of(t.head_dim_v); }
// No array is empty: eight bytes beside the barriers where V lies transposed.
constexpr int v_slots(const Config& c) { return tile::max_int(c.v_stages, 1); }
constexpr int v_part_bytes(const Config& c, const Traits& t) {
  return takes_transposed_v(c) ? 8 : c.block_n * width_of(t.head_dim_v);
}
constexpr int vt_tile_bytes(const Config& c, const Traits& t) {
  return tile::round_up(tile::byte_tile_bytes(padded_dim(t.head_dim_v), c.block_n, width_of_keys(c.block_n)), 1024);
}

constexpr int kTransposers = 3;  // warps that transpose V; the fourth of their warpgroup loads
constexpr int kTileSlots = 2;    // tile numbers on their way from the producer to the others; of ragged batches tiles
constexpr int tile_slot_bytes(const Traits& t) { return t.ragged ? tile::kRaggedSlotBytes : 8; }
constexpr int ragged_table_bytes(const Traits& t) { return t.ragged ? tile::kRaggedTableBytes : 0; }
constexpr int barrier_bytes(const Config& c, const Traits& t) {
  return 8 * (2 * c.num_consumers * c.q_stages + 4 * c.num_stages + 2 * v_slots(c) + 2 * kTileSlots) +
         tile_slot_bytes(t) * kTileSlots;
}
// The table of a ragged batch's tiles, and what fills up.
constexpr int tail_bytes(const Config& c, const Traits& t) {
  const int others = barrier_bytes(c, t) + (takes_transposed_v(c) ? v_slots(c) * v_part_bytes(c, t) : 0);
  return tile::round_up(others + ragged_table_bytes(t), 1024) - others;
}
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return c.q_stages * c.num_consumers * qo_slab_bytes(t) + c.num_stages * (k_tile_bytes(c, t) + vt_tile_bytes(c, t)) +
         v_slots(c) * v_part_bytes(c, t) + barrier_bytes(c, t) + tail_bytes(c, t);
}

// setmaxnreg: the producer gives registers up, the consumers take them. The sum over warpgroups must not exceed what
// the kernel was launched with (65,536 registers over its threads, rounded down to 8), or the kernel hangs.
constexpr int producer_registers(const Config& c) { return c.num_consumers == 1 ? 56 : c.num_consumers == 2 ? 40 : 32; }
constexpr int consumer_registers(const Config& c) {
  return c.num_consumers == 1 ? 248 : c.num_consumers == 2 ? 232 : c.num_consumers == 3 ? 160 : 112;
}

// Columns of O whose sum one P·V computes.
constexpr int pv_columns(const Config& c, const Traits& t) {
  return c.promote_every == 0 ? padded_dim(t.head_dim_v) : tile::min_int(c.pv_columns, padded_dim(t.head_dim_v));
}
constexpr int smaller_pv_columns(const Config& c) {
  return c.pv_columns == 256 ? 128 : c.pv_columns == 128 ? 96 : c.pv_columns == 96 ? 64 : 0;
}
constexpr int pv_chunks(const Config& c, const Traits& t) { return padded_dim(t.head_dim_v) / pv_columns(c, t); }
// Accumulators of O, S and sums of P·V, P as 8-bit operands, row state and addresses: fitted to what ptxas needs
// without spilling.
constexpr int registers_for(const Config& c, const Traits& t, int scores_and_sums) {
  const int o = padded_dim(t.head_dim_v) / 2;
  return o + scores_and_sums + c.block_n / 8 + (o > 64 ? 48 : 24);
}
constexpr int sum_registers(const Config& c, const Traits& t, int parts) {
  return c.promote_every == 0 ? 0 : parts * pv_columns(c, t) / 2;
}
// Where the two are not in flight together, scores and sums take the same registers if there are too few.
constexpr bool shares_registers(const Config& c, const Traits& t) {
  return c.overlap == Overlap::kNone && c.promote_every == 1 &&
         registers_for(c, t, c.block_n / 2 + sum_registers(c, t, tile::min_int(pv_chunks(c, t), 2))) >
             consumer_registers(c);
}
// A sum takes as many registers as the scores of a block, and may take theirs: ptxas moves nothing about.
constexpr bool sum_is_like_scores(const Config& c, const Traits& t) {
  return c.overlap == Overlap::kNone && c.promote_every == 1 && pv_columns(c, t) == c.block_n;
}
// Chunks in flight together: all while scores are computed as well. In the registers of the scores two only if they
// fill them; else ptxas moves accumulators about, and serialises wgmma (C7511).
constexpr int pv_parts(const Config& c, const Traits& t) {
  if (c.overlap != Overlap::kNone) return pv_chunks(c, t);
  if (shares_registers(c, t) && 2 * pv_columns(c, t) != c.block_n) return 1;
  return tile::min_int(pv_chunks(c, t), 2);
}
constexpr bool has_both_functions(const Traits& t) { return t.score_expression && t.mask_expression; }
// The operands of a score's function and of a mask's, elements of tensors among them, are on their way together; those
// of a score's and factors of rows and keys too.
constexpr int registers_of_functions(const Config& c, const Traits& t) {
  const int columns = padded_dim(t.head_dim_v);
  const int mask = t.mask_expression && c.block_n > (columns > 128 ? 32 : 64) ? 24 : 0;
  const int both = !has_both_functions(t) ? 0
                   : c.block_n <= 32      ? 4
                   : columns <= 128       ? (columns > 64 ? 44 : 24)
                   : c.num_consumers == 2 ? 32
                                          : 0;
  const int factors = !t.token_factors || !t.score_expression ? 0 : c.block_n <= 32 ? 36 : t.mask_expression ? 56 : 48;
  return mask + both + factors;
}
constexpr int registers_needed(const Config& c, const Traits& t) {
  const int scores = c.block_n / 2, sums = sum_registers(c, t, pv_parts(c, t));
  // Sums that are added while scores are computed cost ptxas more.
  const int extra = c.overlap == Overlap::kValuesFirst ? 8 : 0;
  const int few = c.num_consumers >= 3 ? 8 : 0;  // of 160 or 112, addresses take a larger part
  // Scales of two rows, and the factors of keys on their way: blocks of 128 keys beside O of 128 columns spilled 16 to
  // 72 bytes, and nothing else in a sample. With largest magnitudes, two more of a row, 8 to 28 without overlap too.
  const int factors = t.token_factors && (t.amax || (c.overlap != Overlap::kNone && c.block_n > 96)) ? 8 : 0;
  // What ragged batches and functions of scores take: of 232 registers 24 bytes spilled with both, where rows and
  // lengths are read for each block, and of 160 wgmma was serialised with either (C7511).
  // And factors of rows beside functions and a wide O: 8 bytes under a causal mask.
  const bool both = t.ragged || (t.token_factors && padded_dim(t.head_dim_v) > 128);
  const int functions = (c.num_consumers >= 3 ? t.ragged || has_score(t) : both && has_score(t)) ? 8 : 0;
  // Largest magnitudes of a ragged batch beside O of more than 128 columns: 4 to 28 bytes spilled.
  const int largest = t.amax && t.ragged && padded_dim(t.head_dim_v) > 128 ? 24 : 0;
  // Of 160 registers such sums of 128 columns spilled 16 bytes, and 8 of a V that lies transposed.
  const int saved =
      c.block_n > 64 && c.num_consumers < 3 && shares_registers(c, t) && sum_is_like_scores(c, t) ? 24 : 0;
  return extra + few + factors + functions + registers_of_functions(c, t) + largest - saved +
         registers_for(c, t, shares_registers(c, t) ? tile::max_int(scores, sums) : scores + sums);
}

// What functions of the user's own do not go with. Fitted to ten operations, documents, prefixes, boolean tensors and
// biases.
constexpr const char* why_no_functions(const Config& c, const Traits& t) {
  const bool is_wide = t.head_dim > 128 || t.head_dim_v > 128;
  if (c.promote_every > 1 || (c.promote_every == 0 && is_wide))
    return "sums that outlive a block leave too few registers for functions of the user's own: promote_every 1, or 0 "
           "up to 128 columns";
  if (c.num_consumers > 2 && (t.mask_expression || t.ragged || t.token_factors || t.amax))
    return "the producer beside three consumers has too few registers for a mask function's lists, and for a score "
           "function beside ragged batches, factors of rows or largest magnitudes";
  if (c.block_n > 64 && (has_both_functions(t) || t.token_factors))
    return "blocks of more than 64 keys leave too few registers for a score function beside a mask function, and for "
           "functions beside factors of rows";
  // A boolean tensor of two indices spilled 20 bytes of one consumer with sums in flight, 8 beside O of 128 columns.
  const bool has_room = c.overlap == Overlap::kNone && padded_dim(t.head_dim_v) <= 64;
  if (c.block_n > (has_room ? 96 : 64) && t.mask_expression)
    return "blocks of more than 64 keys, or 96 beside up to 64 columns without overlap, leave too few registers for a "
           "mask function";
  if (c.block_n > 64 && (c.num_consumers > 2 || is_wide))
    return "blocks of more than 64 keys leave three consumers, and those of more than 128 columns, too few registers "
           "for functions of the user's own";
  if (t.mask_expression && c.num_stages > 2 && is_wide)
    return "more than two stages leave the producer too few registers for a mask function's lists beside more than 128 "
           "columns";
  // Beyond scores of 2^27 their exponents' steps are 16, to which 2^8 of probabilities is rounded up, and 6 down to 0.
  if (t.score_expression && c.p_exponent > 6)
    return "p_exponent 6: with 8, probabilities saturate where a score function hides keys by large numbers";
  return nullptr;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct; of functions of
// the user's own family.cpp knows more, and a few spill.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (limits.arch != 90) return "wgmma and setmaxnreg exist on compute capability 9.0 only";
  if (!is_8bit(t.element)) return "e4m3 and e5m2 only";
  if (c.num_consumers == 1 && c.ping_pong) return "ping_pong needs two consumers";
  if (c.promote_every == 0 && c.pv_columns != 256) return "without promotion P·V is of all columns: pv_columns 256";
  if (c.promote_every > 0 && smaller_pv_columns(c) >= padded_dim(t.head_dim_v))
    return "pv_columns: a smaller one does the same";
  if (padded_dim(t.head_dim_v) % pv_columns(c, t) != 0) return "pv_columns must divide the columns of O";
  if (pv_chunks(c, t) > 1 && c.promote_every > 1) return "sums that outlive a block are of all columns";
  if (c.promote_every > 1 && c.overlap == Overlap::kValuesFirst)
    return "sums that outlive a block are not added while scores are computed";
  if (pv_chunks(c, t) > 2 && c.overlap != Overlap::kNone)
    return "P·V of more than two parts is not in flight together with scores";
  if ((t.head_dim > 128 || t.head_dim_v > 128) && c.block_n > 64 && !sum_is_like_scores(c, t))
    return "blocks of more than 64 keys of more than 128 columns spill, or serialise wgmma, but for sums of P·V of "
           "as many registers as the scores: overlap 0, promote_every 1, pv_columns as block_n";
  if (shares_registers(c, t) && sum_registers(c, t, pv_parts(c, t)) > c.block_n / 2)
    return "sums of P·V share the registers of the scores and do not fit them: choose fewer pv_columns";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of Q, K and V tiles exceeds the device's limit per CTA";
  if (registers_needed(c, t) > consumer_registers(c))
    return "accumulators of O, S and P do not fit a consumer's registers";
  // Of 160 registers ptxas serialises wgmma (C7511) in about half of all such configs, by no rule that was found. Two
  // stages of everything were clean in all of 450, but for turns of the softmax and for 64 columns of O beside other
  // ones of Q.
  if (c.num_consumers >= 3 && c.block_n > 64 && shares_registers(c, t) &&
      (padded_dim(t.head_dim_v) > 64 || (padded_dim(t.head_dim_v) == 64 && padded_dim(t.head_dim) != 64) ||
       c.num_stages != 2 || c.v_stages != 2 || c.q_stages != 2 || c.ping_pong == 4 || t.bounded_left || t.ragged ||
       has_score(t) || t.token_factors || t.amax))
    return "three consumers whose sums of P·V share the registers of more than 64 keys' scores serialise wgmma "
           "(C7511), "
           "but for two stages of Q, K and V of 64 columns with other turns than of the softmax, without windows, "
           "ragged batches, functions of scores, "
           "factors of rows and largest magnitudes";
  if (t.ragged && c.scheduler == Scheduler::kOneTile)
    return "a ragged batch's tiles are counted on the device: only CTAs that go round them (scheduler=1 or 2)";
  if (t.paged && c.num_consumers > 2)
    return "the producer beside three consumers has too few registers for a paged cache";
  if (has_expression(t)) {
    if (const char* reason = why_no_functions(c, t)) return reason;
  }
  if (c.scheduler == Scheduler::kOneTile && c.q_stages == 2)
    return "a second Q stage is for the next tile, and with one tile per CTA (scheduler=0) there is none";
  return nullptr;
}

}  // namespace flashcore::sm90_fp8_fwd
