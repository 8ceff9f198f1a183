#pragma once
// JSON has no NaN and no infinity, and strings from compilers and crashed children need not be UTF-8. Both must survive
// the store and the worker's pipe, so everything written goes through here.

#include <nlohmann/json.hpp>
#include <string>

namespace flashcore {

// Every non-finite number inside becomes "nan", "inf" or "-inf".
nlohmann::json encode_nonfinite(nlohmann::json json);
// The reverse, for sections that hold numbers only: a message that reads "inf" would be taken for a number.
nlohmann::json decode_nonfinite(nlohmann::json json);

// One line, no newline at its end. Bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string dump_line(const nlohmann::json& json);

}  // namespace flashcore
