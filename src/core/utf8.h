#pragma once
// UTF-8, read one character at a time.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flashcore {

struct Utf8Character {
  std::string_view bytes;
  std::uint32_t code = 0;  // of a byte that is no UTF-8: the byte
  bool valid = false;      // else `bytes` is the one byte that is no UTF-8
};

// The character that `text` begins with; `text` is not empty. Overlong forms, surrogates and what lies beyond U+10FFFF
// are no UTF-8.
Utf8Character first_character(std::string_view text);

}  // namespace flashcore
