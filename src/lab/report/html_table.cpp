#include "lab/report/html_table.h"

#include <fmt/format.h>

#include <cmath>

#include "core/visible_text.h"

namespace flashcore::report {

std::string id_html(std::string_view escaped_id) {
  std::string out;
  for (const char c : escaped_id) {
    out += c;
    if (c == '_') out += "<wbr>";
  }
  return out;
}

std::string number_cell(double sort_by, std::string_view shown, std::string_view title) {
  return fmt::format("<td class=num data-sort=\"{:.9g}\"{}>{}</td>", std::isfinite(sort_by) ? sort_by : -1,
                     title.empty() ? "" : fmt::format(" title=\"{}\"", escape_html(title)), escape_html(shown));
}

std::string empty_cell() { return "<td class=num data-sort=\"-1\">–</td>"; }

std::string table_open(std::string_view id, std::string_view caption, const std::vector<Column>& columns) {
  std::string out = fmt::format(
      "<div class=scroll tabindex=0 role=region aria-labelledby=\"{0}-caption\"><table id=\"{0}\" "
      "class=sortable><caption id=\"{0}-caption\">{1}</caption><thead><tr>",
      id, escape_html(caption));
  for (const Column& column : columns) {
    out += fmt::format("<th scope=col{} title=\"{}\">{}</th>", column.numeric ? " class=num" : "",
                       escape_html(column.title), escape_html(column.name));
  }
  return out + "</tr></thead><tbody>\n";
}

}  // namespace flashcore::report
