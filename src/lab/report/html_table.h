#pragma once
// The pieces that tables of the page are put together from. Everything that is given as text is escaped here; cells
// carry the value to sort by, and assets/report.js sorts.

#include <string>
#include <string_view>
#include <vector>

namespace flashcore::report {

// A problem id that may break after an underscore, nowhere else. Takes escaped text.
std::string id_html(std::string_view escaped_id);

// A number as shown, with the value to sort by.
std::string number_cell(double sort_by, std::string_view shown, std::string_view title = {});
std::string empty_cell();

struct Column {
  const char* name;
  const char* title;
  bool numeric = false;
};
// Up to and with <tbody>; `id` is ours, and one of the page alone.
std::string table_open(std::string_view id, std::string_view caption, const std::vector<Column>& columns);
inline constexpr std::string_view kTableClose = "</tbody></table></div>\n";

}  // namespace flashcore::report
