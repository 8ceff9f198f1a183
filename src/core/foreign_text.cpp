#include "core/foreign_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace flashcore {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: what is there is not UTF-8
};

// The character that `text` starts with. Overlong forms, surrogates and what lies beyond U+10FFFF are not UTF-8.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLowest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLowest[bytes] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, bytes};
}

bool is_space(std::uint32_t code) { return code == '\t' || code == '\n' || code == '\r'; }
bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

bool is_decimal(std::string_view digits) {
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) return false;
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

template <class Number>
std::optional<Number> parse_all(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string excerpt(std::string_view text, std::size_t most) {
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    if (out.size() >= most) return out + fmt::format("... ({} bytes)", text.size());
    const Character c = first_character(rest);
    const std::size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (c.bytes != 0 && !is_control(c.code)) {
      out += rest.substr(0, bytes);
    } else {
      for (const char byte : rest.substr(0, bytes)) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    rest.remove_prefix(bytes);
  }
  return out;
}

std::size_t find_bad_character(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Character c = first_character(text.substr(at));
    if (c.bytes == 0 || (is_control(c.code) && !is_space(c.code))) return at;
    at += c.bytes;
  }
  return std::string_view::npos;
}

std::optional<std::int64_t> parse_whole(std::string_view text) {
  return is_decimal(text.substr(text.starts_with('-') ? 1 : 0)) ? parse_all<std::int64_t>(text) : std::nullopt;
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  return is_decimal(text) ? parse_all<std::uint64_t>(text) : std::nullopt;
}

std::optional<double> parse_finite(std::string_view text) {
  const auto value = parse_all<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string escape_xml(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = first_character(text);
    const std::size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (c.bytes == 0 || (c.code < 0x20 && !is_space(c.code)) || c.code == 0xfffe || c.code == 0xffff) {
      out += kReplacement;
    } else {
      switch (c.code) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '"': out += "&quot;"; break;
        case '\'': out += "&apos;"; break;
        default: out += text.substr(0, bytes);
      }
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace flashcore
