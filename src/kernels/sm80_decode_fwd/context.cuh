#pragma once
// What loading and computing share in sm80_decode_fwd: the layout of shared memory, the steps and runs that lie there,
// and which rows and keys a warp has.

#include "kernels/sm80_decode_fwd/deal.cuh"
#include "kernels/sm80_decode_fwd/quantised.cuh"
#include "kernels/tile/expressed.cuh"
#include "kernels/tile/shared_tile.cuh"
#include "kernels/tile/timeline.cuh"

namespace flashcore::sm80_decode_fwd {

template <Traits T, Config C>
struct SharedStorage {
  unsigned char stages[C.num_stages][stage_bytes(C, T)];
  unsigned char steps[step_slots(C)][kStepBytes];
  unsigned char runs[step_slots(C)][kRunBytes];
  unsigned char flags[kFlagBytes];  // whether lengths are bad, whether this CTA merges
  unsigned char table[table_bytes(T)];
  unsigned char pages[pages_bytes(C, T)];
  unsigned char own_q[own_q_bytes(C, T)];
};

FC_DEVICE int int_of_bits(unsigned bits) { return static_cast<int>(bits); }

template <Traits T, Config C>
struct Context : tile::KernelExpressions<has_expression(T)>, tile::Marks {
  using Activity = tile::Activity;
  using Storage = SharedStorage<T, C>;
  static constexpr int kDim = padded_dim(T, T.head_dim);
  static constexpr int kDimV = padded_dim(T, T.head_dim_v);
  static constexpr int kThreads = threads_per_block(C);
  static constexpr int kKeys = keys_per_warp(C);
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kStages = C.num_stages;
  static constexpr int kLookUps = (C.block_n + kThreads - 1) / kThreads;
  static constexpr int kWords = keys_first(C) ? 2 : 4;  // of a lane in eight keys, or columns of O, or 16 of Q
  static constexpr int kSlots = step_slots(C);
  // In the place of an offset in units of 16 bytes, which are less: of keys of a page that does not exist, and of keys
  // that nobody sees.
  static constexpr unsigned kMissing = 0xfffffffeu, kUnseen = 0xffffffffu;
  static constexpr unsigned kNan = marks_missing(T) ? 0u : has_quantised_cache(T) ? 0x7f7f7f7fu : 0x7fff7fffu;
  using TileQ = QueryTile<T, kDim>;
  using TileK = CacheTile<T, kDim>;
  using TileV = CacheTile<T, kDimV>;
  using Scores = float[kKeyTiles][kWords];
  static_assert(sizeof(Storage) == smem_bytes(C, T));

  const Params& params;
  const ScoreParams* score_params;
  const PagedParams* paged;
  const Factored<T>* descales;  // null where the traits have no such thing
  const Dealer<T, C> dealer;
  const int lane, row_warp, key_warp;

  FC_DEVICE Context(const Params& p, const ScoreParams* of_scores, const RaggedParams* of_lengths,
                    const PagedParams* of_pages, const Factored<T>* of_cache, const ExpressionParams* of_expressions)
      : tile::KernelExpressions<has_expression(T)>(of_expressions),
        params(p),
        score_params(of_scores),
        paged(of_pages),
        descales(of_cache),
        dealer{p, of_lengths, of_pages, address_table(), address_flags()},
        lane(ptx::tid_x() % 32),
        row_warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) / C.key_warps),
        key_warp(ptx::shfl_idx(ptx::tid_x() / 32, 0) % C.key_warps) {}

  FC_DEVICE const ForwardParams& problem() const { return params.problem; }

  // --- shared memory ----------------------------------------------------------------------------------------------
  FC_DEVICE static ptx::SharedAddress address_q(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, stages) +
           static_cast<unsigned>(number) % kStages * stage_bytes(C, T);
  }
  FC_DEVICE static ptx::SharedAddress address_k(int number) { return address_q(number) + q_bytes(C, T); }
  FC_DEVICE static ptx::SharedAddress address_v(int number) { return address_k(number) + k_bytes(C, T); }
  FC_DEVICE static ptx::SharedAddress address_step(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, steps) + (number & (kSlots - 1)) * kStepBytes;
  }
  FC_DEVICE static ptx::SharedAddress address_run(int slot) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, runs) + slot * kRunBytes;
  }
  FC_DEVICE static ptx::SharedAddress address_next_unit(int slot) { return address_run(slot) + 60; }
  FC_DEVICE static ptx::SharedAddress address_flags() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, flags); }
  FC_DEVICE static ptx::SharedAddress address_table() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, table); }
  FC_DEVICE static ptx::SharedAddress address_own_q() { return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, own_q); }
  FC_DEVICE static ptx::SharedAddress address_missing(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, pages) + places_bytes(C) +
           static_cast<unsigned>(number) % kStages * (4 * C.block_n);
  }
  // Of the keys of a block, and behind them of its values.
  FC_DEVICE static ptx::SharedAddress address_factors(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, pages) + factors_offset(C, T) +
           static_cast<unsigned>(number) % kStages * (8 * C.block_n);
  }
  // Where the keys of a block lie in K and in V.
  FC_DEVICE static ptx::SharedAddress address_units(int number) {
    return ptx::dynamic_shared() + FC_OFFSET_OF(Storage, pages) + (number & 1) * (8 * C.block_n);
  }

  // --- what to do -------------------------------------------------------------------------------------------------
  template <class... Words>
  FC_DEVICE static void store_words(ptx::SharedAddress at, Words... words) {
    ptx::st_shared_v4(at, ptx::float_of_bits(words)...);
  }
  FC_DEVICE static void write_step(int number, const Step& step) {
    store_words(address_step(number), step.block, step.flags, step.run, step.run_end);
  }
  FC_DEVICE static void write_run(int slot, const Run& run) {
    const ptx::SharedAddress at = address_run(slot);
    store_words(at, run.k_units, run.v_units, run.keys_begin, run.keys_end);
    store_words(at + 16, run.batch, run.head_kv, run.first_row, run.len_kv);
    store_words(at + 32, run.first_q, run.len_q, run.whole_begin, run.whole_end);
    store_words(at + 48, run.begin, run.end, run.unit, run.next_unit);
    store_words(at + 64, run.tile_unit, run.tile_units, 0, 0);
  }
  FC_DEVICE static Step read_step(int number) {
    const ptx::Vector4 a = ptx::ld_shared_v4(address_step(number));
    return {int_of_bits(a.x), int_of_bits(a.y), int_of_bits(a.z), int_of_bits(a.w)};
  }
  FC_DEVICE static Run read_run(const Step& step) {
    const ptx::SharedAddress at = address_run(step.run);
    const ptx::Vector4 a = ptx::ld_shared_v4(at), b = ptx::ld_shared_v4(at + 16), c = ptx::ld_shared_v4(at + 32),
                       d = ptx::ld_shared_v4(at + 48), e = ptx::ld_shared_v4(at + 64);
    return {a.x,
            a.y,
            int_of_bits(a.z),
            int_of_bits(a.w),
            int_of_bits(b.x),
            int_of_bits(b.y),
            int_of_bits(b.z),
            int_of_bits(b.w),
            int_of_bits(c.x),
            int_of_bits(c.y),
            int_of_bits(c.z),
            int_of_bits(c.w),
            int_of_bits(d.x),
            int_of_bits(d.y),
            int_of_bits(d.z),
            int_of_bits(d.w),
            int_of_bits(e.x),
            int_of_bits(e.y)};
  }

  // --- a lane's rows and keys -------------------------------------------------------------------------------------
  // Among all rows of the sequence and key head.
  FC_DEVICE int own_row(const Run& run, int r) const {
    if constexpr (keys_first(C)) return run.first_row + tile::column_of_lane(lane) + r;
    return run.first_row + 16 * row_warp + tile::row_of_lane(lane, r);
  }
  FC_DEVICE ptx::SharedAddress own_q_rows(ptx::SharedAddress tile) const {
    return tile + 16 * row_warp * TileQ::kPitch;
  }
  // The lane's first key in its warp's part of a block.
  FC_DEVICE int own_key() const { return keys_first(C) ? lane / 4 : tile::column_of_lane(lane); }
  // Of the lane's first key in a block.
  FC_DEVICE ptx::SharedAddress own_factors(int number) const {
    return address_factors(number) + 4 * (key_warp * kKeys + own_key());
  }
  // Where rows begin at multiples of their pitch, a power of two, one exclusive or is all of lane.at().
  template <class Tile>
  FC_DEVICE static unsigned fragment(const typename Tile::Lane& lane, int n, int d) {
    constexpr int kPitch = Tile::kPitch;
    constexpr bool kAligned = (kPitch & (kPitch - 1)) == 0 && kPitch <= 1024 && stage_bytes(C, T) % kPitch == 0 &&
                              q_bytes(C, T) % kPitch == 0 && k_bytes(C, T) % kPitch == 0;
    if constexpr (kAligned) return ((lane.row_address + lane.chunk_address) ^ (32 * d)) + n * (16 * kPitch);
    else return lane.at(n, d);
  }
};

}  // namespace flashcore::sm80_decode_fwd
