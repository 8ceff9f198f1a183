#pragma once
// What lies before and after every buffer of the laboratory's.

#include <cstddef>

namespace flashcore {

// Different from place to place, so that a block copied over the zone shows as well as a single value; and NaN in fp32,
// fp16 and bf16, so that a key read from beyond a tensor shows even if its weight is zero. `index` counts from a
// place that is aligned to an element.
constexpr std::byte red_zone_byte(std::size_t index) {
  return static_cast<std::byte>(index % 2 == 1 ? 0x7F : 0x81 + index / 2 * 59 % 127);
}

}  // namespace flashcore
