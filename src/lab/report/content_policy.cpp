#include "lab/report/content_policy.h"

#include <fmt/format.h>

#include "core/sha256.h"
#include "lab/report/text.h"

namespace flashcore {
namespace {

// The policy wants the hash itself in base64, not its digits.
std::string bytes_of_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string source_of(std::string_view text) { return " 'sha256-" + report::base64(bytes_of_hex(sha256(text))) + "'"; }

}  // namespace

std::string content_security_policy(const PageSources& sources) {
  std::string styles, scripts;
  for (const std::string_view style : sources.styles) styles += source_of(style);
  for (const std::string_view script : sources.scripts) scripts += source_of(script);
  if (sources.blob_scripts) {
    scripts += " blob:";
    // Plotly fills its style sheet rule by rule; the element itself is empty.
    styles += source_of("");
  }
  const auto or_none = [](const std::string& some) { return some.empty() ? std::string(" 'none'") : some; };
  return fmt::format(
      "default-src 'none'; style-src{}; script-src{}; img-src data:; base-uri 'none'; form-action 'none'",
      or_none(styles), or_none(scripts));
}

}  // namespace flashcore
