#include "core/foreign_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "core/utf8.h"

namespace flashcore {
namespace {

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
    const Utf8Character c = first_character(rest);
    if (c.valid && !is_control(c.code)) {
      out += c.bytes;
    } else {
      for (const char byte : c.bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    rest.remove_prefix(c.bytes.size());
  }
  return out;
}

std::size_t find_bad_character(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character c = first_character(text.substr(at));
    if (!c.valid || (is_control(c.code) && !is_space(c.code))) return at;
    at += c.bytes.size();
  }
  return std::string_view::npos;
}

std::optional<std::int64_t> parse_whole(std::string_view text) {
  return is_decimal(text.substr(text.starts_with('-') ? 1 : 0)) ? parse_all<std::int64_t>(text) : std::nullopt;
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  return is_decimal(text) ? parse_all<std::uint64_t>(text) : std::nullopt;
}

bool has_leading_zero(std::string_view text) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  return digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9';
}

std::optional<double> parse_finite(std::string_view text) {
  if (has_leading_zero(text)) return std::nullopt;
  const auto value = parse_all<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace flashcore
