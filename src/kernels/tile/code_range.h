#pragma once
// What types of 8 and fewer bits hold at most, and the factor that brings numbers into that range. Read by g++ and by
// NVRTC.

#include "kernels/tile/traits.h"

namespace flashcore {

constexpr float largest_of(Element code) {
  return code == Element::kE4M3 ? 448.0f : code == Element::kE5M2 ? 57344.0f : code == Element::kInt4 ? 7.0f : 127.0f;
}

// The factor that brings the largest finite magnitude to the type's largest number. It is normal, so that no rounding
// of it lets a code saturate, and attention takes it; 1 where there is nothing to bring there.
inline float factor_of(float magnitude, bool is_there, float largest) {
  constexpr float kLeastNormal = 1.17549435e-38f;
  if (!is_there) return 1.0f;
  const float factor = magnitude / largest;
  return factor > kLeastNormal ? factor : kLeastNormal;
}

}  // namespace flashcore
