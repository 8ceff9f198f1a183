#pragma once
// Scores whose columns are the even keys of a block, then its odd ones. A lane's four elements of a row, two of either
// half, are neighbours: keys 4t to 4t + 3 of each 16, as the operand a of 8-bit multiplies wants them. So V may lie in
// the order of its keys. Either half of K's tile is a tensor map's, of rows two strides apart.

#include "kernels/ptx/math.cuh"
#include "kernels/tile/accumulator.cuh"
#include "kernels/tile/mask.cuh"

namespace flashcore::tile {

// Such scores as ByteSoftmax takes them, whose P is of keys in their order then: byte b of an operand is key b of the
// lane's four.
template <class Accumulator>
struct EvenKeysFirst {
  const Accumulator& scores;
};
template <class Accumulator>
constexpr int kElements<EvenKeysFirst<Accumulator>> = kElements<Accumulator>;
// Of ByteSoftmax's elements eight are of 16 keys: bytes 0 and 1 of either row, then bytes 2 and 3.
template <class Accumulator>
FC_DEVICE const float& element(const EvenKeysFirst<Accumulator>& of, int i) {
  return element(of.scores, i % 2 * (kElements<Accumulator> / 2) + i / 8 * 4 + i / 2 % 2 * 2 + i / 4 % 2);
}

// Four of such scores, of either row two keys that follow each other: what functions of scores take, which count keys
// as an accumulator in their order has them.
template <class Accumulator>
struct FourOfEvenKeysFirst {
  Accumulator& scores;
  int first;  // among ByteSoftmax's
};
template <class Accumulator>
constexpr int kElements<FourOfEvenKeysFirst<Accumulator>> = 4;
template <class Accumulator>
FC_DEVICE float& element(FourOfEvenKeysFirst<Accumulator>& of, int i) {
  return const_cast<float&>(element(EvenKeysFirst<Accumulator>{of.scores}, of.first + i));
}
// Calls body(four, first key) for all of a block; `first_key` is the lane's, 4 (lane % 4) from the block's.
template <int kCount, class Body>
FC_DEVICE void for_each_four(float (&scores)[kCount], int first_key, Body body) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    FourOfEvenKeysFirst<float[kCount]> four = {scores, i};
    body(four, first_key + i / 8 * 16 + i / 4 % 2 * 2);
  }
}

// The key of element i of `count`, from the lane's first one, 4 (lane % 4).
constexpr int even_first_key_of_element(int i, int count) {
  return i % (count / 2) / 4 * 16 + i % 2 * 2 + i / (count / 2);
}

// For multiply_by_keys of row_factors.cuh.
struct EvenKeys {
  FC_DEVICE static constexpr int key(int element, int count) { return even_first_key_of_element(element, count); }
};

// Mask::apply of such scores.
template <Traits T, class Params, int kCount>
FC_DEVICE void mask_even_keys_first(const Mask<T, Params>& mask, float (&scores)[kCount], Cut cut, int first_key,
                                    const int (&rows)[2]) {
  if (cut.right || !T.bounded_left) {
    const int end[2] = {mask.end_of(rows[0]) - first_key, mask.end_of(rows[1]) - first_key};
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (even_first_key_of_element(i, kCount) >= end[row_of_element(i)]) scores[i] = ptx::negative_infinity();
  }
  if (cut.left) {
    const int begin[2] = {mask.begin_of(rows[0]) - first_key, mask.begin_of(rows[1]) - first_key};
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (even_first_key_of_element(i, kCount) < begin[row_of_element(i)]) scores[i] = ptx::negative_infinity();
  }
}

}  // namespace flashcore::tile
