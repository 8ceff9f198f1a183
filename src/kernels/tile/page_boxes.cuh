#pragma once
// How keys of a paged cache reach shared memory as TmaTile or ByteTile say: lanes load each block in boxes of TMA, each
// of which lies in one page. A box may have fewer than eight rows and begin anywhere in the swizzle's pattern, which
// goes by the address in shared memory.

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/bulk.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/shuffle.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/tile/page_boxes.h"
#include "kernels/tile/sequence.cuh"

namespace flashcore::tile {

// Of one sequence and key head.
template <Traits T, int kBlockN>
struct PagedKeys {
  const PageBoxes& boxes;
  const PagedParams& paged;
  const ptx::TensorMap& v_end;
  int sequence, len_kv, head_kv;
  int first_seen;  // the first key that some row sees

  // Coordinates of pages that no map has, so that boxes of them become zeros.
  static constexpr int kMissing = -1;  // the pool has no such page
  static constexpr int kNoKeys = -2;   // that count

  FC_DEVICE int first_key(int block, int box) const { return block * kBlockN + box * boxes.rows; }

  // Whether a box that begins with that key has keys that count. The table is not read past the sequence's end, where
  // it may end, nor before the window of all rows, where others may have the pages by now.
  FC_DEVICE bool counts(int key) const {
    if (key >= len_kv) return false;
    if constexpr (T.bounded_left) return key + boxes.rows > first_seen;
    return true;
  }
  // The page of such a box.
  FC_DEVICE int page_of(int key) const {
    return counts(key) ? page_at(paged, sequence, boxes.by_page_size.quotient(key)) : kNoKeys;
  }
  // The same in two steps: whoever looks at an entry of the table waits for it.
  FC_DEVICE int entry_of(int key) const {
    if (!counts(key)) return 0;
    return load_length(paged.block_table + sequence * paged.table_stride + boxes.by_page_size.quotient(key));
  }
  FC_DEVICE int page_in(int entry, int key) const {
    if (!counts(key)) return kNoKeys;
    return entry >= 0 && entry < paged.pages ? entry : kMissing;
  }

  // NaN to the rows of a box of a tile of keys.
  template <class Keys>
  FC_DEVICE void write_missing_keys(ptx::SharedAddress first_row) const {
    // Two of fp16 or of bf16, or four of 8 bits.
    const float nan = ptx::float_of_bits(is_8bit(T.element) ? 0x7f7f7f7fu : 0x7fff7fffu);
    for (int b = 0; b < Keys::kBlocks; ++b)
      for (int at = 0; at < boxes.rows * Keys::line_bytes(); at += 16)
        ptx::st_shared_v4(first_row + b * Keys::kBlockBytes + at, nan, nan, nan, nan);
    ptx::fence_proxy_async();
  }

  // Starts the loads of boxes `first`, `first` + `each`, ... of a block, from a column on; `page` is that of the first.
  // Keys of pages that the pool does not have are written, and their boxes counted. Of values the rows past the
  // sequence's end become zeros, whatever the page holds there: 0 · NaN is NaN. Of a cluster of kRanks CTAs all get
  // what is loaded; what is written is each CTA's own: write_missing_boxes, of those that others load.
  template <class Keys, bool kValues, int kRanks = 1>
  FC_DEVICE int load_boxes(ptx::SharedAddress destination, const ptx::TensorMap& map, ptx::SharedAddress barrier,
                           int block, int page, int first, int each, int column = 0) const {
    int missing = 0;
    for (int box = first; box < boxes.count; box += each) {
      const int key = first_key(block, box), valid = len_kv - key;
      const ptx::SharedAddress first_row = destination + box * boxes.rows * Keys::line_bytes();
      if (box != first) page = page_of(key);
      if (!kValues && page == kMissing) {
        write_missing_keys<Keys>(first_row);
        ++missing;
        continue;
      }
      int row = key - boxes.by_page_size.quotient(key) * paged.page_size, last = page;
      const ptx::TensorMap* from = &map;
      if (kValues && page >= 0 && valid < boxes.rows) {
        from = &v_end;
        last = page * boxes.steps_per_page + (row + valid) * boxes.steps_per_key;
        row = boxes.rows - valid;
      }
#pragma unroll
      for (int b = 0; b < Keys::kBlocks; ++b) {
        const int first_column = column + Keys::block_columns() * b;
        if constexpr (kRanks == 1)
          ptx::tma_load_4d(first_row + b * Keys::kBlockBytes, *from, barrier, first_column, row, head_kv, last);
        else
          ptx::tma_load_4d_multicast(first_row + b * Keys::kBlockBytes, *from, barrier, first_column, row, head_kv,
                                     last, (1 << kRanks) - 1);
      }
    }
    return missing;
  }
  // NaN to the keys of pages that the pool does not have, of the same boxes. Returns how many these are.
  template <class Keys>
  FC_DEVICE int write_missing_boxes(ptx::SharedAddress destination, int block, int page, int first, int each) const {
    int missing = 0;
    for (int box = first; box < boxes.count; box += each) {
      if (box != first) page = page_of(first_key(block, box));
      if (page != kMissing) continue;
      write_missing_keys<Keys>(destination + box * boxes.rows * Keys::line_bytes());
      ++missing;
    }
    return missing;
  }

  // What a warp loads of a block of so many bytes, where its boxes are every `warps`-th from `warp` on.
  FC_DEVICE int bytes_of_warp(int block_bytes, int warp, int warps) const {
    const int own = (boxes.count - warp + warps - 1) / warps;
    return own * boxes.rows * (block_bytes / kBlockN);
  }
  // What comes of a block of keys, by the whole warp: less than bytes_of_warp where its lanes wrote `missing` boxes.
  template <class Keys>
  FC_DEVICE int bytes_that_come(int bytes, int missing) const {
    if (!ptx::vote_any(missing != 0)) return bytes;
    float all = static_cast<float>(missing);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) all += ptx::shfl_bfly(all, mask);
    ptx::bar_warp_sync();  // all lanes have written theirs
    return bytes - static_cast<int>(all) * boxes.rows * Keys::line_bytes() * Keys::kBlocks;
  }
};

}  // namespace flashcore::tile
