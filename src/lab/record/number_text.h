#pragma once
// Numbers as people read them. One place, so that what experiments, the report and the command line say agrees.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashcore::text {

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

}  // namespace flashcore::text
