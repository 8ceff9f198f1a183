#pragma once
// Accumulators of the tensor cores, and where a lane's elements lie in them. The m16n8 tiles of mma.sync, side by side,
// are [tiles][4]; the m64nN accumulator of wgmma is flat. Both number a lane's elements alike: four of every 8 columns,
// two in each of two rows. Of [tiles][2] a lane's elements are its kernel's own.

#include "kernels/tile/element.cuh"

namespace flashcore::tile {

// Element i of a lane: in which of its two rows, and how many columns right of the lane's first one.
constexpr int row_of_element(int i) { return i / 2 % 2; }
constexpr int column_of_element(int i) { return i / 4 * 8 + i % 2; }
// The lane's two rows among the 16 of its warp, and its first column.
FC_DEVICE int row_of_lane(int lane, int r) { return lane / 4 + 8 * r; }
FC_DEVICE int column_of_lane(int lane) { return 2 * (lane % 4); }

template <class Accumulator>
constexpr int kElements = sizeof(Accumulator) / sizeof(float);

template <int kCount>
FC_DEVICE float& element(float (&acc)[kCount], int i) {
  return acc[i];
}
template <int kCount>
FC_DEVICE const float& element(const float (&acc)[kCount], int i) {
  return acc[i];
}
template <int kTiles>
FC_DEVICE float& element(float (&acc)[kTiles][4], int i) {
  return acc[i / 4][i % 4];
}
template <int kTiles>
FC_DEVICE const float& element(const float (&acc)[kTiles][4], int i) {
  return acc[i / 4][i % 4];
}

template <int kTiles>
FC_DEVICE float& element(float (&acc)[kTiles][2], int i) {
  return acc[i / 2][i % 2];
}

template <class Accumulator>
FC_DEVICE void set_zero(Accumulator& acc) {
#pragma unroll
  for (int i = 0; i < kElements<Accumulator>; ++i) element(acc, i) = 0.0f;
}
template <class Accumulator>
FC_DEVICE void scale_rows(Accumulator& acc, const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kElements<Accumulator>; ++i) element(acc, i) *= factor[row_of_element(i)];
}

// Columns [16 step, 16 step + 16), each row times its factor, rounded: the operand a of m16n8k16 and m64nNk16, whose
// layout is the accumulator's, and the four 8×8 tiles that stmatrix stores.
template <Element E, class Accumulator>
FC_DEVICE void pack_operand(unsigned (&operand)[4], const Accumulator& acc, int step) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    operand[i] = pack<E>(element(acc, 8 * step + 2 * i), element(acc, 8 * step + 2 * i + 1));
  }
}
template <Element E, class Accumulator>
FC_DEVICE void pack_operand(unsigned (&operand)[4], const Accumulator& acc, int step, const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = 8 * step + 2 * i;
    operand[i] = pack<E>(element(acc, at) * factor[i % 2], element(acc, at + 1) * factor[i % 2]);
  }
}

}  // namespace flashcore::tile
