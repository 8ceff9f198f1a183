#include "lab/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

namespace flashcore::report {
namespace {

std::string one_line(std::string_view text) {
  std::string line = visible_lines(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_www(const std::string& line, std::size_t at) {
  const auto is_w = [&](std::size_t i) { return line[i] == 'w' || line[i] == 'W'; };
  return is_w(at) && is_w(at + 1) && is_w(at + 2);
}

}  // namespace

std::string escape_markdown(std::string_view text) {
  const std::string line = one_line(text);
  const auto is_word = [&](std::size_t i) {
    return i < line.size() && (std::isalnum(static_cast<unsigned char>(line[i])) || (line[i] & 0x80) != 0);
  };
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    const bool inside_word = i > 0 && is_word(i - 1) && is_word(i + 1);
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    // GitHub makes links of bare addresses.
    else if (c == ':' && line.compare(i, 3, "://") == 0) out += "&#58;";
    else if (c == '.' && i >= 3 && is_www(line, i - 3)) out += "&#46;";
    // It mentions people (@name), teams and issues (#1), after backslashes and entities are gone: a character of no
    // width between, as Renovate does. After "@" it also keeps an address from becoming a link.
    else if ((c == '@' && is_word(i + 1)) || (c == '#' && i + 1 < line.size() && is_digit(line[i + 1])))
      out += c, out += "&#8203;";
    else if (std::string_view("\\`*[]|~$").find(c) != std::string_view::npos || (c == '_' && !inside_word))
      out += {'\\', c};
    else out += c;
  }
  // What begins a heading, a list or a rule.
  const std::size_t digits = std::min(out.find_first_not_of("0123456789"), out.size());
  if (digits > 0 && digits < out.size() && (out[digits] == '.' || out[digits] == ')') &&
      (digits + 1 == out.size() || out[digits + 1] == ' '))
    out.insert(digits, "\\");
  else if (!out.empty() && std::string_view("#-+=").find(out[0]) != std::string_view::npos) out.insert(0, "\\");
  return out;
}

std::string markdown_code(std::string_view text) {
  std::string out;
  // A table's cells end at a bar, a code span at a backtick.
  for (const char c : one_line(text)) out += c == '`' ? '\'' : c == '|' ? '/' : c;
  return "`" + (out.empty() ? " " : out) + "`";
}

std::string escape_csv(std::string_view text) {
  // Quoted: a spreadsheet takes a leading = + - @ (also after blanks, also full-width) for a formula all the same.
  const std::size_t first = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  bool formula = text.starts_with('\t') || text.starts_with('\r') || text.starts_with('\n');
  for (const std::string_view start : {"=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"})
    formula = formula || text.substr(first).starts_with(start);
  const std::string safe = (formula ? "'" : "") + visible_lines(text);
  if (safe.find_first_of(",\"\n;") == std::string::npos && !formula) return safe;
  std::string out = "\"";
  for (const char c : safe) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string base64(std::string_view bytes) {
  static constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += j <= count ? kAlphabet[group >> (18 - 6 * j) & 63U] : '=';
    }
  }
  return out;
}

}  // namespace flashcore::report
