#pragma once
// How sm80_fwd finds the keys of a paged cache: row by row, as its copies go.

#include "kernels/ptx/math.cuh"
#include "kernels/sm80_fwd/params.h"
#include "kernels/tile/sequence.cuh"

namespace flashcore::sm80_fwd {

using PagedKernelParams = Paged<PoolParams>;

// What a paged problem's kernel keeps besides.
template <bool kPaged>
struct KernelPool {
  FC_DEVICE explicit KernelPool(const PagedKernelParams*) {}
};
template <>
struct KernelPool<true> {
  const PagedKernelParams& pool;
  int sequence = 0;  // whose keys are at hand
  FC_DEVICE explicit KernelPool(const PagedKernelParams* params) : pool(*params) {}
};

// The rows of a block of keys, or of their values, for SharedTile::copy_paged_async. A key of a page that the pool does
// not have is NaN, its value zero.
template <bool kKeys, bool kWindow>
struct BlockRows {
  static constexpr int kNoKey = -1, kBadPage = -2;  // no key that counts; a page that the pool does not have

  const PagedKernelParams& params;
  const Strides& strides;      // of the pool: batch entries are pages
  const unsigned short* pool;  // of the head
  int sequence, first_key, len_kv;
  int first_seen;  // the first key that a row of the tile sees

  // The table is not read past the sequence's end, where it may end, nor before the window of all rows, where others
  // may have the pages by now.
  FC_DEVICE int page_of(int row) const {
    const int key = first_key + row;
    if (key >= len_kv) return kNoKey;
    if (kWindow && key < first_seen) return kNoKey;
    const int page = tile::page_at(params.paged, sequence, params.plain.by_page_size.quotient(key));
    return page >= 0 ? page : kBadPage;
  }
  FC_DEVICE const unsigned short* address(int page, int row) const {
    const int key = first_key + row;
    const int in_page = key - params.plain.by_page_size.quotient(key) * params.paged.page_size;
    return pool + page * strides.batch + in_page * strides.row;
  }
  FC_DEVICE static bool is_nan(int page) { return kKeys && page == kBadPage; }
  FC_DEVICE static float nan() { return ptx::float_of_bits(0x7fff7fffu); }  // two of fp16, or of bf16
};

}  // namespace flashcore::sm80_fwd
