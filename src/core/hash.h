#pragma once
#include <string>
#include <string_view>

namespace flashcore {

// 128 bits of XXH3 as 32 hex digits. For cache keys and code identity, not against an adversary.
std::string hash128(std::string_view bytes);

// Feeds several parts with their lengths, so that {"ab","c"} and {"a","bc"} differ.
class Hasher {
 public:
  Hasher& add(std::string_view part);
  std::string hex() const { return hash128(buffer_); }

 private:
  std::string buffer_;
};

}  // namespace flashcore
