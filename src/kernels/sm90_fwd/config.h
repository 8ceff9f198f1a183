#pragma once
// Tunables of sm90_fwd, and every constraint on them, stated once: host and kernel both read this file.

#include "kernels/tile/ragged_tiles.h"
#include "kernels/tile/shared_layout.h"
#include "kernels/tile/tile_order.h"
#include "kernels/tile/traits.h"

namespace flashcore::sm90_fwd {

using tile::Scheduler;

struct Config {
  int num_consumers = 2;  // warpgroups that work on 64 query rows each
  int block_n = 128;      // keys of one step
  int num_stages = 2;     // K tiles, and V tiles, in shared memory
  int q_stages = 2;       // Q tiles: 2 loads the next one while this one is worked on
  int ping_pong = 1;      // consumers take turns, so that one's softmax runs under another's multiplies: tile::PingPong
  int rescale_threshold = 8;  // O is rescaled once a probability exceeds 2 to this
  Scheduler scheduler = Scheduler::kFixedStride;
  int cluster = 1;     // CTAs with neighbouring tiles of a head; each loads its share of K and V for all of them
  int key_groups = 1;  // consumers that share their rows, each with its part of the keys

  template <class Visit>
  static constexpr void fields(Visit&& visit) {
    visit("num_consumers", &Config::num_consumers, 1, 2, 3, 4);
    visit("block_n", &Config::block_n, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192);
    visit("num_stages", &Config::num_stages, 2, 3, 4);
    visit("q_stages", &Config::q_stages, 1, 2);
    visit("ping_pong", &Config::ping_pong, 0, 1, 2, 3, 4);
    visit("rescale_threshold", &Config::rescale_threshold, 0, 4, 8, 12);
    visit("scheduler", &Config::scheduler, Scheduler::kOneTile, Scheduler::kFixedStride, Scheduler::kCounter);
    visit("cluster", &Config::cluster, 1, 2);
    visit("key_groups", &Config::key_groups, 1, 2);
  }
};

constexpr int kRowsPerConsumer = 64;
constexpr int kRowsPerStore = 16;  // of O: a warp's, so that it leaves without waiting for the warpgroup
using tile::padded_dim;

constexpr int group_stages(const Config& c) { return c.num_stages / c.key_groups; }  // each key group has its own ring
constexpr int row_groups(const Config& c) { return c.num_consumers / c.key_groups; }
constexpr int block_m(const Config& c) { return row_groups(c) * kRowsPerConsumer; }
constexpr int cluster_m(const Config& c) { return c.cluster * block_m(c); }  // query rows of a cluster
constexpr int threads_per_block(const Config& c) { return (c.num_consumers + 1) * 128; }

// One consumer's Q rows; its O rows leave through the same bytes.
constexpr int qo_slab_bytes(const Traits& t) {
  return tile::tma_tile_bytes(kRowsPerConsumer, t.head_dim > t.head_dim_v ? t.head_dim : t.head_dim_v);
}
constexpr int k_tile_bytes(const Config& c, const Traits& t) { return tile::tma_tile_bytes(c.block_n, t.head_dim); }
constexpr int v_tile_bytes(const Config& c, const Traits& t) { return tile::tma_tile_bytes(c.block_n, t.head_dim_v); }

constexpr int kTileSlots = 2;  // tile numbers on their way from the producer to the consumers; of ragged batches tiles
constexpr int tile_slot_bytes(const Traits& t) { return t.ragged ? tile::kRaggedSlotBytes : 8; }
constexpr int ragged_table_bytes(const Traits& t) { return t.ragged ? tile::kRaggedTableBytes : 0; }
constexpr int barrier_bytes(const Config& c, const Traits& t) {
  return 8 * (2 * row_groups(c) * c.q_stages + 4 * c.num_stages + 2 * kTileSlots) + tile_slot_bytes(t) * kTileSlots;
}
// What the warps of the other key groups hand to those of the first.
constexpr int part_bytes(const Traits& t) { return tile::partial_bytes(padded_dim(t.head_dim_v) / 8); }
constexpr int parts_bytes(const Config& c, const Traits& t) {
  return (c.key_groups - 1) * row_groups(c) * 4 * part_bytes(t);
}
constexpr int tail_bytes(const Config& c, const Traits& t) {
  return parts_bytes(c, t) + ragged_table_bytes(t) + barrier_bytes(c, t);
}
constexpr int smem_bytes(const Config& c, const Traits& t) {
  return c.q_stages * row_groups(c) * qo_slab_bytes(t) + c.num_stages * (k_tile_bytes(c, t) + v_tile_bytes(c, t)) +
         tile::round_up(tail_bytes(c, t), 1024);
}

// setmaxnreg: the producer gives registers up, the consumers take them. The sum over warpgroups must not exceed what
// the kernel was launched with (65,536 registers over its threads, rounded down to 8), or the kernel hangs.
constexpr int producer_registers(const Config& c) { return c.num_consumers == 1 ? 56 : c.num_consumers == 2 ? 40 : 32; }
constexpr int consumer_registers(const Config& c) {
  return c.num_consumers == 1 ? 248 : c.num_consumers == 2 ? 232 : c.num_consumers == 3 ? 160 : 112;
}

// What a function of the user's own takes: fitted to ten operations, documents, prefixes, boolean tensors and biases,
// whose elements are on their way for many keys at once.
constexpr int registers_of_expressions(const Config& c, const Traits& t) {
  return has_expression(t) ? (c.num_consumers > 2 ? 16 : 8) + c.block_n / 8 : 0;
}

// Accumulators of O and S, P as 16-bit operands, row state and addresses: fitted to what ptxas needs without spilling.
constexpr int registers_needed(const Config& c, const Traits& t) {
  return registers_of_expressions(c, t) + padded_dim(t.head_dim_v) / 2 + c.block_n / 2 + c.block_n / 4 +
         padded_dim(t.head_dim_v) / 64 + (c.num_consumers == 1 ? 33 : 31);
}

// Past 192 columns ptxas takes a sixth less of the compile time at level 1, for 0.3% of the speed. Below, where the
// exponentials weigh more, its schedule costs 2-10%.
constexpr int ptxas_level(const Traits& t) {
  return padded_dim(t.head_dim > t.head_dim_v ? t.head_dim : t.head_dim_v) > 192 ? 1 : 3;
}

// The reason in words, or null. What this accepts compiles without spills, fits and is correct.
constexpr const char* why_invalid(const Config& c, const Traits& t, const Limits& limits) {
  if (limits.arch != 90) return "wgmma and setmaxnreg exist on compute capability 9.0 only";
  if (t.element == Element::kF32) return "fp16 and bf16 only";
  if (c.num_consumers % c.key_groups != 0) return "key_groups must share the consumers evenly";
  if (c.num_stages % c.key_groups != 0) return "key_groups must share the stages evenly";
  if (c.key_groups > 1 && c.cluster > 1) return "a cluster's consumers do not split keys";
  if (c.num_consumers == 1 && c.ping_pong) return "ping_pong needs two consumers";
  if (smem_bytes(c, t) > limits.shared_bytes_per_block)
    return "shared memory of Q, K and V tiles exceeds the device's limit per CTA";
  if (registers_needed(c, t) > consumer_registers(c))
    return "accumulators of O, S and P do not fit a consumer's registers";
  if (c.scheduler == Scheduler::kOneTile && c.q_stages == 2)
    return "a second Q stage is for the next tile, and with one tile per CTA (scheduler=0) there is none";
  if (t.ragged && c.scheduler == Scheduler::kOneTile)
    return "a ragged batch's tiles are counted on the device: only CTAs that go round them (scheduler=1 or 2)";
  if (t.paged && c.cluster > 1) return "a cluster's CTAs do not share the boxes of a paged cache";
  if (t.paged && c.num_consumers > 2 && c.scheduler == Scheduler::kFixedStride && padded_dim(t.head_dim) > 64)
    return "the producer beside three consumers has too few registers for a paged cache of more than 64 "
           "columns without a counter of tiles";
  if (t.paged && t.bounded_left && c.num_consumers > 2)
    return "the producer beside three consumers has too few registers for a paged cache's windows";
  if (t.paged && c.key_groups > 1 && c.num_consumers > 2)
    return "the producer beside four consumers has too few registers for key groups of a paged cache";
  if (t.ragged && c.cluster > 1 && c.num_consumers > 2)
    return "the producer beside three consumers has too few registers for a cluster's tiles of a ragged batch";
  if (t.ragged && c.key_groups > 1 && c.num_consumers > 2 &&
      (t.bounded_left || (t.bounded_right && c.scheduler == Scheduler::kCounter && c.block_n > 48)))
    return "the producer beside four consumers has too few registers for key groups in a ragged batch with a "
           "window, or with a mask, a counter of tiles and blocks of more than 48 keys";
  if (t.ragged && c.key_groups > 1 && has_score(t))
    return "key groups have too few registers for functions of scores and sinks in a ragged batch";
  if (has_expression(t) && c.block_n > 128)
    return "blocks of more than 128 keys leave too few registers for functions of the user's own";
  if (t.ragged && has_expression(t) && (c.num_consumers > 2 || c.block_n > 80))
    return "three consumers, and blocks of more than 80 keys, leave too few registers for functions of the user's own "
           "in a ragged batch";
  if (t.mask_expression && (c.num_consumers > 3 || (c.num_consumers == 3 && c.num_stages > 2)))
    return "the producer beside three consumers has too few registers for a mask function's lists and more than two "
           "stages, beside four for any";
  if (t.mask_expression && c.num_consumers == 3 && c.q_stages == 2 && c.scheduler == Scheduler::kCounter)
    return "the producer beside three consumers has too few registers for a mask function's lists, a second Q stage "
           "and a counter of tiles";
  if (t.mask_expression && c.num_consumers == 2 && c.block_n > 112 && (t.bounded_left || c.num_stages > 2))
    return "blocks of more than 112 keys leave too few registers for a mask function beside a window, or with more "
           "than "
           "two stages";
  if (t.mask_expression && (c.cluster > 1 || c.key_groups > 1))
    return "a mask function's lists of blocks are of tiles that neither a cluster nor key groups share";
  if (c.cluster > 1 && c.scheduler == Scheduler::kCounter)
    return "a cluster takes its tiles in turn: its producers do not share a counter";
  return nullptr;
}

}  // namespace flashcore::sm90_fwd
