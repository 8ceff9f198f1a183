#pragma once
// q, k and v as 8-bit floats. Three launches, of which the first is left out without smooth_k: the means of k over its
// keys, the largest magnitudes (of v alone where rows of q and k have a factor each), the codes. Each reads its tensors
// once, 16 bytes to an access, and what it found is merged by the CTA that comes last, in a fixed order: the same input
// gives the same bits. The codes begin with the tensor that was read last, of which the L2 cache still has the most.

#include "kernels/ptx/atomic.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/memory_bytes.cuh"
#include "kernels/ptx/special_registers.cuh"
#include "kernels/quantise/params.h"
#include "kernels/quantise/rows.cuh"
#include "kernels/quantise/transpose.cuh"
#include "kernels/tile/saturation.cuh"
#include "kernels/tile/values.cuh"

namespace flashcore::quantise {

// True in the threads of the CTA that is the last of `count` to arrive; it sees what the others wrote.
FC_DEVICE bool arrive_last(unsigned* counter, int count, ptx::SharedAddress flag) {
  ptx::bar_sync();  // all threads have written
  if (ptx::tid_x() == 0) {
    const bool is_last = ptx::atomic_add_global_acq_rel(counter, 1) == static_cast<unsigned>(count) - 1;
    if (is_last) ptx::st_global_u32(counter, 0);  // as the next launch wants it
    ptx::st_shared_u32(flag, is_last);
  }
  ptx::bar_sync();
  return ptx::ld_shared_u32(flag) != 0;
}

// A double has no loads and stores of its own. NVRTC, GCC and clang read a union by its bytes.
union Double {
  double value;
  unsigned words[2];
};
FC_DEVICE double double_of(unsigned low, unsigned high) {
  Double both;
  both.words[0] = low, both.words[1] = high;
  return both.value;
}

FC_DEVICE unsigned load_word(const unsigned* address) {
  return ptx::bits_of_float(ptx::ld_global_f32(reinterpret_cast<const float*>(address)));
}

// The mean of each column of a key head, in double as of a host that adds exactly; a CTA has a chunk of the keys.
template <Kind K, bool kVector>
FC_KERNEL(kThreads, ctas_of_multiprocessor(kVector))
means(const __grid_constant__ QuantiseParams params) {
  const Operand& k = params.k;
  const int slab = params.by_mean_chunks.quotient(ptx::ctaid_x()), chunk = ptx::ctaid_x() - slab * params.mean_chunks;
  const int parts = parts_of(k.dim), lanes = rows_at_once(k.dim);
  const int part = ptx::tid_x() % parts, lane = ptx::tid_x() / parts;
  const int first = chunk * params.mean_rows;
  const int end = first + params.mean_rows < k.seqlen ? first + params.mean_rows : k.seqlen;
  double sums[kColumns] = {};
  if (lane < lanes) {
    for (int row = first + lane; row < end; row += lanes) {
      float values[kColumns];
      load_columns<K.element, kVector>(k, place_of(k, slab * k.seqlen + row), part, values);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sums[i] += static_cast<double>(values[i]);
    }
  }
  const ptx::SharedAddress shared = ptx::dynamic_shared();
#pragma unroll
  for (int i = 0; i < kColumns; i += 2) {
    const Double a{sums[i]}, b{sums[i + 1]};
    ptx::st_shared_v4(shared + (ptx::tid_x() * kColumns + i) * 8, ptx::float_of_bits(a.words[0]),
                      ptx::float_of_bits(a.words[1]), ptx::float_of_bits(b.words[0]), ptx::float_of_bits(b.words[1]));
  }
  ptx::bar_sync();
  for (int column = ptx::tid_x(); column < k.dim; column += kThreads) {
    double sum = 0;
    for (int i = 0; i < lanes; ++i) {
      const int thread = i * parts + column / kColumns;
      const ptx::SharedAddress at = shared + (thread * kColumns + column % kColumns) * 8;
      sum += double_of(ptx::ld_shared_u32(at), ptx::ld_shared_u32(at + 4));
    }
    unsigned* to = params.sums + 2 * (static_cast<long long>(ptx::ctaid_x()) * k.dim + column);
    const Double whole{sum};
    ptx::st_global_u32(to, whole.words[0]);
    ptx::st_global_u32(to + 1, whole.words[1]);
  }
  if (!arrive_last(params.counters + slab, params.mean_chunks, shared + kMeansShared - 16)) return;
  for (int column = ptx::tid_x(); column < k.dim; column += kThreads) {
    double sum = 0;
    for (int i = 0; i < params.mean_chunks; ++i) {
      const unsigned* from =
          params.sums + 2 * ((static_cast<long long>(slab) * params.mean_chunks + i) * k.dim + column);
      sum += double_of(load_word(from), load_word(from + 1));
    }
    ptx::st_global_f32(params.k_mean + static_cast<long long>(slab) * k.dim + column,
                       static_cast<float>(sum / static_cast<double>(k.seqlen)));
  }
}

// A CTA's share of a tensor: a chunk of a group's rows.
struct Tile {
  int group;
  Rows of_group;
  int first, end;  // rows
};
FC_DEVICE Tile tile_of(const Operand& x, int number) {
  const int group = x.by_chunks.quotient(number), chunk = number - group * x.chunks;
  const Rows rows = rows_of(x, group);
  const int first = rows.first + chunk * x.chunk_rows, end = first + x.chunk_rows;
  return {group, rows, first, end < rows.end ? end : rows.end};
}

// body(place, part, is_there, values) for each row of the tile, less the mean and rotated where asked. Lanes of a warp
// go round together, since they exchange parts of a row; those without one have zeros.
template <Kind K, bool kVector, class Body>
FC_DEVICE void for_each_row(const QuantiseParams& params, const Operand& x, const float* mean, const Tile& tile,
                            const Body& body) {
  const int parts = parts_of(x.dim), lanes = rows_at_once(x.dim);
  const int part = ptx::tid_x() % parts, lane = ptx::tid_x() / parts;
  for (int first = tile.first; first < tile.end; first += lanes) {
    const int row = first + lane;
    const bool is_there = lane < lanes && row < tile.end;
    Place place{};
    float values[kColumns] = {};
    if (is_there) {
      place = place_of(x, row);
      load_columns<K.element, kVector>(x, place, part, values);
      if (mean) take_mean<kVector>(mean, place, x.dim, part, values);
    }
    if (x.is_rotated) rotate(params, x.dim, part, values);
    body(place, part, is_there, values);
  }
}

template <Kind K, bool kVector>
FC_DEVICE void find_largest(const QuantiseParams& params, const Operand& x, const float* mean, int number) {
  if (x.by_row) return;  // keys beside blocks of rows of q
  const Tile tile = tile_of(x, number);
  float largest = 0.0f;
  for_each_row<K, kVector>(params, x, mean, tile, [&](const Place&, int, bool, const float(&values)[kColumns]) {
    largest = tile::largest_finite(values, largest);
  });
  const ptx::SharedAddress shared = ptx::dynamic_shared();
  // Every thread has the largest of its CTA, or of what the last CTA has read.
  const auto of_cta = [&](float value) {
    value = tile::largest_of_warp(value);
    if (ptx::tid_x() % 32 == 0) ptx::st_shared_u32(shared + ptx::tid_x() / 32 * 4, ptx::bits_of_float(value));
    ptx::bar_sync();
    for (int i = 0; i < kThreads / 32; ++i)
      value = ptx::max(value, ptx::float_of_bits(ptx::ld_shared_u32(shared + i * 4)));
    return value;
  };
  largest = of_cta(largest);
  if (x.chunks > 1) {
    if (ptx::tid_x() == 0) ptx::st_global_f32(params.largest + x.first_tile + number, largest);
    if (!arrive_last(params.counters + params.heads + x.first_group + tile.group, x.chunks,
                     shared + kLargestShared - 4))
      return;
    const float* of_group = params.largest + x.first_tile + static_cast<long long>(tile.group) * x.chunks;
    for (int i = ptx::tid_x(); i < x.chunks; i += kThreads)
      largest = ptx::max(largest, ptx::ld_global_f32(of_group + i));
    largest = of_cta(largest);
  }
  const float factor = factor_of(largest, largest > 0.0f, largest_of(K.code));
  if (x.by_block) {
    for (int row = tile.of_group.first + ptx::tid_x(); row < tile.of_group.end; row += kThreads)
      ptx::st_global_f32(x.factors + row, factor);
  } else if (ptx::tid_x() == 0) {
    ptx::st_global_f32(x.factors + tile.group, factor);
  }
}

template <Kind K, bool kVector>
FC_KERNEL(kThreads, ctas_of_multiprocessor(kVector))
largest(const __grid_constant__ QuantiseParams params) {
  const int tile = first_searched_tile(params) + ptx::ctaid_x();
  if (tile < params.k.first_tile) return find_largest<K, kVector>(params, params.q, nullptr, tile);
  if (tile < params.v.first_tile)
    return find_largest<K, kVector>(params, params.k, params.k_mean, tile - params.k.first_tile);
  find_largest<K, kVector>(params, params.v, nullptr, tile - params.v.first_tile);
}

// The largest of the row that a thread has a part of. All threads of the CTA take part, with a row or without.
FC_DEVICE float largest_of_row(int dim, float largest) {
  const int parts = parts_of(dim);
  if (parts_are_butterfly(dim)) {
    for (int mask = 1; mask < parts; mask *= 2) largest = ptx::max(largest, ptx::shfl_bfly(largest, mask));
    return largest;
  }
  const ptx::SharedAddress shared = ptx::dynamic_shared();
  ptx::bar_sync();  // the rows before have been read
  ptx::st_shared_u32(shared + ptx::tid_x() * 4, ptx::bits_of_float(largest));
  ptx::bar_sync();
  const int first = ptx::tid_x() / parts * parts;
  for (int i = first; i < first + parts && i < kThreads; ++i)
    largest = ptx::max(largest, ptx::float_of_bits(ptx::ld_shared_u32(shared + i * 4)));
  return largest;
}

template <Kind K, bool kVector, bool kByRow>
FC_DEVICE void write_codes(const QuantiseParams& params, const Operand& x, const float* mean, int number) {
  const Tile tile = tile_of(x, number);
  float factor = 0.0f;
  if constexpr (!kByRow) factor = ptx::ld_global_f32(x.factors + (x.by_block ? tile.of_group.first : tile.group));
  unsigned saturated = 0;
  for_each_row<K, kVector>(
      params, x, mean, tile, [&](const Place& place, int part, bool is_there, const float(&values)[kColumns]) {
        if constexpr (kByRow) {
          const float largest = largest_of_row(x.dim, tile::largest_finite(values, 0.0f));
          factor = factor_of(largest, largest > 0.0f, largest_of(K.code));
          if (is_there && part == 0)
            ptx::st_global_f32(x.factors + static_cast<long long>(place.slab) * x.seqlen + place.row, factor);
        }
        unsigned words[kColumns / 4];
        codes_of<K.code>(values, factor, words);
        if (!is_there) return;
        if constexpr (K.counts) saturated += tile::count_saturating<K.code>(values, factor);
        auto* to = static_cast<unsigned char*>(x.to) + offset_of(x.to_stride, place) + part * kColumns;
        if constexpr (kVector) {
          ptx::st_global_v4(to, {words[0], words[1], words[2], words[3]});
        } else {
#pragma unroll
          for (int i = 0; i < kColumns; ++i)
            if (part * kColumns + i < x.dim) ptx::st_global_u8(to + i, words[i / 4] >> i % 4 * 8 & 0xffu);
        }
      });
  if constexpr (K.counts) tile::add_count_of_warp(params.saturated + 2 * x.number, saturated);
}

template <Kind K, bool kVector>
FC_DEVICE void write_query_or_key_codes(const QuantiseParams& params, const Operand& x, const float* mean, int number) {
  if (x.by_row) write_codes<K, kVector, true>(params, x, mean, number);
  else write_codes<K, kVector, false>(params, x, mean, number);
}

// From the last tile to the first.
template <Kind K, bool kVector>
FC_KERNEL(kThreads, ctas_of_multiprocessor(kVector))
codes(const __grid_constant__ QuantiseParams params) {
  const int tile = ptx::nctaid_x() - 1 - ptx::ctaid_x();
  if (tile >= params.v.first_tile) {
    if (params.is_transposed) return write_transposed<K, kVector>(params, params.v, tile - params.v.first_tile);
    return write_codes<K, kVector, false>(params, params.v, nullptr, tile - params.v.first_tile);
  }
  if (tile >= params.k.first_tile)
    return write_query_or_key_codes<K, kVector>(params, params.k, params.k_mean, tile - params.k.first_tile);
  write_query_or_key_codes<K, kVector>(params, params.q, nullptr, tile);
}

}  // namespace flashcore::quantise
