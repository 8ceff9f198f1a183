#pragma once
#include <string>
#include <string_view>

namespace flashcore {

// SHA-256 (FIPS 180-4) as 64 hex digits: where somebody may want two texts to have one hash. hash128() of core/hash.h
// is thirty times as fast, and not for that.
std::string sha256(std::string_view bytes);

}  // namespace flashcore
