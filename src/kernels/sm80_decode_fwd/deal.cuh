#pragma once
// How the keys of all sequences are dealt out to CTAs. A tile is some rows of the queries of one sequence and key head.
// The keys that its rows see make units, of a block or of the blocks of a part, and the units of all tiles are numbered
// through: by sequence, key head, rows, keys. Every CTA gets equally many in a row, and finds them by itself from
// lengths that the device alone knows.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/ptx/vote.cuh"
#include "kernels/sm80_decode_fwd/config.h"
#include "kernels/sm80_decode_fwd/params.h"
#include "kernels/tile/extent.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/sequence.cuh"

namespace flashcore::sm80_decode_fwd {

using tile::Extent;

// Units begin_of(c) .. begin_of(c + 1) - 1 for CTA c.
struct Shares {
  int ctas, each, more;  // of `ctas`, the first `more` have one more than `each`

  FC_DEVICE int begin_of(int cta) const { return cta * each + tile::min_int(cta, more); }
  FC_DEVICE int cta_of(int unit) const {
    const int of_more = more * (each + 1);
    return unit < of_more ? unit / (each + 1) : more + (unit - of_more) / tile::max_int(each, 1);
  }
};

// Blocks of one tile that a CTA takes one after another; four words at a time in shared memory.
struct Run {
  unsigned k_units, v_units;  // in units of 16 bytes: where key 0 lies; paged: where the head lies in a page
  int keys_begin, keys_end;   // that some row of the sequence sees
  int batch, head_kv, first_row, len_kv;
  int first_q, len_q;
  int whole_begin, whole_end;  // blocks of which every row of the tile sees every key
  int begin, end;              // its blocks; begin -1: none, the CTA has done all
  int unit, next_unit;         // the unit at its start, and the next run's
  int tile_unit, tile_units;   // the tile's first unit, and how many it has
};

// One of a run's blocks.
struct Step {
  static constexpr int kFirst = 1, kWhole = 2;
  int block;  // -1: none
  int flags;
  int run;      // its slot
  int run_end;  // the run's blocks end before it
};

template <Traits T, Config C>
struct Dealer {
  const Params& params;
  const RaggedParams* ragged;  // null where the traits have no such thing
  const PagedParams* paged;
  const ptx::SharedAddress table;  // for each entry the number of units up to its end
  const ptx::SharedAddress flag;   // whether lengths of some sequence are not possible

  FC_DEVICE const ForwardParams& problem() const { return params.problem; }

  FC_DEVICE tile::Sequence at(int batch) const {
    if constexpr (T.paged) return tile::paged_sequence_at(*ragged, *paged, problem(), batch);
    else if constexpr (T.ragged) return tile::sequence_at(*ragged, problem(), batch);
    else return {0, problem().seqlen_q, 0, problem().seqlen_kv, false, 0};
  }
  FC_DEVICE Extent extent(int len_q, int len_kv) const { return Extent::of<T>(problem(), ragged, len_q, len_kv); }
  // Blocks that some row of the sequence sees; a tile whose rows see none has one all the same.
  FC_DEVICE tile::BlockRange blocks(const tile::Sequence& s) const {
    const Extent own = extent(s.len_q, s.len_kv);
    tile::BlockRange range = tile::Mask<T, Extent>{own}.template blocks<C.block_n>(0, s.len_q - 1);
    if (range.count() <= 0) range.end = range.begin + 1;
    return range;
  }
  FC_DEVICE static int units_of_tile(const tile::BlockRange& range) {
    return (range.count() + unit_blocks(C) - 1) / unit_blocks(C);
  }
  FC_DEVICE int row_tiles(const tile::Sequence& s) const {
    return (s.len_q * params.group_size + tile_rows(C) - 1) / tile_rows(C);
  }
  FC_DEVICE int units_of(const tile::Sequence& s) const {
    if (s.bad || s.len_q == 0) return 0;
    return units_of_tile(blocks(s)) * row_tiles(s) * problem().heads_kv;
  }

  // Up to kEntries sequences an entry is one; of more it is some neighbours, which the search goes through.
  FC_DEVICE int sequences_per_entry() const { return (problem().batch + kEntries - 1) / kEntries; }
  FC_DEVICE ptx::SharedAddress end_at(int entry) const { return table + 4 * entry; }
  // Entries past the last sequence have no units.
  FC_DEVICE int last_entry() const { return tile::min_int(problem().batch, kEntries) - 1; }
  FC_DEVICE int load_end(int entry) const { return static_cast<int>(ptx::ld_shared_u32(end_at(entry))); }

  // By the whole CTA. A barrier has to follow.
  FC_DEVICE void make() const {
    if constexpr (T.ragged) {
      constexpr unsigned kBad = 1u << 31;
      const int each = sequences_per_entry();
      const auto units_of_entry = [&](int entry) {
        int units = 0;
        bool bad = false;
        for (int b = entry * each; b < tile::min_int((entry + 1) * each, problem().batch); ++b) {
          const tile::Sequence s = at(b);
          units += units_of(s), bad |= s.bad;
        }
        return static_cast<unsigned>(units) | (bad ? kBad : 0u);
      };
      // Of a few sequences a warp knows all.
      if (problem().batch <= 32) {
        if (ptx::tid_x() < 32) add_up<1>(kBad, [&](int entry) { return units_of_entry(entry); });
        return;
      }
      for (int entry = ptx::tid_x(); entry < kEntries; entry += threads_per_block(C))
        ptx::st_shared_u32(end_at(entry), units_of_entry(entry));
      ptx::bar_sync();
      if (ptx::tid_x() < 32) add_up<kEntries / 32>(kBad, [&](int entry) { return ptx::ld_shared_u32(end_at(entry)); });
    }
  }
  // Units of entries to ends of entries, by one warp; each lane has neighbours.
  template <int kEach, class UnitsOf>
  FC_DEVICE void add_up(unsigned bad, const UnitsOf& units_of_entry) const {
    const int lane = ptx::tid_x();
    unsigned ends[kEach], all = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const unsigned word = units_of_entry(kEach * lane + i);
      all |= word, sum += static_cast<int>(word & ~bad), ends[i] = static_cast<unsigned>(sum);
    }
    int before = sum;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int below = ptx::shfl_idx(before, tile::max_int(lane - delta, 0));
      before += lane >= delta ? below : 0;
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) ptx::st_shared_u32(end_at(kEach * lane + i), before + ends[i]);
    const bool any_bad = ptx::vote_any((all & bad) != 0);
    if (lane == 0) ptx::st_shared_u32(flag, any_bad);
  }

  FC_DEVICE int total() const {
    if constexpr (T.ragged) return load_end(last_entry());
    else return problem().batch * units_of(at(0));
  }
  FC_DEVICE Shares shares() const {
    const int units = total();
    const int most = tile::max_int(C.split_keys == 0 ? units / C.min_blocks : units, 1);
    const int ctas = tile::min_int(ptx::nctaid_x(), most);
    return {ctas, units / ctas, units % ctas};
  }

  // The run that begins with `unit`, of a CTA whose units end before `end`.
  FC_DEVICE Run find(int unit, int end) const {
    Run run{};
    run.begin = -1;
    if (unit >= end) return run;
    tile::Sequence s;
    int before;  // units of sequences before
    if constexpr (T.ragged) {
      int entry = 0;
      for (int last = last_entry(); entry < last;) {
        const int middle = (entry + last) / 2;
        if (load_end(middle) > unit) last = middle;
        else entry = middle + 1;
      }
      before = entry > 0 ? load_end(entry - 1) : 0;
      const int each = sequences_per_entry();
      run.batch = entry * each;
      const int last = tile::min_int(run.batch + each, problem().batch) - 1;
      for (;; ++run.batch) {
        s = at(run.batch);
        const int units = units_of(s);
        if (unit - before < units || run.batch >= last) break;
        before += units;
      }
    } else {
      s = at(0);
      const int units = units_of(s);
      run.batch = unit / units, before = run.batch * units;
    }
    const tile::BlockRange range = blocks(s);
    run.tile_units = units_of_tile(range);
    // Lengths that somebody writes meanwhile must not divide by zero.
    const int tiles_of_rows = tile::max_int(row_tiles(s), 1);
    const int tile = (unit - before) / run.tile_units;
    run.tile_unit = before + tile * run.tile_units;
    const int head = tiles_of_rows == 1 ? tile : tile / tiles_of_rows;
    run.head_kv = tile::min_int(head, problem().heads_kv - 1);
    run.first_row = (tile - head * tiles_of_rows) * tile_rows(C);
    run.begin = range.begin + (unit - run.tile_unit) * unit_blocks(C);
    const int units = C.split_keys == 0 ? tile::min_int(end, run.tile_unit + run.tile_units) - unit : 1;
    run.end = tile::min_int(run.begin + units * unit_blocks(C), range.end);
    run.unit = unit, run.next_unit = unit + units;
    const Extent own = extent(s.len_q, s.len_kv);
    const tile::Mask<T, Extent> mask{own};
    run.keys_begin = mask.begin_of(0), run.keys_end = mask.end_of(s.len_q - 1);
    run.first_q = s.first_q, run.len_q = s.len_q, run.len_kv = s.len_kv;
    const int first = params.by_group_size.quotient(run.first_row);
    const int last_row = params.by_group_size.quotient(run.first_row + tile_rows(C) - 1);
    run.whole_end = mask.end_of(first) / C.block_n;
    run.whole_begin = (mask.begin_of(tile::min_int(last_row, s.len_q - 1)) + C.block_n - 1) / C.block_n;
    const auto units_at = [&](const Units& stride) {
      return (T.paged ? 0 : run.batch * stride.batch + s.first_kv * stride.row) + run.head_kv * stride.head;
    };
    run.k_units = units_at(params.k_units), run.v_units = units_at(params.v_units);
    return run;
  }

  // NaN to the rows of sequences whose lengths are not possible.
  FC_DEVICE void write_bad() const {
    if constexpr (T.ragged) {
      if (ptx::ld_shared_u32(flag) == 0) return;
      for (int b = 0; b < problem().batch; ++b) {
        const tile::Sequence s = at(b);
        if (!s.bad || s.len_q == 0) continue;
        for (int head = ptx::ctaid_x(); head < problem().heads_q; head += ptx::nctaid_x())
          tile::write_bad_rows<T>(tile::params_of<T>(problem(), *ragged, s, head), head, 0, s.len_q, s.len_q,
                                  ptx::tid_x(), threads_per_block(C));
      }
    }
  }
};

}  // namespace flashcore::sm80_decode_fwd
