#pragma once
// Text that came from others (names in suites and stores, compiler messages, device names), made fit to be shown: on a
// terminal, in a page, in a table.

#include <string>
#include <string_view>

namespace flashcore {

// Control characters, C1 controls, bidirectional overrides, invisible characters and bytes that are no UTF-8 become
// visible escapes ("\x1b", "\u202e"): none of them can move a cursor, recolour a line or turn text around.
// A line break becomes "\n" in text, a tab a blank: one line stays one line.
std::string visible(std::string_view text);
// The same line by line: line breaks stay. For logs and reports, which the caller indents.
std::string visible_lines(std::string_view text);
// visible_lines with `indent` before every line but the first.
std::string visible_block(std::string_view text, std::string_view indent);

// visible_lines as text or attribute value of HTML and of XML 1.0, which cannot hold what visible_lines takes out.
std::string escape_html(std::string_view text);

// Columns on a terminal: 2 for wide characters (CJK, emoji), 0 for combining ones.
std::size_t display_width(std::string_view text);
// At most `width` columns, the middle left out: "b1_h8...causal". Cuts between characters.
std::string shorten(std::string_view text, std::size_t width);

}  // namespace flashcore
