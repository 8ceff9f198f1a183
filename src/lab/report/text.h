#pragma once
// How the report writes text and numbers. One place, so that page, Markdown and charts agree.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore::report {

// Names and messages come from suites, stores and compilers, that is from anybody. Each format's escape takes text and
// gives what shows it as it is: no markup, no link, no formula, and no invisible character (core/visible_text.h).
std::string escape_html(std::string_view text);      // & < > " '; line breaks stay
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
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Three significant digits: "0.0123", "1.23", "12.3", "123", "1,234". "–" for a number that is not finite.
std::string number(double value);
std::string count(std::int64_t value);  // "1,234"
std::string time(double microseconds);  // "12.3 µs", "1.23 ms", "2.50 s"
// "12.3 µs [12.1, 12.6]": all three in the unit of the first.
std::string time_range(double p50_us, double p10_us, double p90_us);
std::string percent(double fraction);                               // "63%", "0.8%"
std::string ratio(double value);                                    // "1.42×"
std::string bytes(double count);                                    // "48 KiB"
std::string plural(std::int64_t count, std::string_view singular);  // "1 problem", "2 problems"

}  // namespace flashcore::report
