#pragma once
// A mask as a band: which keys a query row sees, and whether a tile of rows and a block of keys is to be skipped, taken
// in full or cut.
//
// The one header of core that device code may include, for a mask is written once: the reference, FLOPs, time models
// and kernels ask the same functions. So it is read by g++ and by NVRTC, includes nothing, and its functions are
// constexpr (NVRTC compiles functions for the device by default). `Int` is int in kernels and 64 bits wide on the host,
// where offset and row may add up to more than an int holds.

namespace flashcore {

// Keys begin .. end - 1; empty where both are equal. begin <= end always.
template <class Int>
struct KeyRange {
  Int begin, end;

  constexpr Int size() const { return end - begin; }
  constexpr bool empty() const { return begin == end; }
  constexpr bool contains(Int key) const { return begin <= key && key < end; }
  constexpr bool operator==(const KeyRange&) const = default;
};

// What a block of keys is to a tile of rows.
enum class BlockUse : int {
  kSkip,  // no row of the tile sees a key of the block: it is not loaded
  kFull,  // every row sees every key: no mask to apply
  kCut,   // anything else: each row asks for its own keys
};

// Row i sees the keys j of 0 .. seqlen_kv - 1 with i + left_offset <= j <= i + right_offset, where each side counts
// only if it is bounded. A causal mask is bounded on the right alone; a sliding window on the left too. Kernels fill it
// from Traits (the bounds, known at compile time) and parameters (lengths and offsets).
//
// A row has one range. Masks with a few ranges a row (documents, prefixes, sinks) would add a count and an index to
// keys_of_row(), and answer use_of() from all of them; who asks only use_of() and the ranges needs no change.
template <class Int>
struct Band {
  Int seqlen_kv;
  bool bounded_left, bounded_right;
  Int left_offset, right_offset;

  constexpr bool operator==(const Band&) const = default;
  constexpr bool bounded() const { return bounded_left || bounded_right; }

  // The sides of a row by themselves, for whoever compares keys with them: the begin may lie past the last key, and the
  // end before the first, which saves kernels bringing them into order.
  constexpr Int begin_of(Int row) const { return bounded_left && row + left_offset > 0 ? row + left_offset : 0; }
  constexpr Int end_of(Int row) const {
    return bounded_right && row + right_offset + 1 < seqlen_kv ? row + right_offset + 1 : seqlen_kv;
  }

  // Of one row: what it sees.
  constexpr KeyRange<Int> keys_of_row(Int row) const { return between(row, row); }
  // Of the rows first .. last: what any of them sees. One range, because the next row's is the same one further on.
  constexpr KeyRange<Int> keys_of_any(Int first, Int last) const { return between(first, last); }
  // Of the rows first .. last: what all of them see.
  constexpr KeyRange<Int> keys_of_all(Int first, Int last) const { return between(last, first); }

  constexpr BlockUse use_of(Int first_row, Int last_row, Int key_begin, Int key_end) const {
    const KeyRange<Int> any = keys_of_any(first_row, last_row);
    if (any.empty() || key_end <= any.begin || any.end <= key_begin) return BlockUse::kSkip;
    const KeyRange<Int> all = keys_of_all(first_row, last_row);
    return all.begin <= key_begin && key_end <= all.end ? BlockUse::kFull : BlockUse::kCut;
  }

 private:
  constexpr KeyRange<Int> between(Int row_of_begin, Int row_of_end) const {
    const Int left = begin_of(row_of_begin), right = end_of(row_of_end);
    const Int begin = bounded_left && left > seqlen_kv ? seqlen_kv : left;
    return {begin, bounded_right && right < begin ? begin : right};
  }
};

}  // namespace flashcore
