#include "device/cuda/ptxas_log.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace flashcore::cuda {
namespace {

// The number right before `words` in `line`: "Used 12 registers" with " registers" gives 12. Zero if absent.
int number_before(std::string_view line, std::string_view words) {
  const std::size_t end = line.find(words);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

// "... for _Z3foo" or "... '_Z3foo' for 'sm_90'": a longer symbol that begins alike must not match.
bool names_symbol(std::string_view line, std::string_view symbol) {
  for (std::size_t at = line.find(symbol); at != std::string_view::npos; at = line.find(symbol, at + 1)) {
    const bool starts = at == 0 || line[at - 1] == ' ' || line[at - 1] == '\'';
    const std::size_t end = at + symbol.size();
    const bool ends = end == line.size() || line[end] == ' ' || line[end] == '\'' || line[end] == '\r';
    if (starts && ends) return true;
  }
  return false;
}

// ptxas gives its performance warnings (wgmma serialised, setmaxnreg ignored, ...) as "info" with a code "(C75xx)".
bool has_performance_code(std::string_view line) {
  const std::size_t at = line.find("(C75");
  return at != std::string_view::npos && at + 6 < line.size() && line[at + 6] == ')';
}

bool is_warning(std::string_view line) {
  std::string lower(line);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.find("warning") != std::string::npos || has_performance_code(line);
}

std::string trimmed(std::string_view line) {
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
  while (!line.empty() && (std::isspace(static_cast<unsigned char>(line.back())) || line.back() == '\0'))
    line.remove_suffix(1);
  return std::string(line);
}

}  // namespace

PtxasReport parse_ptxas_log(std::string_view log, std::string_view symbol) {
  PtxasReport report;
  bool in_entry = false;        // inside the block of this entry
  bool own_properties = false;  // the last "Function properties" were the entry's own
  while (!log.empty()) {
    const std::size_t newline = log.find('\n');
    const std::string_view line = log.substr(0, newline);
    log = newline == std::string_view::npos ? std::string_view() : log.substr(newline + 1);

    // First the lines that hold symbols: a kernel may be called "warning".
    if (line.find("Compiling entry function") != std::string_view::npos) {
      in_entry = names_symbol(line, symbol);
      own_properties = false;
    } else if (line.find("Function properties for") != std::string_view::npos) {
      own_properties = in_entry && names_symbol(line, symbol);
    } else if (is_warning(line)) {
      std::string text = trimmed(line);
      if (std::find(report.warnings.begin(), report.warnings.end(), text) == report.warnings.end())
        report.warnings.push_back(std::move(text));
    } else if (own_properties && line.find("bytes stack frame") != std::string_view::npos) {
      report.stack_bytes = std::max(report.stack_bytes, number_before(line, " bytes stack frame"));
      report.spill_store_bytes = number_before(line, " bytes spill stores");
      report.spill_load_bytes = number_before(line, " bytes spill loads");
    } else if (in_entry && !report.found && line.find("Used ") != std::string_view::npos) {
      report.found = true;
      report.registers = number_before(line, " registers");
      report.barriers = number_before(line, " barriers");
      report.static_shared_bytes = number_before(line, " bytes smem");
      report.stack_bytes = std::max(report.stack_bytes, number_before(line, " bytes cumulative stack size"));
    }
  }
  return report;
}

}  // namespace flashcore::cuda
