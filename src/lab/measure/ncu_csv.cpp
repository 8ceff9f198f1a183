#include "lab/measure/ncu_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

// The fields of one line of CSV: quoted, a quote inside doubled. None if a quote is left open.
std::optional<std::vector<std::string>> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return std::nullopt;
  return fields;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    at = end + 1;
  }
  return lines;
}

// "1,234.5": Nsight Compute groups digits in some locales. "1.234,5" and "12,5", of locales whose comma is the point,
// throw: without it they would be other numbers.
std::optional<double> counter_number(std::string text, std::ptrdiff_t line) {
  static const std::regex grouped("[0-9]{1,3}(,[0-9]{3})*([.][0-9]*)?");
  if (text.find(',') != std::string::npos && text.find_first_not_of("0123456789.,") == std::string::npos &&
      !std::regex_match(text, grouped))
    throw_bad_input("line {}: '{}' has no decimal point; write the table with LC_ALL=C", line, text);
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  return parse_finite(text);
}

bool is_row_of_names(std::string_view line) { return line.starts_with("\"ID\","); }

bool is_time_unit(const std::string& unit) {
  for (const char* known : {"ns", "nsecond", "us", "usecond", "ms", "msecond", "s", "second"})
    if (unit == known) return true;
  return false;
}

// To ns and Hz; other units stay.
double unit_factor(const std::string& unit) {
  if (unit == "us" || unit == "usecond") return 1e3;
  if (unit == "ms" || unit == "msecond") return 1e6;
  if (unit == "s" || unit == "second") return 1e9;
  if (unit == "Khz" || unit == "KHz" || unit == "cycle/msecond") return 1e3;
  if (unit == "Mhz" || unit == "MHz" || unit == "cycle/usecond") return 1e6;
  if (unit == "Ghz" || unit == "GHz" || unit == "cycle/nsecond") return 1e9;
  return 1;
}

}  // namespace

std::vector<ProfiledKernel> parse_ncu_csv(std::string_view text) {
  const std::vector<std::string_view> lines = lines_of(text);
  const auto header_at = std::find_if(lines.begin(), lines.end(), is_row_of_names);
  if (header_at == lines.end()) {
    if (const std::string refused = why_counters_are_refused(text); !refused.empty()) throw_bad_input("{}", refused);
    if (const std::vector<std::string> errors = ncu_errors(text); !errors.empty())
      throw_bad_input("Nsight Compute reports {}, and no line begins with \"ID\": there is no table", errors.front());
    throw_bad_input(
        "there is no table of Nsight Compute in it: no line begins with \"ID\"; write it with "
        "`ncu --csv --page raw`");
  }
  const auto number_of = [&](auto line) { return line - lines.begin() + 1; };
  const auto fields_at = [&](auto line) {
    const auto fields = csv_fields(*line);
    if (!fields) throw_bad_input("line {}: a quote is left open; the file is cut short", number_of(line));
    return *fields;
  };
  const std::vector<std::string> names = fields_at(header_at);
  const auto kernel_column = std::find(names.begin(), names.end(), "Kernel Name") - names.begin();
  if (kernel_column == static_cast<std::ptrdiff_t>(names.size()))
    throw_bad_input("line {}: no column \"Kernel Name\"; write the table with `ncu --csv --page raw`",
                    number_of(header_at));
  std::vector<std::string> units;
  std::vector<ProfiledKernel> kernels;
  for (auto line = header_at + 1; line != lines.end(); ++line) {
    if (!line->starts_with('"')) continue;  // what the child prints, and Nsight Compute's own words
    const std::vector<std::string> fields = fields_at(line);
    if (fields.size() != names.size())
      throw_bad_input("line {}: {} fields, where the names of line {} are {}", number_of(line), fields.size(),
                      number_of(header_at), names.size());
    if (units.empty()) {
      units = fields;
      for (std::size_t i = 0; i < fields.size(); ++i)
        if (names[i].starts_with("gpu__time_duration") && !is_time_unit(fields[i]))
          throw_bad_input("line {}: '{}' is no unit of the time {}", number_of(line), excerpt(fields[i]), names[i]);
      continue;
    }
    ProfiledKernel kernel;
    kernel.name = fields[static_cast<std::size_t>(kernel_column)];
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (names[i].find("__") == std::string::npos) continue;
      if (const auto value = counter_number(fields[i], number_of(line)))
        kernel.counters[names[i]] = *value * unit_factor(units[i]);
      else if (!fields[i].empty() && fields[i] != "n/a") kernel.unreadable[names[i]] = excerpt(fields[i]);
    }
    kernels.push_back(std::move(kernel));
  }
  if (kernels.empty()) throw_bad_input("the table of Nsight Compute has no row: it saw no launch");
  return kernels;
}

bool is_kernel_of(std::string_view csv_name, std::string_view name_expression) {
  // Up to template arguments and parameters, after the type of the result.
  const auto path_of = [](std::string_view name) {
    name = name.substr(0, name.find_first_of("<("));
    const std::size_t space = name.rfind(' ');
    return space == std::string_view::npos ? name : name.substr(space + 1);
  };
  const std::string_view seen = path_of(csv_name), path = path_of(name_expression);
  return seen == path || (!seen.empty() && path.ends_with(fmt::format("::{}", seen)));
}

bool has_ncu_table(std::string_view text) {
  const std::vector<std::string_view> lines = lines_of(text);
  return std::any_of(lines.begin(), lines.end(), is_row_of_names);
}

std::vector<std::string> ncu_errors(std::string_view text) {
  std::vector<std::string> errors;
  for (const std::string_view line : lines_of(text))
    if (line.find("==ERROR==") != std::string_view::npos) errors.push_back(excerpt(line, 300));
  return errors;
}

std::string why_counters_are_refused(std::string_view text) {
  if (text.find("ERR_NVGPUCTRPERM") == std::string_view::npos) return "";
  return "the driver does not let this user read counters (ERR_NVGPUCTRPERM); an administrator allows it with the "
         "module option NVreg_RestrictProfilingToAdminUsers=0, in a container with the capability SYS_ADMIN";
}

}  // namespace flashcore
