#pragma once
// Partial results, each of some of a row's keys, merged: O and its sums are brought to a common maximum and added up.
// How a warp writes them for another: kStateBytes and kChunkBytes of shared_layout.h.

#include "kernels/ptx/math.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/tile/softmax.cuh"

namespace flashcore::tile {

// Of the lane's two rows: the maximum · scale_log2, and the sum of 2^(score - maximum).
struct RowState {
  float maximum[2], total[2];

  FC_DEVICE static RowState of(const SoftmaxState& softmax) {
    return {{softmax.max_scaled[0], softmax.max_scaled[1]}, {quad_sum(softmax.sum[0]), quad_sum(softmax.sum[1])}};
  }
  FC_DEVICE void raise_maximum(const RowState& other) {
#pragma unroll
    for (int r = 0; r < 2; ++r) maximum[r] = ptx::max(maximum[r], other.maximum[r]);
  }
  // Adds a part's sums, of which `maximum` is aware already. Returns what the part's O counts for.
  FC_DEVICE void add(const RowState& part, float (&weights)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weights[r] = weight(part.maximum[r], maximum[r]);
      total[r] = ptx::fma(weights[r], part.total[r], total[r]);
    }
  }
  // The same of the first part.
  FC_DEVICE void start(const RowState& part, float (&weights)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weights[r] = weight(part.maximum[r], maximum[r]);
      total[r] = weights[r] * part.total[r];
    }
  }
};

// Of a lane: its number, that of its rows among the warp's, and whether it writes their state. A kernel with other rows
// in a lane has a type of lanes and these three of its own.
FC_DEVICE int number_of(int lane) { return lane; }
FC_DEVICE int rows_of(int lane) { return lane / 4; }
FC_DEVICE bool writes_state(int lane) { return lane % 4 == 0; }

// `store(address, a, b, c, d)` writes 16 bytes of the partial result at `to`: st.shared here, or st.async to another
// CTA.
template <class Store, class Lane>
FC_DEVICE void write_state(const Store& store, ptx::SharedAddress to, Lane lane, const RowState& state) {
  if (writes_state(lane))
    store(to + rows_of(lane) * 16, state.maximum[0], state.total[0], state.maximum[1], state.total[1]);
}
template <class Lane>
FC_DEVICE ptx::SharedAddress chunk_address(ptx::SharedAddress partial, int chunk, Lane lane) {
  return partial + kStateBytes + chunk * kChunkBytes + number_of(lane) * 16;
}
template <class Lane>
FC_DEVICE RowState read_state(ptx::SharedAddress partial, Lane lane) {
  const ptx::Vector4 word = ptx::ld_shared_v4(partial + rows_of(lane) * 16);
  return {{ptx::float_of_bits(word.x), ptx::float_of_bits(word.z)},
          {ptx::float_of_bits(word.y), ptx::float_of_bits(word.w)}};
}
// Adds the partial result's chunk, weighted by row; `o(i)` is element i of the lane's four of it.
template <class Chunk>
FC_DEVICE void add_chunk(const Chunk& o, ptx::SharedAddress from, const float (&weights)[2]) {
  const ptx::Vector4 part = ptx::ld_shared_v4(from);
  o(0) = ptx::fma(weights[0], ptx::float_of_bits(part.x), o(0));
  o(1) = ptx::fma(weights[0], ptx::float_of_bits(part.y), o(1));
  o(2) = ptx::fma(weights[1], ptx::float_of_bits(part.z), o(2));
  o(3) = ptx::fma(weights[1], ptx::float_of_bits(part.w), o(3));
}

// All of a warp's 16 rows, within the CTA.
template <int kCount>
FC_DEVICE void write_partial(ptx::SharedAddress to, int lane, const RowState& state, const float (&acc_o)[kCount]) {
  const auto store = [](ptx::SharedAddress at, float a, float b, float c, float d) {
    ptx::st_shared_v4(at, a, b, c, d);
  };
  write_state(store, to, lane, state);
#pragma unroll
  for (int c = 0; c < kCount / 4; ++c)
    store(chunk_address(to, c, lane), acc_o[4 * c], acc_o[4 * c + 1], acc_o[4 * c + 2], acc_o[4 * c + 3]);
}
template <int kCount>
FC_DEVICE void add_partial(float (&acc_o)[kCount], ptx::SharedAddress from, int lane, const float (&weights)[2]) {
#pragma unroll
  for (int c = 0; c < kCount / 4; ++c)
    add_chunk([&](int i) -> float& { return acc_o[4 * c + i]; }, chunk_address(from, c, lane), weights);
}

// A choice by value: behind a branch on an index the compiler finds the index again, and registers become memory.
FC_DEVICE void keep(float& kept, bool own, float value) { kept = own ? value : kept; }

// kParts warps have the same rows and each some of the keys. They deal out O's chunks of 8 columns, kChunks to each: a
// warp keeps its own, hands those of the others over, and adds what it receives. `chunk(c, i)` is element i of chunk c
// of kAll, `o` becomes the own ones, `state` that of the whole rows. `way` says how they pass:
//   slot(to, from)     where a partial result for part `to` from part `from` lies
//   writer(to, from)   a function that writes 16 bytes at slot(to, from) + offset
//   wait()             until those of all others are here
//   exists(chunk), owns(c)   where chunks are missing at the end: of all, of the own
// kKeepStates: the others' states stay in registers, or are read a second time.
template <int kParts, int kChunks, int kAll, bool kKeepStates, class Way, class Lane, class Chunk>
FC_DEVICE void exchange(const Way& way, int own, Lane lane, const Chunk& chunk, RowState& state,
                        float (&o)[kChunks][4]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (part * kChunks + c >= kAll) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) keep(o[c][i], part == own, chunk(part * kChunks + c, i));
    }
    if (part == own) continue;
    const auto write = way.writer(part, own);
    write_state(write, 0, lane, state);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int at = part * kChunks + c;
      if (at < kAll && way.exists(at))
        write(chunk_address(0, c, lane), chunk(at, 0), chunk(at, 1), chunk(at, 2), chunk(at, 3));
    }
  }
  way.wait();
  RowState others[kKeepStates ? kParts : 1];
  RowState merged = state;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (part == own) continue;
    RowState& other = others[kKeepStates ? part : 0];
    other = read_state(way.slot(own, part), lane);
    merged.raise_maximum(other);
  }
  float weights[2];
  merged.start(state, weights);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[c][i] *= weights[row_of_element(i)];
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (part == own) continue;
    merged.add(kKeepStates ? others[kKeepStates ? part : 0] : read_state(way.slot(own, part), lane), weights);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (way.owns(c))
        add_chunk([&](int i) -> float& { return o[c][i]; }, chunk_address(way.slot(own, part), c, lane), weights);
    }
  }
  state = merged;
}

}  // namespace flashcore::tile
