#include "core/utf8.h"

namespace flashcore {

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {text.substr(0, 1), lead, true};
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  const Utf8Character bad{text.substr(0, 1), lead, false};
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return bad;
  std::uint32_t code = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return bad;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLowest[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return bad;
  return {text.substr(0, length), code, true};
}

}  // namespace flashcore
