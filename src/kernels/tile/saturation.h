#pragma once
// Which numbers saturate as codes of 8 and fewer bits. Read by g++ and by NVRTC.

#include "kernels/tile/traits.h"

namespace flashcore {

// The bits of the least magnitude whose nearest number, ties to even, would be past the type's largest if the type went
// on. e4m3's 448 is even, so that 464, which is as far from it as from 480, still is 448; others' largest numbers are
// odd.
constexpr unsigned least_saturating_bits(Element code) {
  return code == Element::kE4M3   ? 0x43e80001u   // above 464
         : code == Element::kE5M2 ? 0x47700000u   // 61440
         : code == Element::kInt4 ? 0x40f00000u   // 7.5
                                  : 0x42ff0000u;  // 127.5
}

// Of an fp32 number by its bits, infinities too; NaN does not saturate.
constexpr bool saturates(Element code, unsigned bits) {
  const unsigned magnitude = bits & 0x7fffffffu;
  return magnitude >= least_saturating_bits(code) && magnitude <= 0x7f800000u;
}

}  // namespace flashcore
