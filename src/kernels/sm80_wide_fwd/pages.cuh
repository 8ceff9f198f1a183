#pragma once
// How sm80_wide_fwd finds the keys of a paged cache: row by row, as its copies go.

#include "kernels/ptx/math.cuh"
#include "kernels/sm80_wide_fwd/params.h"
#include "kernels/tile/sequence.cuh"

namespace flashcore::sm80_wide_fwd {

// The rows of a block of keys, or of their values, for SharedTile::copy_paged_async. A key of a page that the pool does
// not have is NaN, its value zero. Codes are zeros too, and become NaN where they are widened (codes.cuh).
template <bool kNanKeys>
struct BlockRows {
  static constexpr int kNoKey = -1, kBadPage = -2;  // no key that counts; a page that the pool does not have

  const PagedParams& paged;
  const tile::FastDivide& by_page_size;
  const Strides& strides;      // of the pool: batch entries are pages
  const unsigned short* pool;  // of the head
  int sequence, first_key;
  int keys_begin, keys_end;  // that some row of the tile sees

  // The table is read neither past the sequence's end, where it may end, nor before the window of all rows, where
  // others may have the pages by now.
  FC_DEVICE int page_of(int row) const {
    const int key = first_key + row;
    if (key < keys_begin || key >= keys_end) return kNoKey;
    const int page = tile::page_at(paged, sequence, by_page_size.quotient(key));
    return page >= 0 ? page : kBadPage;
  }
  FC_DEVICE int in_page(int row) const {
    const int key = first_key + row;
    return key - by_page_size.quotient(key) * paged.page_size;
  }
  FC_DEVICE const unsigned short* address(int page, int row) const {
    return pool + page * strides.batch + in_page(row) * strides.row;
  }
  FC_DEVICE static bool is_nan(int page) { return kNanKeys && page == kBadPage; }
  FC_DEVICE static float nan() { return ptx::float_of_bits(0x7fff7fffu); }  // two of fp16, or of bf16
};

}  // namespace flashcore::sm80_wide_fwd
