#pragma once
// Tiles of a ragged batch, numbered on the device, which alone knows the lengths: only tiles that exist have a number.
// The order is that of TileOrder, and the sequences with the most keys come first.

#include "kernels/ptx/atomic_float.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/tile/mask.cuh"
#include "kernels/tile/ragged_tiles.h"
#include "kernels/tile/sequence.cuh"
#include "kernels/tile/tile_order.h"

namespace flashcore::tile {

// A table in shared memory, at `table`: for each entry the number of tiles up to its end, then for each entry a word
// about it, then a few words for all. The whole CTA makes it before its roles part; whoever loads finds tiles in it.
//
// Up to kRaggedEntries sequences are ranked, the one with the most keys first, and an entry is a sequence. Of more, an
// entry is a few neighbours in the order given, which the search goes through.
//
// Where tiles differ in length they go in sections, as TileOrder's: of some of a sequence's heads, or of all heads of
// several sequences. A section of several sequences goes down from level to level, a level being the tiles that begin
// at the same row. The sequences with a tile on it are the section's first ones, so the levels between one sequence's
// number of tiles and the next one's are alike, and make up the entry of the former.
template <Traits T, int kRows>
struct RaggedTiles {
  const ForwardParams& problem;
  const RaggedParams& ragged;
  const ptx::SharedAddress table;
  const PagedParams* paged = nullptr;  // of paged caches

  struct Place {
    Sequence sequence;
    int batch, head, first_row;
  };

  // By the whole CTA, `takers` of which go round the tiles; a barrier has to follow.
  FC_DEVICE void make(int takers) const;
  FC_DEVICE int count() const { return word(kCount); }
  FC_DEVICE Place find(int number) const;
  // By all `threads` of all CTAs: NaN to the rows of sequences whose boundaries are not possible.
  FC_DEVICE void write_bad(int threads) const;

 private:
  static constexpr bool kLongestFirst = Mask<T, ForwardParams>::kLongestLast;
  static constexpr int kEmpty = -1, kBad = -2, kNone = -3;  // in the place of a sequence's keys
  enum Word { kCount, kMostKeys, kAnyBad, kMixed, kHeads, kSequences };

  FC_DEVICE ptx::SharedAddress end_at(int entry) const { return table + 4 * entry; }
  FC_DEVICE ptx::SharedAddress entry_at(int entry) const { return table + 4 * (kRaggedEntries + entry); }
  FC_DEVICE ptx::SharedAddress word_at(int word) const { return table + 4 * (2 * kRaggedEntries + word); }
  FC_DEVICE static int load(ptx::SharedAddress address) { return static_cast<int>(ptx::ld_shared_u32(address)); }
  FC_DEVICE static void store(ptx::SharedAddress address, int value) {
    ptx::st_shared_u32(address, static_cast<unsigned>(value));
  }
  FC_DEVICE int word(Word which) const { return load(word_at(which)); }

  FC_DEVICE Sequence at(int batch) const {
    if constexpr (T.paged) return paged_sequence_at(ragged, *paged, problem, batch);
    else return sequence_at(ragged, problem, batch);
  }
  FC_DEVICE static int row_tiles(const Sequence& s) { return s.bad ? 0 : (s.len_q + kRows - 1) / kRows; }

  FC_DEVICE int sequences_per_entry() const { return (problem.batch + kRaggedEntries - 1) / kRaggedEntries; }
  FC_DEVICE int entries() const { return (problem.batch + sequences_per_entry() - 1) / sequences_per_entry(); }
  // A ranked entry's word: 8 bits of the sequence's number, 24 of its tiles of rows.
  FC_DEVICE bool is_ranked() const { return problem.batch <= kRaggedEntries && problem.seqlen_q / kRows < 0xffffff; }

  FC_DEVICE int heads_of_section(int takers) const {
    if constexpr (!kLongestFirst) return 1;  // a head's tiles follow each other
    constexpr int kKeys = keys_of_section((T.head_dim + T.head_dim_v) * bytes_of(T.element));
    const int most_keys = is_ranked() ? max_int(word(kMostKeys), 1) : problem.seqlen_kv;
    return tile::heads_of_section(kKeys / most_keys, problem.heads_q / problem.heads_kv,
                                  problem.heads_q * problem.batch, word(kCount), takers);
  }
};

template <Traits T, int kRows>
FC_DEVICE void RaggedTiles<T, kRows>::make(int takers) const {
  const int own = ptx::tid_x(), each = sequences_per_entry(), count = entries();
  const bool ranked = is_ranked();
  int keys = own < count ? kEmpty : kNone, tiles = 0;
  if (own < kRaggedEntries) {
    for (int b = own * each; b < min_int((own + 1) * each, problem.batch); ++b) {
      const Sequence s = at(b);
      tiles += row_tiles(s);
      keys = s.bad || keys == kBad ? kBad : tiles > 0 ? s.len_kv : kEmpty;
    }
    store(end_at(own), keys), store(entry_at(own), tiles);
  }
  if (own == 0) store(word_at(kMixed), 0);
  ptx::bar_sync();

  int rank = 0, tiles_before = 0;
  if (own < count) {
    int all_tiles = 0, most_keys = 0;
    bool any_bad = false, mixed = false;
    const auto compare = [&](int other, unsigned its_keys, unsigned its_tiles) {
      const int k = static_cast<int>(its_keys), n = static_cast<int>(its_tiles);
      const bool before = ranked && k != keys ? k > keys : other < own;
      rank += before, tiles_before += before ? n : 0, all_tiles += n;
      most_keys = max_int(most_keys, k), any_bad |= k == kBad, mixed |= before && n < tiles;
    };
    for (int i = 0; i < count; i += 4) {  // past the end kNone, after all others
      const ptx::Vector4 k = ptx::ld_shared_v4(end_at(i)), n = ptx::ld_shared_v4(entry_at(i));
      compare(i, k.x, n.x), compare(i + 1, k.y, n.y), compare(i + 2, k.z, n.z), compare(i + 3, k.w, n.w);
    }
    if (own == 0)
      store(word_at(kCount), all_tiles * problem.heads_q), store(word_at(kMostKeys), most_keys),
          store(word_at(kAnyBad), any_bad);
    if (mixed) ptx::atomic_add_shared_u32(word_at(kMixed), 1);
  }
  ptx::bar_sync();

  const int heads = heads_of_section(takers);
  const int sequences = !ranked || word(kMixed) != 0 ? 1 : max_int(heads / problem.heads_q, 1);
  if (own == 0) store(word_at(kHeads), min_int(heads, problem.heads_q)), store(word_at(kSequences), sequences);
  if (own < count && ranked) store(entry_at(rank), own | tiles << 8);
  int levels_below = 0;  // that the entry leaves to the next ones of its section
  if (sequences > 1) {
    ptx::bar_sync();
    const int place = rank % sequences;
    if (own < count && rank + 1 < count && place + 1 < sequences)
      levels_below = (place + 1) * static_cast<int>(ptx::ld_shared_u32(entry_at(rank + 1)) >> 8);
  }
  if (own < count) store(end_at(rank), (tiles_before + tiles - levels_below) * problem.heads_q);
}

template <Traits T, int kRows>
FC_DEVICE typename RaggedTiles<T, kRows>::Place RaggedTiles<T, kRows>::find(int number) const {
  int entry = 0;
  for (int last = entries() - 1; entry < last;) {
    const int middle = (entry + last) / 2;
    if (load(end_at(middle)) > number) last = middle;
    else entry = middle + 1;
  }
  const int heads = problem.heads_q;
  int within = entry > 0 ? number - load(end_at(entry - 1)) : number;
  Place place;
  int tiles;  // of rows, of the sequence whose tiles the entry's levels go down from
  const bool ranked = is_ranked();
  if (ranked) {
    tiles = static_cast<int>(ptx::ld_shared_u32(entry_at(entry)) >> 8);
  } else {
    place.batch = entry * sequences_per_entry();
    const int last = min_int(place.batch + sequences_per_entry(), problem.batch) - 1;
    for (;; ++place.batch) {
      tiles = row_tiles(at(place.batch));
      if (within < tiles * heads || place.batch >= last) break;
      within -= tiles * heads;
    }
    // Boundaries that somebody writes meanwhile must not divide by zero.
    tiles = max_int(tiles, 1);
  }
  const int sequences = word(kSequences);
  int first_head = 0, on_level;  // tiles of a level
  if (sequences == 1) {
    const int section_heads = word(kHeads), section = within / (tiles * section_heads);
    within -= section * tiles * section_heads;
    first_head = section * section_heads, on_level = min_int(section_heads, heads - first_head);
  } else {
    on_level = (entry % sequences + 1) * heads;
  }
  const int level = within / on_level;
  int item = within - level * on_level;
  if (sequences > 1) {
    const int nth = item / heads;
    item -= nth * heads, entry += nth - entry % sequences;
  }
  if (ranked) place.batch = static_cast<int>(ptx::ld_shared_u32(entry_at(entry)) & 0xff);
  place.sequence = at(place.batch);
  place.head = first_head + item;
  place.first_row = (tiles - 1 - level) * kRows;
  return place;
}

template <Traits T, int kRows>
FC_DEVICE void RaggedTiles<T, kRows>::write_bad(int threads) const {
  if (word(kAnyBad) == 0) return;
  for (int b = 0; b < problem.batch; ++b) {
    const Sequence s = at(b);
    if (!s.bad || s.len_q == 0) continue;
    for (int head = ptx::ctaid_x(); head < problem.heads_q; head += ptx::nctaid_x())
      write_bad_rows<T>(params_of<T>(problem, ragged, s, head), head, 0, s.len_q, s.len_q, ptx::tid_x(), threads);
  }
}

}  // namespace flashcore::tile
