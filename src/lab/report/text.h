#pragma once
// How the report writes text and numbers. One place, so that page, Markdown and charts agree.

#include <string>
#include <string_view>

#include "lab/record/number_text.h"

#include "core/visible_text.h"

namespace flashcore::report {

// Numbers read the same everywhere.
using text::bytes;
using text::count;
using text::join;
using text::number;
using text::percent;
using text::plural;
using text::ratio;
using text::time;
using text::time_range;

// Names and messages come from suites, stores and compilers, that is from anybody. Each format's escape takes text and
// gives what shows it as it is: no markup, no link, no formula, and no invisible character. core/visible_text.h has
// escape_html.
std::string escape_markdown(std::string_view text);  // one line: of a paragraph, or a cell of a table
std::string markdown_code(std::string_view text);    // the same as a code span
// RFC 4180; and where a spreadsheet would take the text for a formula (= + - @ at its start), an apostrophe before it.
std::string escape_csv(std::string_view text);

// Markup, as distinct from text: made from text by escaping, or written by us.
struct Html {
  std::string markup;
  static Html text(std::string_view text) { return {escape_html(text)}; }
};
std::string base64(std::string_view bytes);
}  // namespace flashcore::report
