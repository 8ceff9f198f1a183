#include "lab/record/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace flashcore::text {
namespace {

constexpr std::string_view kNotKnown = "–";

std::string with_thousands(double value) {
  const std::string digits = fmt::format("{:.0f}", std::abs(value));
  std::string out;
  if (value < 0) out += '-';
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

struct Unit {
  double scale;
  std::string_view name;
};

Unit unit_of(double microseconds) {
  if (microseconds < 1e3) return {1, "µs"};
  if (microseconds < 1e6) return {1e-3, "ms"};
  return {1e-6, "s"};
}

}  // namespace

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string number(double value) {
  if (!std::isfinite(value)) return std::string(kNotKnown);
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 99.95) return with_thousands(value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.9995) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3g}", value);
}

std::string time(double microseconds) {
  if (!std::isfinite(microseconds)) return std::string(kNotKnown);
  const Unit unit = unit_of(microseconds);
  return fmt::format("{} {}", number(microseconds * unit.scale), unit.name);
}

std::string time_range(double p50_us, double p10_us, double p90_us) {
  if (!std::isfinite(p50_us)) return std::string(kNotKnown);
  const Unit unit = unit_of(p50_us);
  return fmt::format("{} {} [{}, {}]", number(p50_us * unit.scale), unit.name, number(p10_us * unit.scale),
                     number(p90_us * unit.scale));
}

std::string percent(double fraction) {
  if (!std::isfinite(fraction)) return std::string(kNotKnown);
  const double value = fraction * 100;
  return std::abs(value) < 9.95 ? fmt::format("{:.1f}%", value) : fmt::format("{:.0f}%", value);
}

std::string ratio(double value) {
  if (!std::isfinite(value)) return std::string(kNotKnown);
  return value < 9.995 ? fmt::format("{:.2f}×", value) : fmt::format("{:.1f}×", value);
}

std::string bytes(double count) {
  if (count < 1024) return fmt::format("{:.0f} B", count);
  if (count < 1024.0 * 1024) return fmt::format("{} KiB", number(count / 1024));
  return fmt::format("{} MiB", number(count / 1024 / 1024));
}

std::string count(std::int64_t value) { return with_thousands(static_cast<double>(value)); }

std::string plural(std::int64_t value, std::string_view singular) {
  return fmt::format("{} {}{}", count(value), singular, value == 1 ? "" : "s");
}

}  // namespace flashcore::text
