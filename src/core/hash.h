#pragma once
#include <string>
#include <string_view>

namespace flashcore {

// 128 bits of XXH3 as 32 hex digits. For identity, not against an adversary: two texts with one hash can be made.
std::string hash128(std::string_view bytes);

// Feeds several parts with their lengths, so that {"ab","c"} and {"a","bc"} differ.
class Hasher {
 public:
  Hasher& add(std::string_view part);
  std::string hex() const { return hash128(buffer_); }
  // Where one of the parts may be somebody's who wants the hash of another: the keys of compiled code.
  std::string sha256_hex() const;

 private:
  std::string buffer_;
};

}  // namespace flashcore
