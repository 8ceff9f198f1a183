#include "core/visible_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/utf8.h"

namespace flashcore {
namespace {

struct Range {
  std::uint32_t first, last;
};

template <std::size_t N>
bool in(const Range (&ranges)[N], std::uint32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges), [c](Range r) { return c >= r.first && c <= r.last; });
}

// Controls, and what changes the order of text or hides: Unicode's Bidi_Control and Default_Ignorable characters, save
// the joiners and variation selectors that scripts and emoji need; line separators; what is no character.
constexpr Range kHidden[] = {{0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},       {0x61C, 0x61C},
                             {0x180E, 0x180E}, {0x200B, 0x200B}, {0x200E, 0x200F},   {0x2028, 0x202E},
                             {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},
                             {0xFDD0, 0xFDEF}, {0xE000, 0xF8FF}, {0xE0000, 0xE00FF}, {0xE01F0, 0x10FFFF}};

constexpr Range kCombining[] = {{0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},   {0x610, 0x61A},
                                {0x64B, 0x65F},   {0x200C, 0x200D}, {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF},
                                {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xE0100, 0xE01EF}};

// Unicode's East_Asian_Width W and F, and emoji, which terminals draw two columns wide.
constexpr Range kWide[] = {
    {0x1100, 0x115F}, {0x231A, 0x231B}, {0x23E9, 0x23EC},   {0x2E80, 0x303E},   {0x3041, 0x33FF},   {0x3400, 0x4DBF},
    {0x4E00, 0x9FFF}, {0xA000, 0xA4CF}, {0xA960, 0xA97F},   {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
    {0xFF00, 0xFF60}, {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF}, {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};

std::size_t width_of(const Utf8Character& c) {
  if (!c.valid) return 1;
  if (in(kCombining, c.code)) return 0;
  return in(kWide, c.code) ? 2 : 1;
}

void append_printable(std::string& out, const Utf8Character& c) {
  if (!c.valid || (c.code < 0x20 && c.code != '\n' && c.code != '\t') || c.code == 0x7F) {
    out += fmt::format("\\x{:02x}", c.code);
  } else if (c.code == '\n') {
    out += "\\n";
  } else if (c.code == '\t') {
    out += ' ';
  } else if (in(kHidden, c.code)) {
    out += c.code > 0xFFFF ? fmt::format("\\U{:08x}", c.code) : fmt::format("\\u{:04x}", c.code);
  } else {
    out += c.bytes;
  }
}

}  // namespace

std::string visible(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character c = first_character(text);
    append_printable(out, c);
    text.remove_prefix(c.bytes.size());
  }
  return out;
}

std::string visible_lines(std::string_view text) { return visible_block(text, ""); }

std::string visible_block(std::string_view text, std::string_view indent) {
  std::string out;
  for (bool first = true;; first = false) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!first) out += indent;
    out += visible(line);
    if (end == std::string_view::npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : visible_lines(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const Utf8Character c = first_character(text);
    width += width_of(c);
    text.remove_prefix(c.bytes.size());
  }
  return width;
}

std::string shorten(std::string_view text, std::size_t width) {
  constexpr std::string_view kGap = "...";
  if (display_width(text) <= width) return std::string(text);
  std::vector<Utf8Character> characters;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(characters.back().bytes.size()))
    characters.push_back(first_character(rest));
  const std::size_t room = width > kGap.size() + 2 ? width - kGap.size() : width;
  const std::size_t tail_room = room == width ? 0 : room / 2;
  std::string head, tail;
  std::size_t used = 0, end = characters.size();
  for (; end > 0 && used + width_of(characters[end - 1]) <= tail_room; --end) {
    used += width_of(characters[end - 1]);
    tail.insert(0, characters[end - 1].bytes);
  }
  used = 0;
  for (std::size_t i = 0; i < end && used + width_of(characters[i]) <= room - tail_room; ++i) {
    used += width_of(characters[i]);
    head += characters[i].bytes;
  }
  return room == width ? head : head + std::string(kGap) + tail;
}

}  // namespace flashcore
