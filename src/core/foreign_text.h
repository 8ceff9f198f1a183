#pragma once
// Text that came from outside: how it is checked, read as numbers, and quoted in messages.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashcore {

// Fit to be quoted in a one-line message: control characters and bytes that are not UTF-8 as \x1b, and at most `most`
// bytes of it. A NUL would end the message, an escape sequence would reach the reader's terminal.
std::string excerpt(std::string_view text, std::size_t most = 200);

// Where the first character is that no text file of ours may hold: not UTF-8, or a control character other than tab,
// line feed and carriage return. npos if there is none.
std::size_t find_bad_character(std::string_view text);

// The whole text as a decimal number, an optional '-' in front. None for anything else: no '+', no blank, no leading
// zero (which YAML 1.1 and C read as octal), nothing that does not fit.
std::optional<std::int64_t> parse_whole(std::string_view text);
std::optional<std::uint64_t> parse_unsigned(std::string_view text);
// 010 or -00.5: YAML 1.1 and C read the first as eight, so it is a mistake of whoever wrote it, also for real numbers.
bool has_leading_zero(std::string_view text);
// The whole text as a finite decimal number, without a leading zero.
std::optional<double> parse_finite(std::string_view text);

}  // namespace flashcore
