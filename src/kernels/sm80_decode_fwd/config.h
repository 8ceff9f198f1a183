#pragma once
// Tunables of sm80_decode_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/shared_layout.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm80_decode_fwd {

struct Config {
  int warp_rows = 16;   // query rows of a warp; 8: keys are the rows of multiplications (keys_first.cuh)
  int row_warps = 1;    // that read the same keys, each for its query rows
  int key_warps = 4;    // warps that share their rows, each with its part of a block's keys
  int block_n = 64;     // keys of one step
  int num_stages = 3;   // blocks of K and V in shared memory
  int ctas_per_sm = 2;  // the grid is as many; asked of the compiler too: bounds registers per thread
  int min_blocks = 4;   // that a CTA gets at the least, while there are CTAs without any
  int split_keys = 0;   // a part has so many keys wherever it is computed; 0: CTAs get equally many blocks

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("warp_rows", &Config::warp_rows, 8, 16);
    visit("row_warps", &Config::row_warps, 1, 2, 4);
    visit("key_warps", &Config::key_warps, 1, 2, 4, 8);
    visit("block_n", &Config::block_n, 16, 32, 64, 128);
    visit("num_stages", &Config::num_stages, 2, 3, 4, 6, 8);
    visit("ctas_per_sm", &Config::ctas_per_sm, 1, 2, 3, 4);
    visit("min_blocks", &Config::min_blocks, 1, 2, 4, 8, 16);
    visit("split_keys", &Config::split_keys, 0, 128, 256, 512, 1024, 2048);
  }
};

constexpr int kMaxHeadDim = 256;

// q of 8 bits has k and v of its own type, which are a quantised cache here. The kernel has its traits so, and what the
// host asks of a config with the problem's traits makes them so.
constexpr Traits with_cache_of_q(Traits t) {
  if (is_8bit(t.element)) t.cache = t.element == Element::kE4M3 ? CacheElement::kE4M3 : CacheElement::kE5M2;
  return t;
}
constexpr bool has_8bit_q(const Traits& t) { return is_8bit(t.element); }

constexpr int chunk_columns(const Traits& t) { return 128 / cache_bits(t); }
// mma.m16n8k16 reads head_dim in steps of 16, of a quantised cache in pairs of them, or of int4 in fours: ldmatrix
// brings 32 bytes of a row. The rest is filled with zeros.
constexpr int code_steps(const Traits& t) { return 16 / cache_bits(t); }
constexpr int padded_dim(const Traits& t, int head_dim) { return tile::round_up(head_dim, 16 * code_steps(t)); }
constexpr int threads_per_block(const Config& c) { return c.row_warps * c.key_warps * 32; }
constexpr int tile_rows(const Config& c) { return c.warp_rows * c.row_warps; }
constexpr bool keys_first(const Config& c) { return c.warp_rows == 8; }
constexpr int keys_per_warp(const Config& c) { return c.block_n / c.key_warps; }
// What is dealt out: one block, or the blocks of a part.
constexpr int unit_blocks(const Config& c) { return c.split_keys == 0 ? 1 : c.split_keys / c.block_n; }

constexpr int q_bits(const Traits& t) { return has_8bit_q(t) ? 8 : 16; }
constexpr int q_bytes(const Config& c, const Traits& t) {
  return tile_rows(c) * padded_dim(t, t.head_dim) * q_bits(t) / 8;
}
// Q's fragments stay in registers through a tile. Wide ones are read from shared memory at every block.
constexpr bool keeps_q(const Traits& t) { return t.head_dim <= 128; }
// What tensor cores multiply. Codes of a quantised cache are exact in fp16, and become that by the fewest instructions:
// of two e4m3 it is one conversion, and bf16 takes four more. Rows of a bf16 Q are scaled into its range once, in
// registers; Q of 8 bits is exact in it.
constexpr Element operand_element(const Traits& t) {
  return has_quantised_cache(t) && (keeps_q(t) || has_8bit_q(t)) ? Element::kF16 : t.element;
}
constexpr bool scales_q(const Traits& t) { return !has_8bit_q(t) && operand_element(t) != t.element; }
// Fragments of Q at a time.
constexpr int q_steps(const Traits& t) { return keeps_q(t) ? padded_dim(t, t.head_dim) / 16 : code_steps(t); }
constexpr int own_q_bytes(const Config& c, const Traits& t) { return keeps_q(t) ? 16 : q_bytes(c, t); }
constexpr int k_bytes(const Config& c, const Traits& t) {
  return c.block_n * padded_dim(t, t.head_dim) * cache_bits(t) / 8;
}
constexpr int v_bytes(const Config& c, const Traits& t) {
  return c.block_n * padded_dim(t, t.head_dim_v) * cache_bits(t) / 8;
}

// O's columns in chunks of 8, all of them and those that one of the key warps merges.
constexpr int all_chunks(const Traits& t) { return padded_dim(t, t.head_dim_v) / 8; }
constexpr int warp_chunks(const Config& c, const Traits& t) { return (all_chunks(t) + c.key_warps - 1) / c.key_warps; }
// Through which the key warps of some rows merge: a slot for each of the others. Of eight rows two chunks are handed
// over as one.
constexpr int exchange_chunks(const Config& c, const Traits& t) { return warp_chunks(c, t) / (16 / c.warp_rows); }
constexpr int exchange_bytes(const Config& c, const Traits& t) {
  return c.key_warps * (c.key_warps - 1) * tile::partial_bytes(exchange_chunks(c, t));
}
// A stage: a block of K and V, and Q where a tile begins. Where one ends, its last stage is where warps merge.
constexpr int stage_bytes(const Config& c, const Traits& t) {
  const int operands = q_bytes(c, t) + k_bytes(c, t) + v_bytes(c, t), merge = c.row_warps * exchange_bytes(c, t);
  return operands > merge ? operands : merge;
}
// What a CTA does next, in the order of blocks: from the one that is computed to the one after the next to be loaded.
// Each may begin a run of its own. A power of two, because the number of a slot is what is left of a number of steps.
constexpr int kStepBytes = 16, kRunBytes = 80;
constexpr int step_slots(const Config& c) { return c.num_stages + 2 <= 4 ? 4 : c.num_stages + 2 <= 8 ? 8 : 16; }
constexpr int kEntries = 256;  // of the table of a ragged batch
constexpr int kFlagBytes = 16;
constexpr int table_bytes(const Traits& t) { return t.ragged ? 4 * kEntries : 16; }
// Where keys lie, of two blocks; and of each block in the ring which of its keys are of a page that does not exist,
// which int8 and int4 have no number for.
constexpr int places_bytes(const Config& c) { return 2 * 8 * c.block_n; }
constexpr bool marks_missing(const Traits& t) { return t.paged && (t.cache == CacheElement::kInt8 || has_nibbles(t)); }
// The factors of each block's keys and values, where each key has its own.
constexpr int factors_bytes(const Config& c, const Traits& t) {
  return t.token_factors ? c.num_stages * 8 * c.block_n : 0;
}
constexpr int factors_offset(const Config& c, const Traits& t) {
  return t.paged ? places_bytes(c) + (marks_missing(t) ? 4 * c.block_n * c.num_stages : 0) : 0;
}
constexpr int pages_bytes(const Config& c, const Traits& t) {
  return t.paged || t.token_factors ? factors_offset(c, t) + factors_bytes(c, t) : 16;
}

constexpr int smem_bytes(const Config& c, const Traits& of_problem) {
  const Traits t = with_cache_of_q(of_problem);
  return c.num_stages * stage_bytes(c, t) + step_slots(c) * (kStepBytes + kRunBytes) + kFlagBytes + table_bytes(t) +
         pages_bytes(c, t) + own_q_bytes(c, t);
}

// A part of a tile's keys on its way from one CTA to another: maximum and sum of each row, and O, in fp32.
constexpr int part_bytes(const Config& c, const Traits& t) { return tile_rows(c) * (2 + t.head_dim_v) * 4; }

// What is left to a thread where an SM has 64 K registers, which are given out in pieces of 8.
constexpr int registers_of_thread(const Config& c, int of_multiprocessor = 65536) {
  const int share = of_multiprocessor / (threads_per_block(c) * c.ctas_per_sm) / 8 * 8;
  return share < 255 ? share : 255;
}
// How parts of a tile merge (merge.cuh).
constexpr int kPartsAlone = 52, kPartsOfGroup = 16;
// Parts of a row whose O a lane has on its way to be merged, of four registers each. Nothing of a tile is alive then
// but what loads of the next one need. Fitted to compilations: of more ptxas loads the next while it adds these, and
// spills. Codes leave fewer registers, but where eight rows are columns: of 26 parts 54 of 72 kinds of problems spilled
// 4 to 12 bytes at head dim 128 where a warp has 32 keys, and of 16 beside few warps or more than 128 columns 4 to 56.
constexpr int parts_at_once(const Config& c, const Traits& t) {
  const int count = (registers_of_thread(c) - (keys_first(c) ? 96 : 112)) / 4;
  const bool is_full = t.head_dim_v > 128 || c.key_warps < 4 || has_expression(t);
  const bool has_codes = has_quantised_cache(t) && (!keys_first(c) || has_8bit_q(t));
  const int most = has_codes ? (is_full ? 12 : 16) : is_full ? 16 : 26;
  return count > most ? most : count < 4 ? 4 : count;
}
// Of eight query rows.
constexpr int registers_of_keys_first(const Config& c, const Traits& t) {
  return padded_dim(t, t.head_dim_v) / 4 + keys_per_warp(c) / 4 + 2 * q_steps(t) + (has_quantised_cache(t) ? 70 : 60) +
         (c.key_warps < 4    ? 60
          : c.key_warps == 8 ? 12
                             : 0) +
         (t.bounded_left || t.bounded_right ? 8 : 0);
}
// Registers a thread cannot do without: accumulators of O and S, Q, fragments in flight, addresses. Few key warps have
// more chunks of O each to merge, and few threads more copies each; functions of scores have slopes and bounds. Fitted
// to compilations for sm_80 and sm_90.
constexpr int registers_needed(const Config& c, const Traits& t) {
  if (keys_first(c)) return registers_of_keys_first(c, t);
  const int acc_o = padded_dim(t, t.head_dim_v) / 2;
  const int acc_s = keys_per_warp(c) / 2;
  const int q = 4 * q_steps(t);
  const int rest = c.key_warps == 1 ? (acc_o >= 80 ? 156 : 150) : c.key_warps == 2 ? 125 : 64;
  // Codes and what they become are alive together, and addresses of Q's words; beside a wide O there is room for one
  // row of warps and 16 keys, which then needs no more than 16-bit keys do.
  const bool many = c.row_warps > 1 || keys_per_warp(c) > 16 || c.key_warps < 4;
  const int codes = !has_quantised_cache(t)      ? 0
                    : acc_o >= 96                ? (many ? 64 : 16)
                    : c.key_warps >= 4           ? 40
                    : acc_o >= 80 && !keeps_q(t) ? 32  // 8 bytes of 32 keys of a warp
                    : keys_per_warp(c) > 32      ? 24
                                                 : 0;
  const int functions = !transforms_scores(t) ? 0 : acc_o >= 128 ? 28 : 20;
  // K and V of other widths have addresses of their own.
  const int uneven = acc_o >= 112 && keys_per_warp(c) > 16 && t.head_dim != t.head_dim_v ? 48 : 0;
  // What the user's own functions read, for which beside the widest O there is room. Of 1990 compilations eight spilled
  // with less, seven of them where few warps have many keys or columns, and four that had more keys to a warp than
  // why_invalid allows.
  const bool many_columns = acc_o >= (has_quantised_cache(t) ? 56 : 80);
  const bool few_warps = c.key_warps < 4 && (keys_per_warp(c) > 16 || many_columns);
  // Beside the widest O, keys of another width: 8 bytes of fp16 with three stages and more.
  const int beside_widest = t.head_dim == t.head_dim_v ? 0 : c.num_stages > 2 ? 24 : 16;
  const int expressions = !has_expression(t) ? 0 : acc_o >= 112 ? beside_widest : few_warps ? 48 : 16;
  return acc_o + acc_s + q + rest + functions + expressions + codes + uneven;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& of_problem, const Limits& limits) {
  const Traits t = with_cache_of_q(of_problem);
  if (t.element == Element::kF32) return "no fp32";
  if (keys_first(c) && c.row_warps != 1) return "row_warps is 1 with warp_rows=8";
  if (keys_first(c) && c.split_keys != 0)
    return "split_keys goes with warp_rows=16: its bits are the same whatever the rows of a tile";
  if (keys_first(c) && (all_chunks(t) % (2 * c.key_warps) != 0 || all_chunks(t) % (code_steps(t) * c.key_warps) != 0))
    return "with 8 query rows each key warp merges an even number of eight columns, and of codes whole words";
  if (keys_first(c) && (transforms_scores(t) || has_expression(t) || !keeps_q(t)))
    return "8 query rows have no functions of scores and a head_dim of up to 128";
  if (c.block_n % (16 * c.key_warps) != 0) return "block_n must be a multiple of 16 keys per warp (16 * key_warps)";
  if (c.row_warps * c.key_warps > 16) return "more than 16 warps";
  // Of a bias the elements of all keys of a warp are on their way together.
  if (has_expression(t) && keys_per_warp(c) > 32)
    return "more than 32 keys of a warp leave too few registers for functions of the user's own";
  if (c.split_keys % c.block_n != 0) return "split_keys must be a multiple of block_n";
  if (c.split_keys != 0 && c.min_blocks != 1) return "parts of split_keys keys are dealt out whole: min_blocks is 1";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of the K/V ring exceeds the device's limit per CTA";
  // 1 KB of each CTA's shared memory is the system's.
  if (c.ctas_per_sm * (smem_bytes(c, t) + 1024) > limits.shared_bytes_per_multiprocessor)
    return "ctas_per_sm CTAs do not fit the shared memory of one SM";
  if (registers_needed(c, t) > registers_of_thread(c, limits.registers_per_multiprocessor))
    return "accumulators and Q fragments do not fit the registers that ctas_per_sm leaves a thread";
  return nullptr;
}

}  // namespace flashcore::sm80_decode_fwd
