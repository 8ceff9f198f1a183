#pragma once
// Whole numbers of JSON from outside. The library's own conversion cuts 2^32 + 1 to 1, and is undefined for 1e300.

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {

// Error kBadInput, naming `what`, for anything that is not whole or does not fit.
template <class Int>
Int whole_of(const nlohmann::json& number, const char* what) {
  bool fits = false;
  if (number.is_number_unsigned()) {
    fits = std::in_range<Int>(number.get<std::uint64_t>());
  } else if (number.is_number_integer()) {
    fits = std::in_range<Int>(number.get<std::int64_t>());
  } else if (number.is_number_float()) {
    const double real = number.get<double>();
    fits = std::trunc(real) == real && real >= static_cast<double>(std::numeric_limits<Int>::min()) &&
           real < std::ldexp(1.0, std::numeric_limits<Int>::digits);
  }
  if (!fits)
    throw_bad_input("'{}' is {}, not a whole number that fits in {} bits", what,
                    excerpt(number.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)), 8 * sizeof(Int));
  return number.get<Int>();
}

// object[key] into `value`; json::exception if there is no such key.
template <class Int>
void get_whole(const nlohmann::json& object, const char* key, Int& value) {
  value = whole_of<Int>(object.at(key), key);
}

}  // namespace flashcore
